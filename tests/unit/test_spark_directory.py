"""The streams that rows go to: found by name or id, created, or renamed since they were found."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from sbp_core.errors import NotFoundError
from sbp_core.limits import RECORD_BYTES_MAX
from sbp_spark.options.sink_targets import BadRecordPolicy, Creation, OnBadRecord, Routing
from sbp_spark.options.stream_selection import FoundStream, StreamRef
from sbp_spark.writing.sinks import write_rows
from tests.support.scripted_client import WritingClient, sink_options

DEAD_LETTERS = BadRecordPolicy(OnBadRecord.DEAD_LETTER, StreamRef("s99"))


def routed(*rows):
    """A batch of (stream, value)."""
    streams, values = zip(*rows, strict=True)
    return pa.record_batch(
        {"stream": pa.array(streams, pa.string()), "value": pa.array(values, pa.binary())}
    )


def valued(*values):
    """A batch of values."""
    return pa.record_batch({"value": pa.array(values, pa.binary())})


def test_missing_streams_are_created_once():
    client = WritingClient()
    creation = Creation(replica_count=2, retention_period_ms=5)
    options = sink_options(creation=creation)
    batch = routed(("new", b"a"), ("s1", b"b"), ("newer", b"c"))
    write_rows([batch, batch], client, options)
    assert [client.names[name] for name in ("new", "newer")] == [100, 101]
    assert client.values() == {100: [b"a"] * 2, 101: [b"c"] * 2, 1: [b"b"] * 2}
    assert {spec.replica_count for spec in client.created} == {2}


def found_by(*, created_at_ms=0, **ids):
    """Streams that names led to before."""
    return {name: FoundStream(stream_id, created_at_ms) for name, stream_id in ids.items()}


def rename(client, old, new):
    client.names[new] = client.names.pop(old)


@pytest.mark.parametrize("creation", [None, Creation()])
@pytest.mark.parametrize("is_named_again", [True, False])
def test_a_stream_that_was_renamed_since_it_was_found_is_written_on(creation, is_named_again):
    client = WritingClient()
    found = found_by(s1=1, s2=2, s99=99)
    options = sink_options("s1", "s2", routing=Routing.ROUND_ROBIN, found=found)
    options = replace(options, creation=creation, bad_records=DEAD_LETTERS)
    rename(client, "s1", "new")
    rename(client, "s99", "letters")
    if is_named_again:
        client.names["s1"] = 101
    rows = valued(b"a", b"b", bytes(RECORD_BYTES_MAX))
    assert write_rows([rows], client, options).dead_letter_count == 1
    assert client.values() == {1: [b"a"], 2: [b"b"], 99: [None]}
    assert client.created == []


def test_a_name_counts_again_when_the_stream_that_had_it_is_gone():
    client = WritingClient()
    rename(client, "s1", "new")
    del client.names["s2"]
    options = sink_options("s1", "s2", routing=Routing.ROUND_ROBIN, found=found_by(s1=1, s2=2))
    rows = valued(b"a", b"b")
    with pytest.raises(NotFoundError, match="option streams: not found: stream 's2'"):
        write_rows([rows], client, options)
    for _ in range(2):
        write_rows([rows], client, replace(options, creation=Creation()))
    assert [spec.name for spec in client.created] == ["s2"]
    assert client.values() == {1: [b"a"] * 2, client.names["s2"]: [b"b"] * 2}


def test_rows_name_streams_as_they_are_called_now():
    client = WritingClient()
    rename(client, "s99", "letters")
    client.names["s99"] = 101
    options = sink_options(bad_records=DEAD_LETTERS, found=found_by(s99=99))
    write_rows([routed(("s99", b"a"), (None, b"b"))], client, options)
    assert client.values() == {101: [b"a"], 99: [b"b"]}


def test_an_id_that_another_stream_has_got_does_not_count():
    client = WritingClient()
    options = sink_options("s1", found=found_by(s1=5, created_at_ms=7))
    write_rows([valued(b"a")], client, options)
    assert client.values() == {1: [b"a"]}
