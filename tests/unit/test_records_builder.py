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


def test_nothing_in_nothing_out():
    builder = RowsBuilder(1)
    assert builder.flush() == []
    assert builder.add(rows(0), timestamp_ms=1) == []
    assert builder.flush() == []


def test_small_batches_are_joined():
    builder = RowsBuilder(5)
    for first in range(0, 1000, 10):
        assert builder.add(rows(10, first=first), timestamp_ms=1) == []
    assert builder.waiting_count == 1000
    full = builder.flush()
    assert counts(full) == [1000]
    assert keys(full) == list(range(1000))
    assert decode_envelope(full[0]).stream_id == 5
    assert (builder.waiting_count, builder.waiting_bytes, builder.flush()) == (0, 0, [])


def test_large_batches_are_split():
    builder = RowsBuilder(1, target_bytes=16 * KIB)
    batch = rows(5000)
    full = builder.add(batch, timestamp_ms=1)
    assert keys(full + builder.flush()) == list(range(5000))
    assert all(15 * KIB < len(data) < 18 * KIB for data in full[:-1])
    assert len(full[-1]) < 26 * KIB


def test_rows_of_about_the_target_are_passed_on_as_they_came():
    builder = RowsBuilder(1, target_bytes=16 * KIB)
    for count in (110, 150, 180):
        (data,) = builder.add(rows(count), timestamp_ms=1)
        assert keys([data]) == list(range(count))
        assert builder.waiting_count == 0


def test_a_batch_in_progress_is_filled_up_before_it_is_cut():
    builder = RowsBuilder(1, target_bytes=16 * KIB)
    builder.add(rows(50), timestamp_ms=1)
    full = builder.add(rows(200, first=50), timestamp_ms=1) + builder.flush()
    assert keys(full) == list(range(250))
    assert len(full) == 2
    assert 15 * KIB < len(full[0]) < 18 * KIB


def test_sliced_input_counts_what_it_shows():
    builder = RowsBuilder(1, target_bytes=16 * KIB)
    parts = [rows(4000, value_bytes=0), rows(1000, first=4000)]
    (parent,) = pa.Table.from_batches(parts).combine_chunks().to_batches()
    assert builder.add(parent.slice(4000, 20), timestamp_ms=1) == []
    assert 20 * 100 < builder.waiting_bytes < 20 * 150
    (data,) = builder.flush()
    assert keys([data]) == list(range(4000, 4020))
    assert len(data) < 4 * KIB


def test_records_are_counted_too():
    builder = RowsBuilder(1, records_max=30)
    full = builder.add(rows(20), timestamp_ms=1)
    full += builder.add(rows(80, first=20), timestamp_ms=1) + builder.flush()
    assert counts(full) == [30, 30, 30, 10]
    assert keys(full) == list(range(100))


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


def test_names_inside_the_map_and_schema_metadata_do_not_matter():
    entries = pa.map_(pa.field("k", pa.string(), nullable=False), pa.field("v", pa.binary()))
    renamed = ROWS_SCHEMA.set(2, pa.field("headers", entries)).with_metadata({"a": "b"})
    builder = RowsBuilder(1)
    builder.add(rows(2), timestamp_ms=1)
    builder.add(pa.RecordBatch.from_pylist([{"key": b"2"}], schema=renamed), timestamp_ms=1)
    builder.add(rows(2, first=3), timestamp_ms=1)
    assert keys(builder.flush()) == [0, 1, 2, 3, 4]


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
