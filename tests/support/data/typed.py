"""Typed streams: schemas, rows, record batches, and strategies for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from sbp_core.client import EARLIEST, AppendItem, Client, FetchItem, SchemaVersion
from sbp_core.limits import MIB
from sbp_core.records import (
    Compression,
    Envelope,
    StreamSchema,
    decode_columns,
    encode_columns,
    map_columns,
    split_envelopes,
)


def schema_of(**columns: pa.DataType) -> StreamSchema:
    """A schema of columns that may have nulls."""
    return StreamSchema.of(pa.schema(columns))


def rows_in(schema: StreamSchema, rows: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
    """Rows of a schema; what a row leaves out is null."""
    return pa.RecordBatch.from_pylist([dict(row) for row in rows], schema.arrow)


def versions_of(stream_id: int, *schemas: StreamSchema) -> tuple[SchemaVersion, ...]:
    """Versions of a stream's schema as a client describes them."""
    return tuple(
        SchemaVersion(stream_id, version, schema, 0)
        for version, schema in enumerate(schemas, start=1)
    )


def append_columns(
    client: Client,
    stream: str,
    rows: pa.RecordBatch,
    *,
    timestamp_ms: int = 0,
    timestamp_column: str | None = None,
    compression: Compression = "none",
) -> SchemaVersion:
    """Append one record batch, in a version of the stream's schema that takes these rows."""
    (info,) = client.describe_streams([stream])
    given = StreamSchema.of(rows.schema)
    newest = client.evolve_schema(info.stream_id, given, may_change=True)
    batch = encode_columns(
        map_columns(rows, newest.schema.arrow),
        newest.schema,
        stream_id=info.stream_id,
        timestamp_ms=timestamp_ms,
        timestamp_column=timestamp_column,
        compression=compression,
    )
    client.append([AppendItem(info.stream_id, batch)])
    return newest


def stored_versions(client: Client, stream: int | str) -> tuple[SchemaVersion, ...]:
    """All versions of a stream's schema, the newest last."""
    (info,) = client.describe_streams([stream])
    return client.describe_schemas([info.stream_id])[info.stream_id]


def envelopes_of(client: Client, stream: int | str) -> Iterator[Envelope]:
    """The record batches of a stream, in the order of their offsets."""
    (info,) = client.describe_streams([stream])
    (bounds,) = client.stream_bounds([info.stream_id])
    position = EARLIEST
    while position < bounds.next_offset:
        item = FetchItem(info.stream_id, position, bounds.next_offset, MIB)
        (outcome,) = client.fetch([item])
        if outcome.error is not None:
            raise outcome.error
        yield from split_envelopes(outcome.payload)
        position = outcome.next_offset


def typed_rows(client: Client, stream: int | str) -> pa.Table:
    """The rows of a typed stream, in its newest schema and in the order of their offsets."""
    versions = stored_versions(client, stream)
    schemas = {each.schema.fingerprint: each.schema for each in versions}
    newest = versions[-1].schema.arrow
    batches = []
    for envelope in envelopes_of(client, stream):
        assert envelope.schema_fingerprint is not None
        rows = decode_columns(envelope, schemas[envelope.schema_fingerprint])
        batches.append(map_columns(rows, newest))
    return pa.Table.from_batches(batches, newest)


NAMES = st.sampled_from(["a", "b", "c", "id", "value", "key", "element"]) | st.text(
    st.characters(codec="utf-8"), min_size=1, max_size=5
)
INTEGERS = {pa.int8(): 7, pa.int16(): 15, pa.int32(): 31, pa.int64(): 63}
MICROSECONDS = (pa.timestamp("us", tz="UTC"), pa.timestamp("us"), pa.duration("us"))
PLAIN_TYPES = (
    pa.bool_(),
    *INTEGERS,
    pa.float32(),
    pa.float64(),
    pa.string(),
    pa.binary(),
    pa.date32(),
    *MICROSECONDS,
    pa.time64("ns"),
)
MICROSECONDS_MAX = 10**15


@st.composite
def decimals(draw):
    precision = draw(st.integers(1, 38))
    return pa.decimal128(precision, draw(st.integers(0, precision)))


@st.composite
def fields(draw, kinds, *, max_size=4):
    """Fields whose names differ by more than case."""
    names = draw(st.lists(NAMES, min_size=1, max_size=max_size, unique_by=str.lower))
    return [pa.field(name, draw(kinds), nullable=draw(st.booleans())) for name in names]


def nested(kinds):
    elements = st.builds(pa.field, st.just("element"), kinds, nullable=st.booleans())
    keys = st.sampled_from([pa.string(), pa.int32(), pa.binary()])
    values = st.builds(pa.field, st.just("value"), kinds, nullable=st.booleans())
    return (
        elements.map(pa.list_)
        | st.builds(pa.map_, keys, values)
        | fields(kinds, max_size=3).map(pa.struct)
    )


TYPES = st.recursive(st.sampled_from(PLAIN_TYPES) | decimals(), nested, max_leaves=5)
SCHEMAS = fields(TYPES).map(lambda made: StreamSchema.of(pa.schema(made)))


def cells(field):
    """Values of a field, as `rows_of` gives them."""
    kind = values(field.type)
    return st.none() | kind if field.nullable else kind


def values(kind):
    """Values of a type. Times are numbers, for Python's own have a smaller range."""
    if kind in INTEGERS:
        return st.integers(-(2 ** INTEGERS[kind]), 2 ** INTEGERS[kind] - 1)
    if kind in MICROSECONDS:
        return st.integers(-MICROSECONDS_MAX, MICROSECONDS_MAX)
    if pa.types.is_decimal128(kind):
        return st.decimals(
            -(10 ** (kind.precision - kind.scale)) + 1,
            10 ** (kind.precision - kind.scale) - 1,
            places=kind.scale,
        )
    if pa.types.is_struct(kind):
        return st.fixed_dictionaries({each.name: cells(each) for each in kind})
    if pa.types.is_list(kind):
        return st.lists(cells(kind.value_field), max_size=3)
    if pa.types.is_map(kind):
        pairs = st.tuples(values(kind.key_type), cells(kind.item_field))
        return st.lists(pairs, max_size=3)
    return {
        pa.bool_(): st.booleans(),
        pa.float32(): st.floats(width=32, allow_nan=False),
        pa.float64(): st.floats(allow_nan=False),
        pa.string(): st.text(st.characters(codec="utf-8"), max_size=6),
        pa.binary(): st.binary(max_size=6),
        pa.date32(): st.integers(-100_000, 100_000),
        pa.time64("ns"): st.integers(0, 86_400 * 10**9 - 1),
    }[kind]


@st.composite
def batches(draw, schema, *, min_size=1, max_size=12):
    """A batch of a StreamSchema, often a slice of a larger one."""
    row = st.fixed_dictionaries({each.name: cells(each) for each in schema.arrow})
    rows = draw(st.lists(row, min_size=min_size, max_size=max_size))
    first = draw(st.integers(0, len(rows) - min_size))
    count = draw(st.integers(min_size, len(rows) - first))
    columns = [pa.array([row[each.name] for row in rows], each.type) for each in schema.arrow]
    return pa.RecordBatch.from_arrays(columns, schema=schema.arrow).slice(first, count)


def rows_of(batch):
    """The rows as Python values; what has no such value, or one of another range, as a number."""
    columns = [column_values(column) for column in batch.columns]
    return [dict(zip(batch.schema.names, row, strict=True)) for row in zip(*columns, strict=True)]


def column_values(array):
    kind = array.type
    if kind in MICROSECONDS or kind == pa.time64("ns"):
        return array.cast(pa.int64()).to_pylist()
    if kind == pa.date32():
        return array.cast(pa.int32()).to_pylist()
    if pa.types.is_struct(kind):
        parts = [column_values(array.field(index)) for index in range(kind.num_fields)]
        names = [each.name for each in kind]
        return [
            dict(zip(names, row, strict=True)) if is_valid else None
            for is_valid, *row in zip(array.is_valid().to_pylist(), *parts, strict=True)
        ]
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        inside = column_values(array.values)
        if pa.types.is_map(kind):
            inside = [tuple(each.values()) for each in inside]
        ends = array.offsets.to_pylist()
        return [
            inside[start:stop] if is_valid else None
            for is_valid, start, stop in zip(
                array.is_valid().to_pylist(), ends[:-1], ends[1:], strict=True
            )
        ]
    return array.to_pylist()


# Schemas that a schema may evolve to.


@st.composite
def grown(draw, schema):
    """A StreamSchema that `schema` may evolve to."""
    return StreamSchema.of(pa.schema(draw(grown_fields(list(schema.arrow)))))


@st.composite
def grown_fields(draw, given):
    made = [draw(grown_field(each)) for each in given]
    names = {each.name.lower() for each in given}
    more = draw(fields(TYPES, max_size=2)) if draw(st.booleans()) else []
    return made + [each.with_nullable(True) for each in more if each.name.lower() not in names]


@st.composite
def grown_field(draw, field):
    is_nullable = field.nullable or draw(st.booleans())
    return pa.field(field.name, draw(grown_type(field.type)), nullable=is_nullable)


@st.composite
def grown_type(draw, kind):
    if pa.types.is_struct(kind):
        return pa.struct(draw(grown_fields(list(kind))))
    if pa.types.is_list(kind):
        return pa.list_(draw(grown_field(kind.value_field)))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_field, draw(grown_field(kind.item_field)))
    if kind in INTEGERS:
        return draw(st.sampled_from(list(INTEGERS)[list(INTEGERS).index(kind) :]))
    if kind == pa.float32():
        return draw(st.sampled_from([pa.float32(), pa.float64()]))
    if pa.types.is_decimal128(kind):
        more_scale = draw(st.integers(0, 38 - kind.precision))
        more_digits = draw(st.integers(0, 38 - kind.precision - more_scale))
        return pa.decimal128(kind.precision + more_scale + more_digits, kind.scale + more_scale)
    return kind
