"""Some records of a stored batch as a batch of their own."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest

from sbp_core.errors import RecordBatchError
from sbp_core.records import (
    ROWS_SCHEMA,
    StreamSchema,
    decode_batch,
    decode_envelope,
    encode_columns,
    encode_rows,
    slice_plain,
)
from sbp_core.wire._generated import KeyValue
from tests.support.data.batches import sequence_batch

NOON = dt.datetime(2024, 5, 1, 12, tzinfo=dt.UTC)
VALUE = b"1" * 10_000
ROWS = pa.RecordBatch.from_pylist(
    [
        {"key": b"a", "value": b"0", "headers": None, "timestamp": NOON},
        {"key": None, "value": VALUE, "headers": [("h", b"x"), ("i", None)], "timestamp": None},
        {"key": b"", "value": None, "headers": [], "timestamp": NOON},
        {"key": b"c", "value": b"3", "headers": None, "timestamp": None},
    ],
    schema=ROWS_SCHEMA,
)


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_a_slice_is_what_its_records_alone_would_have_been(compression):
    options = {"stream_id": 9, "timestamp_ms": 17, "compression": compression}
    whole = decode_envelope(encode_rows(ROWS, base_offset=100, **options))
    expected = encode_rows(ROWS.slice(1, 2), base_offset=101, **options)
    assert slice_plain(whole, 1, 2, stream_id=9, base_offset=101) == expected


def test_a_slice_of_a_record_sequence_has_rows():
    whole = decode_envelope(sequence_batch([b"a", b"b"], headers=(KeyValue("Keys", "k"),)))
    sliced = decode_envelope(slice_plain(whole, 1, 1, stream_id=9))
    assert (sliced.encoding, sliced.stream_id) == ("rows", 9)
    assert decode_batch(sliced) == decode_batch(whole).slice(1, 1)


def test_a_batch_with_a_schema_is_not_sliced():
    schema = StreamSchema.of(pa.schema([("n", pa.int64())]))
    rows = pa.record_batch({"n": pa.array([1, 2])}, schema=schema.arrow)
    batch = decode_envelope(encode_columns(rows, schema, stream_id=9, timestamp_ms=17))
    with pytest.raises(RecordBatchError, match="columns"):
        slice_plain(batch, 0, 1, stream_id=9)
