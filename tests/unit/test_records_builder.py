"""The builder: each row comes out once and in order, in batches of the right size."""

import os

import pyarrow as pa
import pytest

from sbp_core import limits
from sbp_core.errors import RecordBatchError
from sbp_core.records import ROWS_SCHEMA, RowsBuilder, decode_batch, decode_envelope

KIB = limits.KIB


def rows(count, *, first=0, value_bytes=100):
    values = [
        {
            "key": str(first + index).encode(),
            "value": bytes(value_bytes),
            "headers": [("h", b"v")] if index % 2 else None,
        }
        for index in range(count)
    ]
    return pa.RecordBatch.from_pylist(values, schema=ROWS_SCHEMA)


def keys(batches):
    return [
        int(key)
        for data in batches
        for key in decode_batch(decode_envelope(data)).column("key").to_pylist()
    ]


def counts(batches):
    return [decode_envelope(data).record_count for data in batches]


def test_rows_of_about_the_target_are_passed_on_as_they_came():
    builder = RowsBuilder(1, target_bytes=16 * KIB)
    for count in (110, 150, 180):
        (data,) = builder.add(rows(count), timestamp_ms=1)
        assert keys([data]) == list(range(count))
        assert builder.waiting_count == 0


def test_a_batch_has_the_time_of_its_first_record():
    builder = RowsBuilder(1, target_bytes=16 * KIB)
    full = []
    for call in range(5):
        full += builder.add(rows(100, first=100 * call), timestamp_ms=call)
    full += builder.flush()
    times = [decode_envelope(data).base_timestamp_ms for data in full]
    assert times == [keys([data])[0] // 100 for data in full]
    assert len(set(times)) > 2


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_a_record_above_the_target_stands_alone(compression):
    builder = RowsBuilder(1, target_bytes=16 * KIB, compression=compression)
    large = os.urandom(limits.RECORD_BYTES_MAX - 100)
    values = [{"value": b"before"}, {"value": large}, {"value": b"after"}]
    full = builder.add(pa.RecordBatch.from_pylist(values, schema=ROWS_SCHEMA), timestamp_ms=1)
    full += builder.flush()
    assert counts(full) == [1, 1, 1]
    assert decode_batch(decode_envelope(full[1])).column("value")[0].as_py() == large
    assert len(full[1]) <= limits.BATCH_BYTES_MAX


def test_a_large_record_at_the_end_does_not_wait():
    builder = RowsBuilder(1, target_bytes=16 * KIB)
    assert counts(builder.add(rows(1, value_bytes=20 * KIB), timestamp_ms=1)) == [1]
    assert builder.waiting_count == 0


def test_a_record_above_the_limit_is_refused_and_nothing_added():
    builder = RowsBuilder(1)
    builder.add(rows(2), timestamp_ms=1)
    size = limits.RECORD_BYTES_MAX + 1
    values = [{"value": b"1"}] * 3 + [{"headers": [("h", bytes(size))]}, {"value": b"5"}]
    large = pa.RecordBatch.from_pylist(values, schema=ROWS_SCHEMA)
    message = rf"record 3 of the batch has \d+ bytes; at most {limits.RECORD_BYTES_MAX} are"
    with pytest.raises(RecordBatchError, match=message + ".* write a reference"):
        builder.add(large, timestamp_ms=1)
    assert keys(builder.flush()) == [0, 1]


def test_the_largest_target_still_fits_into_a_batch():
    """Rows of nothing but nulls have the most around them."""
    builder = RowsBuilder(1, target_bytes=limits.RECORD_BYTES_MAX)
    count = 1_000_000
    nulls = [pa.nulls(count, field.type) for field in ROWS_SCHEMA]
    full = builder.add(pa.record_batch(nulls, schema=ROWS_SCHEMA), timestamp_ms=1)
    full += builder.flush()
    assert sum(counts(full)) == count
    assert len(full) > 2


def test_another_schema_is_refused():
    batch = pa.record_batch({"value": [b"x"]})
    with pytest.raises(RecordBatchError, match="rows of schema"):
        RowsBuilder(1).add(batch, timestamp_ms=1)


def test_invalid_rows_are_refused():
    ends = pa.array([0, 1000, 1], pa.int32()).buffers()[1]
    value = pa.Array.from_buffers(pa.binary(), 2, [None, ends, pa.py_buffer(b"x")])
    columns = [pa.nulls(2, field.type) for field in ROWS_SCHEMA]
    columns[1] = value
    builder = RowsBuilder(1)
    with pytest.raises(RecordBatchError, match="cannot be encoded"):
        builder.add(pa.record_batch(columns, schema=ROWS_SCHEMA), timestamp_ms=1)
    assert builder.flush() == []


def allocated_bytes_while(add):
    before = pa.total_allocated_bytes()
    builder = RowsBuilder(1)
    add(builder)
    return pa.total_allocated_bytes() - before, builder


def test_a_waiting_rest_does_not_keep_its_input_alive():
    def add(builder):
        builder.add(rows(20_000, value_bytes=1000), timestamp_ms=1)

    held_bytes, builder = allocated_bytes_while(add)
    assert builder.waiting_count > 0
    assert held_bytes < 2 * limits.BATCH_TARGET_BYTES


def test_a_waiting_slice_does_not_keep_its_parent_alive():
    def add(builder):
        builder.add(rows(20_000, value_bytes=1000).slice(7, 5), timestamp_ms=1)

    held_bytes, builder = allocated_bytes_while(add)
    assert held_bytes < 64 * KIB
    assert keys(builder.flush()) == list(range(7, 12))


def test_many_waiting_slices_cost_little_around_them():
    def add(builder):
        for index in range(5000):
            builder.add(single.slice(0, 1) if index else single, timestamp_ms=1)

    single = rows(1, value_bytes=10)
    held_bytes, builder = allocated_bytes_while(add)
    assert builder.waiting_count == 5000
    assert len(builder._waiting) < 300
    assert held_bytes < limits.BATCH_TARGET_BYTES
    assert counts(builder.flush()) == [5000]
