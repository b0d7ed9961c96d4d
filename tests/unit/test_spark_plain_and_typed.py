"""Plain rows that are meant for streams with a schema, which take none."""

import pyarrow as pa
import pytest

from sbp_core.errors import ConfigurationError
from sbp_core.records import StreamSchema
from sbp_spark.options.sink import BatchKey
from sbp_spark.options.sink_targets import BadRecordPolicy, OnBadRecord
from sbp_spark.options.stream_selection import StreamRef
from sbp_spark.writing.bad_records import BadRecordError
from sbp_spark.writing.sinks import StagedFor, write_rows
from tests.support.scripted_client import WritingClient, sink_options

KEY = BatchKey("query", 3)
TYPED = StreamSchema.of(pa.schema({"n": pa.int64()}))
DEAD_LETTERS = BadRecordPolicy(OnBadRecord.DEAD_LETTER, StreamRef("s99"))
SKIP = BadRecordPolicy(OnBadRecord.SKIP)


def routed(*rows):
    """A batch of (stream, value)."""
    streams, values = zip(*rows, strict=True)
    return pa.record_batch({"stream": streams, "value": pa.array(values, pa.binary())})


@pytest.mark.parametrize("is_staged", [True, False])
def test_a_stream_with_a_schema_takes_no_rows(is_staged):
    def write(client, batch, **changes):
        given = sink_options(**changes)
        if is_staged:
            return write_rows([batch], client, given, StagedFor(KEY, is_repeatable=True))
        return write_rows([batch], client, given)

    client = WritingClient()
    client.register_schema(7, TYPED, version=1)
    batch = routed(("s1", b"a"), ("s7", b"b"), ("s2", b"c"), ("7", b"d"))
    told = "column stream: stream 's7' has a schema.*set encoding=columns.*row 1 of 4"
    with pytest.raises(BadRecordError, match=told):
        write(client, batch)
    assert client.appends == []
    message = write(client, batch, bad_records=SKIP)
    assert (message.record_count, message.skipped_count) == (2, 2)
    assert write(client, batch, bad_records=DEAD_LETTERS).dead_letter_count == 2
    found = client.staged_values() if is_staged else client.values()
    assert found == {1: [b"a"] * 2, 2: [b"c"] * 2, 99: [b"b", b"d"]}


def test_streams_that_options_name_are_looked_at_by_each_task():
    client = WritingClient()
    client.register_schema(7, TYPED, version=1)
    with pytest.raises(ConfigurationError, match="option stream: stream 's7' has a schema"):
        write_rows([routed(("s1", b"a"))], client, sink_options("s7", bad_records=SKIP))
    client.register_schema(99, TYPED, version=1)
    with pytest.raises(ConfigurationError, match="dead letters are plain records; name"):
        write_rows([routed(("s7", b"a"))], client, sink_options(bad_records=DEAD_LETTERS))
    assert client.appends == []
