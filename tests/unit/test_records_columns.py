"""Batches of columns: the envelope names their schema, the body is one Arrow message."""

import struct

import pyarrow as pa
import pytest
from msgspec.structs import replace

from sbp_core import limits
from sbp_core.errors import RecordBatchError, SchemaError
from sbp_core.records import (
    ColumnsBuilder,
    StreamSchema,
    decode_batch,
    decode_columns,
    decode_envelope,
    encode_columns,
    encode_envelope,
    with_base_offset,
)

SCHEMA = StreamSchema.of(
    pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("at", pa.timestamp("us", tz="UTC")),
            pa.field("tags", pa.list_(pa.field("element", pa.string(), nullable=False))),
            pa.field("more", pa.map_(pa.string(), pa.struct({"a": pa.decimal128(5, 2)}))),
        ]
    )
)
ROWS = [
    {"id": 1, "at": None, "tags": ["x", "yy"], "more": [("k", {"a": None}), ("l", None)]},
    {"id": 2, "at": None, "tags": None, "more": None},
    {"id": 3, "at": None, "tags": [], "more": []},
]


def batch_of(rows=ROWS, schema=SCHEMA.arrow):
    return pa.RecordBatch.from_pylist(rows, schema=schema)


def encoded(batch=None, **options):
    given = {"stream_id": 9, "timestamp_ms": 17, **options}
    return encode_columns(batch_of() if batch is None else batch, SCHEMA, **given)


def test_without_a_column_of_times_there_is_none():
    assert decode_envelope(encoded()).timestamp_column is None


def test_a_server_writes_the_offset_and_nothing_else():
    envelope = decode_envelope(b"".join(with_base_offset(memoryview(encoded()), 500)))
    assert envelope.base_offset == 500
    assert decode_columns(envelope, SCHEMA).to_pylist() == ROWS


def test_only_some_columns():
    envelope = decode_envelope(encoded(compression="lz4"))
    assert decode_columns(envelope, SCHEMA, {"tags", "id"}).to_pylist() == [
        {"id": row["id"], "tags": row["tags"]} for row in ROWS
    ]
    none = decode_columns(envelope, SCHEMA, [])
    assert (none.num_columns, none.num_rows) == (0, 3)
    assert decode_columns(envelope, SCHEMA, ["no such column"]).num_columns == 0


def test_rows_of_another_schema_are_not_encoded():
    for schema in (
        SCHEMA.arrow.remove(3),
        pa.schema(list(reversed(list(SCHEMA.arrow)))),
        SCHEMA.arrow.set(0, pa.field("id", pa.int64())),
        SCHEMA.arrow.set(0, pa.field("id", pa.int32(), nullable=False)),
    ):
        with pytest.raises(SchemaError, match=r"expected \(id int64 not null, at .*: map them"):
            encoded(batch_of([], schema))


def unchecked(rows):
    """A batch whose required columns have nulls: Arrow minds only those who ask."""
    loose = pa.schema([(each.name, each.type) for each in SCHEMA.arrow])
    tags = pa.list_(pa.string())
    made = batch_of(rows, loose.set(2, pa.field("tags", tags)))
    columns = [*made.columns[:2], relabelled(made.column(2)), made.column(3)]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA.arrow)


def relabelled(tags):
    kind = SCHEMA.arrow.field("tags").type
    buffers = tags.buffers()[:2]
    return pa.Array.from_buffers(kind, len(tags), buffers, tags.null_count, 0, [tags.values])


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ({"id": None}, "column id is required, and 1 of 4 rows have none"),
        ({"id": 4, "tags": ["a", None]}, "column tags.element is required, and 1 of 4 rows"),
    ],
)
def test_nulls_in_what_is_required(row, fault):
    batch = unchecked([*ROWS, row])
    batch.validate(full=True)
    with pytest.raises(SchemaError, match=fault):
        encoded(batch)
    builder = ColumnsBuilder(1, SCHEMA)
    with pytest.raises(SchemaError, match=fault):
        builder.add(batch, timestamp_ms=0)
    assert builder.waiting_count == 0
    with pytest.raises(RecordBatchError, match="at offset 0 of stream 9 is damaged: " + fault):
        decode_columns(wrap(bytes(batch.serialize()), 4), SCHEMA)


def wrap(body, record_count, schema=SCHEMA):
    return decode_envelope(
        encode_envelope(
            [body],
            stream_id=9,
            record_count=record_count,
            base_timestamp_ms=0,
            encoding="columns",
            schema_fingerprint=schema.fingerprint,
        )
    )


def test_a_batch_of_something_else_is_named():
    envelope = decode_envelope(encoded())
    for other in (
        replace(envelope, encoding="rows"),
        replace(envelope, encoding=None),
        replace(envelope, schema_fingerprint=None),
        replace(envelope, schema_fingerprint="0" * 32),
    ):
        with pytest.raises(RecordBatchError, match=f"expected 'columns', '{SCHEMA.fingerprint}'"):
            decode_columns(other, SCHEMA)
    with pytest.raises(RecordBatchError, match="read it with encoding=columns"):
        decode_batch(envelope)


def simple(kind, array_buffers, count, *, children=()):
    """The envelope of one column whose buffers are anything."""
    schema = StreamSchema.of(pa.schema([("x", kind)]))
    array = pa.Array.from_buffers(kind, count, array_buffers, 0, 0, list(children))
    batch = pa.RecordBatch.from_arrays([array], schema=schema.arrow)
    return wrap(bytes(batch.serialize()), count, schema), schema


def offsets(*numbers):
    return pa.py_buffer(struct.pack(f"<{len(numbers)}i", *numbers))


@pytest.mark.parametrize("values", [["a", "bcd"], [[1], [2, 3, 4]]])
@pytest.mark.parametrize(
    "numbers",
    [(0, 4, 3), (0, 5, 4), (0, 2, 2**31 - 1), (-1, 1, 4), (2**31 - 9, 2**31 - 8, 2**31 - 1)],
)
def test_offsets_that_point_anywhere(values, numbers):
    """Arrow's writer would mend some of these: they go into the bytes of a right batch."""
    array = pa.array(values)
    schema = StreamSchema.of(pa.schema([("x", array.type)]))
    body = bytes(pa.RecordBatch.from_arrays([array], schema=schema.arrow).serialize())
    right = struct.pack("<3i", 0, 1, 4)
    assert body.count(right) == 1
    assert decode_columns(wrap(body, 2, schema), schema).column("x").to_pylist() == values
    with pytest.raises(RecordBatchError, match="is damaged"):
        decode_columns(wrap(body.replace(right, struct.pack("<3i", *numbers)), 2, schema), schema)


def test_text_that_is_no_utf8():
    envelope, schema = simple(pa.string(), [None, offsets(0, 1), pa.py_buffer(b"\xff")], 1)
    with pytest.raises(RecordBatchError, match="UTF8"):
        decode_columns(envelope, schema)


def test_decimals_beyond_their_precision():
    envelope, schema = simple(
        pa.decimal128(2, 0), [None, pa.py_buffer(struct.pack("<qq", 100, 0))], 1
    )
    with pytest.raises(RecordBatchError, match="is damaged"):
        decode_columns(envelope, schema)


def test_a_column_that_is_not_requested_may_be_damaged():
    schema = StreamSchema.of(pa.schema([("s", pa.string()), ("n", pa.int8())]))
    bad = pa.Array.from_buffers(pa.string(), 1, [None, offsets(0, 1), pa.py_buffer(b"\xff")])
    batch = pa.RecordBatch.from_arrays([bad, pa.array([5], pa.int8())], schema=schema.arrow)
    envelope = wrap(bytes(batch.serialize()), 1, schema)
    assert decode_columns(envelope, schema, ["n"]).to_pylist() == [{"n": 5}]
    with pytest.raises(RecordBatchError, match="UTF8"):
        decode_columns(envelope, schema)


def test_a_body_of_another_schema_is_refused_or_valid():
    """Buffers that do not fit, by their number or size."""
    for other in (
        pa.schema([("x", pa.string())]),
        pa.schema([("x", pa.int64()), ("y", pa.int64())]),
        pa.schema([("x", pa.list_(pa.int64()))]),
    ):
        envelope = wrap(bytes(pa.record_batch({"x": [True] * 100}).serialize()), 100)
        schema = StreamSchema.of(other)
        envelope = replace(envelope, schema_fingerprint=schema.fingerprint)
        with pytest.raises(RecordBatchError, match="is damaged"):
            decode_columns(envelope, schema)


# The builder.


@pytest.mark.parametrize("name", ["id", "nowhere"])
def test_the_times_are_in_a_timestamp_column_of_the_schema(name):
    with pytest.raises(SchemaError, match=f"column {name} is to have the times"):
        encoded(timestamp_column=name)
    with pytest.raises(SchemaError, match=f"column {name} is to have the times"):
        ColumnsBuilder(5, SCHEMA, timestamp_column=name)


def test_the_builder_takes_its_schema_only():
    builder = ColumnsBuilder(5, SCHEMA)
    with pytest.raises(SchemaError, match="map them first"):
        builder.add(pa.record_batch({"x": [1]}), timestamp_ms=0)


def test_the_largest_target_still_fits_into_a_batch():
    """Many narrow columns have the most around them."""
    schema = StreamSchema.of(
        pa.schema([(f"c{index}", pa.int8()) for index in range(limits.SCHEMA_FIELDS_MAX)])
    )
    builder = ColumnsBuilder(1, schema, target_bytes=limits.RECORD_BYTES_MAX)
    column = pa.array([1, None] * 500, pa.int8())
    batch = pa.RecordBatch.from_arrays([column] * limits.SCHEMA_FIELDS_MAX, schema=schema.arrow)
    full = builder.add(batch, timestamp_ms=1) + builder.flush()
    assert sum(decode_envelope(data).record_count for data in full) == batch.num_rows
    assert len(full) == 2
