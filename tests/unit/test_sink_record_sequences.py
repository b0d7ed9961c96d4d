"""Rows written by the sink to servers that accept record sequences only."""

import pyarrow as pa
import pytest

from sbp_core.client import Dialect
from sbp_core.limits import BATCH_METADATA_BYTES_MAX
from sbp_core.records import ROWS_SCHEMA
from sbp_spark.options.stream_selection import StreamRef
from sbp_spark.options.targets import BadRecordPolicy, OnBadRecord
from sbp_spark.writing.bad_records import ERROR_HEADER, BadRecordError
from sbp_spark.writing.sinks import write_rows
from tests.support.scripted_client import WritingClient, sink_options

NO_TEXT = b"a\xff"


def foreign_client():
    return WritingClient(
        dialect=Dialect.ELASTICSTREAM_2023_04,
        has_writers=False,
        has_transactions=False,
        has_schemas=False,
    )


def batch(*rows):
    return pa.RecordBatch.from_pylist(list(rows), schema=ROWS_SCHEMA)


BAD = [
    {"value": None, "key": b"null"},
    {"value": b"key", "key": NO_TEXT},
    {"value": b"header", "headers": [("h", NO_TEXT)]},
    {"value": b"null header", "headers": [("a", b""), ("b", None)]},
    {"value": b"large", "key": bytes(BATCH_METADATA_BYTES_MAX)},
]
GOOD = {"value": b"good", "key": b"k", "headers": [("Tag", b"t"), ("h", b"x")], "timestamp": 5_000}


def test_rows_become_sequences_and_are_sent_without_a_writer():
    client = foreign_client()
    written = write_rows([batch(GOOD, GOOD), batch(GOOD)], client, sink_options("s1"))
    assert written.record_count == 3
    assert [
        (row["key"], row["value"], row["headers"], row["timestamp"].microsecond)
        for row in client.published[1]
    ] == [(b"k", b"good", [("Tag", b"t"), ("h", b"x")], 5_000)] * 3


@pytest.mark.parametrize("bad", BAD, ids=lambda row: repr(row["value"]))
def test_a_row_that_a_sequence_cannot_hold_ends_the_task(bad):
    client = foreign_client()
    with pytest.raises(BadRecordError, match=r"row 1 of 3 in a batch; 1 of them.*onBadRecord=skip"):
        write_rows([batch(GOOD, bad, GOOD)], client, sink_options("s1"))
    assert client.published == {}
    write_rows([batch(GOOD, bad, GOOD)], WritingClient(), sink_options("s1"))


def test_such_rows_are_skipped():
    client = foreign_client()
    options = sink_options("s1", bad_records=BadRecordPolicy(OnBadRecord.SKIP))
    written = write_rows([batch(GOOD, *BAD, GOOD)], client, options)
    assert client.values() == {1: [b"good"] * 2}
    assert written.skipped_count == len(BAD)


def test_such_rows_are_kept_as_dead_letters_that_a_sequence_can_hold():
    client = foreign_client()
    policy = BadRecordPolicy(OnBadRecord.DEAD_LETTER, StreamRef("s9"))
    write_rows([batch(*BAD, GOOD)], client, sink_options("s1", bad_records=policy))
    assert client.values() == {
        1: [b"good"],
        9: [b"", b"key", b"header", b"null header", b"large"],
    }
    letters = client.published[9]
    assert [letter["key"] for letter in letters] == [b"null", rb"a\xff", None, None, None]
    assert letters[2]["headers"][0] == ("h", rb"a\xff")
    assert letters[3]["headers"][:2] == [("a", b""), ("b", b"")]
    reasons = [dict(letter["headers"])[ERROR_HEADER].decode() for letter in letters]
    assert ["null" in reasons[0], "key that is" in reasons[1], "header with" in reasons[2]] == [
        True
    ] * 3
    assert "key and headers take more" in reasons[4]


def test_a_row_with_a_header_name_that_is_no_text_is_found_first():
    names = pa.array([b"n", b"\xff\xff"], pa.binary()).view(pa.string())
    entries = pa.MapArray.from_arrays([0, 1, 2], names, pa.array([b"x" * 10_000, b"y" * 10_000]))
    headers = entries.cast(ROWS_SCHEMA.field("headers").type, safe=False)
    columns = [pa.nulls(2, pa.binary()), pa.array([b"a", b"b"], pa.binary()), headers]
    rows = pa.RecordBatch.from_arrays(
        [*columns, pa.nulls(2, ROWS_SCHEMA.field("timestamp").type)], schema=ROWS_SCHEMA
    )
    client = foreign_client()
    with pytest.raises(BadRecordError, match="the name of a header is not UTF-8"):
        write_rows([rows], client, sink_options("s1"))
