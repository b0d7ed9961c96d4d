"""Typed streams as a fuzz target: schema messages, and batches of columns of some schemas.

The first byte of a batch chooses its schema. An accepted batch is then used as readers use it:
mapped onto a schema that has grown, measured, taken from, and encoded again.
"""

from __future__ import annotations

from contextlib import suppress
from random import Random
from typing import Any

import pyarrow as pa
from msgspec.structs import replace

from sbp_core.errors import RecordBatchError, SchemaError
from sbp_core.records import (
    StreamSchema,
    decode_columns,
    decode_envelope,
    decode_stream_schema,
    encode_columns,
    map_columns,
    merge_schemas,
    record_sizes,
)

_COMPRESSIONS = ("none", "lz4", "zstd")
_RANDOM_SCHEMAS = 12
_WIDER = {
    pa.int8(): pa.int64(),
    pa.int32(): pa.int64(),
    pa.float32(): pa.float64(),
    pa.decimal128(9, 2): pa.decimal128(38, 20),
}
_PLAIN = (
    *_WIDER,
    pa.bool_(),
    pa.int16(),
    pa.int64(),
    pa.float64(),
    pa.string(),
    pa.binary(),
    pa.date32(),
    pa.timestamp("us", tz="UTC"),
    pa.timestamp("us"),
    pa.duration("us"),
    pa.time64("ns"),
)


def _random_field(rng: Random, name: str, depth: int) -> pa.Field:
    choices = ("plain", "plain", "list", "map", "struct") if depth else ("plain",)
    choice = rng.choice(choices)
    kind = rng.choice(_PLAIN)
    if choice == "list":
        kind = pa.list_(_random_field(rng, "element", depth - 1))
    elif choice == "map":
        key = pa.field("key", rng.choice((pa.string(), pa.int32())), nullable=False)
        kind = pa.map_(key, _random_field(rng, "value", depth - 1))
    elif choice == "struct":
        kind = pa.struct([_random_field(rng, name, depth - 1) for name in ("a", "ü b")])
    return pa.field(name, kind, nullable=rng.random() < 0.7)


def _random_cell(rng: Random, field: pa.Field) -> Any:
    kind = field.type
    if field.nullable and rng.random() < 0.2:
        return None
    if pa.types.is_list(kind):
        return [_random_cell(rng, kind.value_field) for _ in range(rng.randrange(4))]
    if pa.types.is_map(kind):
        fields = (kind.key_field, kind.item_field)
        return [tuple(_random_cell(rng, each) for each in fields) for _ in range(rng.randrange(3))]
    if pa.types.is_struct(kind):
        return {each.name: _random_cell(rng, each) for each in kind}
    if pa.types.is_string(kind):
        return "ä" * rng.randrange(9)
    if pa.types.is_binary(kind):
        return rng.randbytes(rng.randrange(20))
    if pa.types.is_boolean(kind):
        return rng.random() < 0.5
    return rng.randrange(100)


def _random_schemas() -> list[StreamSchema]:
    rng = Random(4)
    plain = [pa.field(f"c{index}", kind) for index, kind in enumerate(_PLAIN)]
    return [StreamSchema.of(pa.schema(plain))] + [
        StreamSchema.of(pa.schema([_random_field(rng, name, 3) for name in "xyz"]))
        for _ in range(_RANDOM_SCHEMAS)
    ]


def _grown(field: pa.Field) -> pa.Field:
    """A field that has widened, and what is in it."""
    kind = field.type
    if pa.types.is_list(kind):
        kind = pa.list_(_grown(kind.value_field))
    elif pa.types.is_map(kind):
        kind = pa.map_(kind.key_field, _grown(kind.item_field))
    elif pa.types.is_struct(kind):
        kind = pa.struct([*map(_grown, kind), pa.field("added", pa.string())])
    return pa.field(field.name, _WIDER.get(kind, kind), nullable=True)


_SCHEMAS = _random_schemas()
_GROWN = [StreamSchema.of(pa.schema(map(_grown, schema.arrow))) for schema in _SCHEMAS]


def columns_corpus() -> list[bytes]:
    rng = Random(5)
    corpus = []
    for index, schema in enumerate(_SCHEMAS):
        for count, compression in ((3, "none"), (40, "none"), (40, rng.choice(("lz4", "zstd")))):
            columns = [
                pa.array([_random_cell(rng, field) for _ in range(count)], field.type)
                for field in schema.arrow
            ]
            batch = pa.RecordBatch.from_arrays(columns, schema=schema.arrow)
            encoded = encode_columns(
                batch, schema, stream_id=1, timestamp_ms=5, compression=compression
            )
            corpus.append(bytes([index]) + encoded)
    return corpus


def check_columns(data: bytes) -> None:
    if not data:
        return
    index = data[0] % len(_SCHEMAS)
    schema, grown = _SCHEMAS[index], _GROWN[index]
    try:
        envelope = replace(
            decode_envelope(data[1:]),
            encoding="columns",
            schema_fingerprint=schema.fingerprint,
        )
    except RecordBatchError:
        return
    with suppress(RecordBatchError):
        some = decode_columns(envelope, schema, schema.arrow.names[1:2])
        assert some.num_rows == envelope.record_count
        _use(some)
    try:
        batch = decode_columns(envelope, schema)
    except RecordBatchError:
        return
    assert batch.num_rows == envelope.record_count
    _use(batch)
    mapped = map_columns(batch, grown.arrow)
    mapped.validate(full=True)
    encode_columns(batch.slice(batch.num_rows // 2), schema, stream_id=1, timestamp_ms=0)


def _use(batch: pa.RecordBatch) -> None:
    assert (record_sizes(batch) >= 0).all()
    batch.take(pa.array([batch.num_rows - 1])).serialize()


def schema_corpus() -> list[bytes]:
    foreign = pa.schema(
        [
            pa.field("d", pa.dictionary(pa.int32(), pa.string())),
            pa.field("u", pa.dense_union([pa.field("a", pa.int8())])),
            pa.field("e", pa.uuid(), metadata={"a": "b"}),
            pa.field("l", pa.large_list(pa.int8())),
        ],
        metadata={"k": "v"},
    )
    schemas = [schema.encode() for schema in (*_SCHEMAS, *_GROWN)]
    return [*schemas, *(pa.schema([each]).serialize().to_pybytes() for each in foreign)]


def check_schema(data: bytes) -> None:
    try:
        schema = decode_stream_schema(data)
    except SchemaError:
        return
    again = decode_stream_schema(schema.encode())
    assert (again, again.fingerprint) == (schema, schema.fingerprint)
    for other in _SCHEMAS[:3]:
        with suppress(SchemaError):
            merged = merge_schemas(other, schema)
            assert merge_schemas(merged, schema) == merged
