"""Which schemas a stream can have, in one form, and which bytes are one."""

import hashlib
import struct

import flatbuffers
import pyarrow as pa
import pytest

from sbp_core import limits
from sbp_core.errors import SchemaError
from sbp_core.records import (
    StreamSchema,
    decode_columns,
    decode_envelope,
    decode_stream_schema,
    encode_columns,
    field_text,
    map_columns,
    maybe_logical_type,
    merge_schemas,
    schema_text,
    with_logical_type,
)

ALL = {
    "b": (pa.bool_(), "bool"),
    "i8": (pa.int8(), "int8"),
    "i16": (pa.int16(), "int16"),
    "i32": (pa.int32(), "int32"),
    "i64": (pa.int64(), "int64"),
    "f32": (pa.float32(), "float32"),
    "f64": (pa.float64(), "float64"),
    "dec": (pa.decimal128(38, 0), "decimal(38, 0)"),
    "s": (pa.string(), "string"),
    "bin": (pa.binary(), "binary"),
    "d": (pa.date32(), "date"),
    "ts": (pa.timestamp("us", tz="UTC"), "timestamp"),
    "local": (pa.timestamp("us"), "timestamp_ntz"),
    "took": (pa.duration("us"), "duration"),
    "t": (pa.time64("ns"), "time"),
    "l": (pa.list_(pa.int8()), "list<int8>"),
    "m": (pa.map_(pa.string(), pa.int8()), "map<string, int8>"),
    "st": (pa.struct([pa.field("a b", pa.int8(), nullable=False)]), 'struct<"a b" int8 not null>'),
}


def of(*fields, **types):
    return StreamSchema.of(pa.schema([*fields, *types.items()]))


def refused(*fields, **types):
    with pytest.raises(SchemaError) as caught:
        of(*fields, **types)
    first, *faults = str(caught.value).split("\n")
    assert first == "a stream cannot have this schema:"
    return [fault.removeprefix("  - ") for fault in faults]


def test_every_type_that_a_stream_can_have():
    schema = of(**{name: kind for name, (kind, _) in ALL.items()})
    assert decode_stream_schema(schema.encode()) == schema
    assert schema_text(schema.arrow) == ", ".join(
        f"{name} {text}" for name, (_, text) in ALL.items()
    )


@pytest.mark.parametrize(
    "kind",
    [
        pa.uint8(),
        pa.float16(),
        pa.decimal256(10, 2),
        pa.large_string(),
        pa.large_binary(),
        pa.binary(5),
        pa.string_view(),
        pa.date64(),
        pa.time32("ms"),
        pa.time64("us"),
        pa.duration("ns"),
        pa.month_day_nano_interval(),
        pa.large_list(pa.int8()),
        pa.list_(pa.int8(), 3),
        pa.list_view(pa.int8()),
        pa.dictionary(pa.int32(), pa.string()),
        pa.dense_union([pa.field("a", pa.int8())]),
        pa.run_end_encoded(pa.int32(), pa.int8()),
        pa.uuid(),
    ],
)
def test_types_that_a_stream_cannot_have(kind):
    (fault,) = refused(x=pa.list_(pa.struct({"y": kind})))
    assert fault.startswith(f"column x.element.y has type {kind}, which a stream cannot have; cast")
    with pytest.raises(SchemaError):
        decode_stream_schema(pa.schema([("x", kind)]).serialize().to_pybytes())


def test_an_error_gives_the_remedy_where_it_is_known():
    (fault,) = refused(x=pa.null())
    assert (
        "type null, which has no values; cast it to the type that the column should have" in fault
    )
    for kind in (pa.timestamp("ns"), pa.timestamp("us", tz="Europe/Berlin"), pa.timestamp("s")):
        (fault,) = refused(x=kind)
        assert "but streams keep microseconds, in UTC or without a zone; cast it" in fault


@pytest.mark.parametrize(("precision", "scale"), [(2, 5), (5, -2)])
def test_scales_that_spark_has_not(precision, scale):
    assert refused(x=pa.decimal128(precision, scale)) == [
        f"column x is decimal({precision}, {scale}); a scale is from 0 to the precision"
    ]


def test_all_faults_are_named():
    twice = [pa.field("a", pa.int8()), pa.field("A", pa.int8()), pa.field("a", pa.int8())]
    assert refused(*twice, pa.field("", pa.int8()), pa.field("s", pa.struct([]))) == [
        "column A differs from a by case only; rename one of them",
        "column a occurs twice; rename one of them",
        "a column of the schema has no name",
        "column s is a struct without fields; leave it out",
    ]
    assert refused() == ["there is no column"]
    assert refused(s=pa.struct([pa.field("", pa.int8())])) == ["a column of s has no name"]


def test_the_first_of_very_many_faults_are_named():
    faults = refused(**{f"c{index}": pa.uint8() for index in range(500)})
    assert len(faults) == 21
    assert faults[19].startswith("column c19 has type uint8")
    assert faults[20] == "and 480 more like these"


def test_names_have_a_limit():
    longest = "ä" * (limits.SCHEMA_NAME_BYTES_MAX // 2)
    assert decode_stream_schema(of(pa.field(longest, pa.int8())).encode()).arrow.names == [longest]
    (fault,) = refused(pa.field(longest + "x", pa.int8()))
    assert fault == "a column has a name of 1025 bytes; at most 1024 are allowed"


def test_schemas_have_a_limit_of_bytes():
    fields = [pa.field(f"{index:04}".ljust(1000, "x"), pa.int8()) for index in range(1100)]
    (fault,) = refused(*fields)
    assert "bytes to describe it; at most 1048576 are allowed: shorten the names" in fault


def test_metadata_and_the_names_of_children_do_not_matter():
    spark = of(l=pa.list_(pa.field("element", pa.int8())), m=pa.map_(pa.string(), pa.int8()))
    entries = pa.map_(pa.field("k", pa.string(), nullable=False), pa.field("v", pa.int8()))
    other = pa.schema(
        [
            pa.field("l", pa.list_(pa.field("item", pa.int8())), metadata={"a": "b"}),
            pa.field("m", entries),
        ],
        metadata={"c": "d"},
    )
    made = StreamSchema.of(other)
    assert made == spark
    assert (made.fingerprint, made.encode()) == (spark.fingerprint, spark.encode())
    assert made.arrow.equals(spark.arrow, check_metadata=True)


def logical(name, kind, text, **options):
    return with_logical_type(pa.field(name, kind, **options), text)


def test_a_field_keeps_its_logical_type_wherever_it_is():
    inner = logical("x", pa.time64("ns"), "time(0)", nullable=False)
    key = logical("key", pa.string(), "string collate UNICODE", nullable=False)
    value = logical("value", pa.list_(logical("element", pa.duration("us"), "interval day")), "l")
    made = of(logical("s", pa.struct([inner]), "point"), pa.field("m", pa.map_(key, value)))
    text = (
        's struct<x time as "time(0)" not null> as "point"\n'
        'm map<string as "string collate UNICODE",'
        ' list<duration as "interval day"> as "l">'
    )
    assert "\n".join(map(field_text, made.arrow)) == text
    assert made.fingerprint == hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    found = decode_stream_schema(made.encode())
    assert found == made
    assert maybe_logical_type(found.arrow.field("m").type.key_field) == "string collate UNICODE"


def test_schemas_that_differ_in_a_logical_type_alone_differ():
    plain = of(l=pa.list_(pa.int8()))
    other = of(l=pa.list_(logical("element", pa.int8(), "flag")))
    assert plain != other
    assert plain.fingerprint != other.fingerprint
    assert len({plain, other, of(l=pa.list_(pa.int8()))}) == 2


@pytest.mark.parametrize("text", ["", 'a"b', "a\\b", "a\nb", "ä", b"\xff", "x" * 257])
def test_logical_types_are_short_plain_texts(text):
    (fault,) = refused(pa.field("x", pa.int8(), metadata={"logical_type": text}))
    assert fault.startswith("column x has the logical type")
    assert "expected 1 to 256 printable characters" in fault


@pytest.mark.parametrize(
    "other",
    [
        {"a": pa.int8(), "b": pa.list_(pa.field("element", pa.int8(), nullable=False))},
        {"b": pa.list_(pa.int8()), "a": pa.int8()},
        {"a": pa.int8(), "b": pa.list_(pa.int16())},
        {"a": pa.int8(), "B": pa.list_(pa.int8())},
        {"a": pa.int8()},
    ],
)
def test_every_difference_changes_the_fingerprint(other):
    schema = of(a=pa.int8(), b=pa.list_(pa.int8()))
    assert of(**other) != schema
    assert of(**other).fingerprint != schema.fingerprint


def test_fingerprints_are_those_of_the_protocol():
    """docs/reference/protocol.md documents them for other clients, so they never change."""
    inner = pa.struct([pa.field("x", pa.int32(), nullable=False), pa.field('é"\n', pa.string())])
    schema = of(
        pa.field("id", pa.int64(), nullable=False),
        pa.field("a b", pa.map_(pa.string(), pa.field("value", pa.list_(inner), nullable=False))),
        pa.field("price", pa.decimal128(9, 2)),
    )
    text = (
        "id int64 not null\n"
        '"a b" map<string, list<struct<x int32 not null, "\\u00e9\\"\\n" string>> not null>\n'
        "price decimal(9, 2)"
    )
    assert "\n".join(map(field_text, schema.arrow)) == text
    assert schema.fingerprint == hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    assert schema.fingerprint == "6f3febbd5f3c0a6ed686b42e1a17bece"


@pytest.mark.parametrize("nest", [pa.list_, lambda kind: pa.map_(pa.string(), kind)])
def test_the_deepest_schema_goes_all_the_way(nest):
    kind = pa.struct({"x": pa.int32()})
    for _ in range(limits.SCHEMA_DEPTH_MAX - 1):
        kind = nest(kind)
    schema = of(x=kind)
    assert decode_stream_schema(schema.encode()) == schema
    (fault,) = refused(x=nest(kind))
    assert "is nested too deep: 16 are allowed" in fault
    cell = {"x": 5}
    for _ in range(limits.SCHEMA_DEPTH_MAX - 1):
        cell = [("k", cell)] if pa.types.is_map(kind) else [cell]
    batch = pa.RecordBatch.from_arrays([pa.array([cell, None], kind)], schema=schema.arrow)
    decoded = decode_columns(decode_envelope(encoded(batch, schema)), schema)
    assert decoded.to_pylist() == [{"x": cell}, {"x": None}]
    wider = pa.struct({"x": pa.int64()})
    for _ in range(limits.SCHEMA_DEPTH_MAX - 1):
        wider = nest(wider)
    merged = merge_schemas(schema, of(x=wider))
    assert merged == of(x=wider)
    assert map_columns(decoded, merged.arrow).to_pylist() == decoded.to_pylist()


def encoded(batch, schema, compression="none"):
    return encode_columns(batch, schema, stream_id=1, timestamp_ms=0, compression=compression)


# Buffer that are no schema.


def table(builder, *slots):
    """Write a FlatBuffers table; each slot is (id, how to prepend it, value)."""
    builder.StartObject(8)
    for slot, prepend, value in slots:
        getattr(builder, f"Prepend{prepend}Slot")(slot, value, 0)
    return builder.EndObject()


def vector(builder, items):
    builder.StartVector(4, len(items), 4)
    for item in reversed(items):
        builder.PrependUOffsetTRelative(item)
    return builder.EndVector()


def bomb(*, name_bytes, width, depth):
    """One column that is nested, each level `width` times the one table below it."""
    builder = flatbuffers.Builder(0)
    name = builder.CreateString("x" * name_bytes)
    int_type = table(builder, (0, "Int32", 32), (1, "Bool", True))
    struct_type = table(builder)
    common = ((0, "UOffsetTRelative", name), (1, "Bool", True))
    field = table(
        builder,
        *common,
        (2, "Uint8", 2),
        (3, "UOffsetTRelative", int_type),
        (5, "UOffsetTRelative", vector(builder, [])),
    )
    for _ in range(depth):
        children = vector(builder, [field] * width)
        types = ((2, "Uint8", 13), (3, "UOffsetTRelative", struct_type))
        field = table(builder, *common, *types, (5, "UOffsetTRelative", children))
    header = table(builder, (1, "UOffsetTRelative", vector(builder, [field] * width)))
    builder.Finish(
        table(builder, (0, "Int16", 4), (1, "Uint8", 1), (2, "UOffsetTRelative", header))
    )
    metadata = bytes(builder.Output())
    metadata += bytes(-len(metadata) % 8)
    return struct.pack("<Ii", 0xFFFFFFFF, len(metadata)) + metadata


def test_the_smallest_bomb_is_no_bomb():
    schema = decode_stream_schema(bomb(name_bytes=1, width=1, depth=2))
    assert schema_text(schema.arrow) == "x struct<x struct<x int32>>"


@pytest.mark.parametrize(
    ("name_bytes", "width", "depth"),
    [(1, 2, 12), (1, 40, 4), (1, 12_000, 1), (1000, 1200, 0), (60_000, 3000, 0), (1, 1, 60)],
)
def test_a_few_bytes_do_not_become_millions_of_columns(name_bytes, width, depth):
    data = bomb(name_bytes=name_bytes, width=width, depth=depth)
    assert len(data) < limits.SCHEMA_BYTES_MAX
    with pytest.raises(SchemaError) as caught:
        decode_stream_schema(data)
    assert len(str(caught.value)) < 500


def test_only_one_message_of_a_schema_is_one():
    data = of(x=pa.int8()).encode()
    rows = pa.record_batch({"x": [1]}).serialize().to_pybytes()
    for other in (data + b"\0" * 8, data * 2, data[:-1], data[8:], data[:8], b"", rows):
        with pytest.raises(SchemaError):
            decode_stream_schema(other)
    with pytest.raises(SchemaError, match="a schema of 1048577 bytes; at most 1048576"):
        decode_stream_schema(bytes(limits.SCHEMA_BYTES_MAX + 1))


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        (pa.schema([("x", pa.int8())], metadata={"a": "b"}), "a schema with metadata"),
        (pa.schema([pa.field("x", pa.int8(), metadata={"a": "b"})]), "a schema with metadata"),
        (
            pa.schema([pa.field("x", pa.int8(), metadata={"logical_type": "a", "b": "c"})]),
            "a schema with metadata",
        ),
        (pa.schema([("x", pa.int8())], metadata={"logical_type": "a"}), "a schema with metadata"),
        (
            pa.schema([pa.field("x", pa.int8(), metadata={"logical_type": 'a"'})]),
            "has the logical type",
        ),
        (pa.schema([("x", pa.dictionary(pa.int8(), pa.string()))]), "of a dictionary"),
        (pa.schema([("x", pa.list_(pa.field("item", pa.int8())))]), "not in the form"),
        (pa.schema([("x", pa.map_(pa.string(), pa.int8(), keys_sorted=True))]), "not in the form"),
        (pa.schema([("x", pa.timestamp("us", tz="Etc/UTC"))]), "in UTC or without a zone"),
        (pa.schema([("x", pa.int8()), ("X", pa.int8())]), "by case only"),
    ],
)
def test_bytes_of_another_form_are_refused(given, fault):
    with pytest.raises(SchemaError, match=fault):
        decode_stream_schema(given.serialize().to_pybytes())
