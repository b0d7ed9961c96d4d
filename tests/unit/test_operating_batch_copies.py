"""Record batches of one stream, made those of another."""

from __future__ import annotations

import pyarrow as pa
import pytest

from sbp_core.errors import DamagedBatchError, RecordBatchError
from sbp_core.operating.batch_copies import copied_batches
from sbp_core.records import (
    ROWS_SCHEMA,
    StreamSchema,
    decode_batch,
    decode_columns,
    decode_envelope,
    encode_columns,
    encode_rows,
)
from tests.support.cluster import rows_batch
from tests.support.data.batches import sequence_batch

SCHEMA = StreamSchema.of(pa.schema([("n", pa.int64())]))


def payload(*batches: bytes) -> memoryview:
    return memoryview(b"".join(batches))


def rows(*values: bytes) -> pa.RecordBatch:
    whole = decode_batch(decode_envelope(rows_batch(values)))
    return pa.record_batch(whole.columns, schema=ROWS_SCHEMA)


def plain_batch(*values: bytes, base_offset: int = 0) -> bytes:
    return encode_rows(rows(*values), stream_id=1, timestamp_ms=5, base_offset=base_offset)


def columns_batch(numbers, base_offset) -> bytes:
    rows = pa.record_batch({"n": pa.array(numbers)}, schema=SCHEMA.arrow)
    return encode_columns(rows, SCHEMA, stream_id=1, timestamp_ms=9, base_offset=base_offset)


def test_whole_batches_are_those_of_the_other_stream_and_bytes_stay():
    first, second = plain_batch(b"a"), plain_batch(b"b", b"c", base_offset=1)
    batches, count = copied_batches(payload(first, second), 7, 0, 3, [])
    assert (len(batches), count) == (2, 3)
    for made, given in zip(batches, (first, second), strict=True):
        copy, source = decode_envelope(made), decode_envelope(given)
        assert (copy.stream_id, copy.base_offset) == (7, 0)
        assert copy.body == source.body
        assert copy.base_timestamp_ms == source.base_timestamp_ms


def test_batches_at_the_ends_are_cut():
    given = payload(columns_batch([0, 1, 2], 10), columns_batch([3, 4], 13))
    batches, count = copied_batches(given, 7, 11, 14, [SCHEMA])
    assert count == 3
    numbers = [decode_columns(decode_envelope(each), SCHEMA)["n"].to_pylist() for each in batches]
    assert numbers == [[1, 2], [3]]
    assert {decode_envelope(each).base_timestamp_ms for each in batches} == {9}


def test_a_gap_is_an_error_and_so_is_a_schema_that_nobody_knows():
    with pytest.raises(RecordBatchError, match="expected offset 0, found records 5 to 5"):
        copied_batches(payload(plain_batch(b"a", base_offset=5)), 7, 0, 6, [])
    with pytest.raises(DamagedBatchError, match="is not known"):
        copied_batches(payload(columns_batch([1, 2], 0)), 7, 1, 2, [])


def test_a_record_sequence_becomes_rows():
    sequence = sequence_batch([b"a", b"b"])
    (made,), count = copied_batches(payload(sequence), 7, 0, 2, [])
    assert (count, decode_envelope(made).encoding) == (2, "rows")
    assert decode_batch(decode_envelope(made)) == decode_batch(decode_envelope(sequence))
