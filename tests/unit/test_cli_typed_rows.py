"""Columns as JSON, and the columns of files."""

from __future__ import annotations

import json
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from sbp_core.cli.file_schema import read_file_schema
from sbp_core.errors import ConfigurationError, RecordBatchError
from sbp_core.records import StreamSchema, encode_columns, split_envelopes
from sbp_core.records.json_values import describe_columns, describe_values
from sbp_core.records.stream_decoder import StreamDecoder

POINT = pa.struct([("x", pa.int8()), ("y", pa.struct([("z", pa.float32())]))])
UTC = pa.timestamp("us", tz="UTC")


@pytest.mark.parametrize(
    ("kind", "values", "shown"),
    [
        (pa.bool_(), [True], [True]),
        (pa.int64(), [-(2**63)], [-(2**63)]),
        (pa.float64(), [0.5, float("nan"), float("-inf")], [0.5, "nan", "-inf"]),
        (pa.float32(), [0.1, 1e-30, float("inf")], [0.1, 1e-30, "inf"]),
        (pa.decimal128(10, 2), [Decimal("1.50")], ["1.50"]),
        (pa.decimal128(38, 10), [Decimal("0E-10")], ["0.0000000000"]),
        (pa.string(), ["\u00fc"], ["\u00fc"]),
        (pa.binary(), [b"a", b"\xff"], ["a", {"base64": "/w=="}]),
        (pa.date32(), [1, 2**30], ["1970-01-02", 2**30]),
        (UTC, [1_500_000, 2**62], ["1970-01-01T00:00:01.500000+00:00", 2**62]),
        (pa.timestamp("us"), [-1], ["1969-12-31T23:59:59.999999"]),
        (pa.time64("ns"), [86_399_000_000_001], ["23:59:59.000000001"]),
        (pa.duration("us"), [-5], [-5]),
        (pa.list_(pa.date32()), [[1, None], []], [["1970-01-02", None], []]),
        (POINT, [{"x": 1, "y": {"z": 0.5}}, {"x": None, "y": None}], None),
        (pa.map_(pa.string(), pa.int32()), [{"a": 1, "b": None}, {}], None),
        (pa.map_(pa.int32(), pa.date32()), [[(1, 1)]], [[[1, "1970-01-02"]]]),
    ],
    ids=str,
)
def test_values_of_all_types(kind, values, shown):
    shown = values if shown is None else shown
    array = pa.array(values, pa.int64()) if type(values[0]) is int else pa.array(values, kind)
    if pa.types.is_date(kind):
        array = array.cast(pa.int32())
    array = pa.concat_arrays([array.cast(kind), pa.nulls(1, kind), array.cast(kind)])
    assert describe_values(array) == [*shown, None, *shown]
    assert describe_values(array.slice(len(shown))) == [None, *shown]
    assert describe_values(array.slice(1, len(shown))) == [*shown[1:], None]
    json.dumps(describe_values(array), allow_nan=False)


def test_rows_are_objects():
    rows = pa.record_batch({"a": pa.array([1, 2]), "b c": pa.array(["x", None])})
    assert list(describe_columns(rows)) == [{"a": 1, "b c": "x"}, {"a": 2, "b c": None}]


def one_column_batches(*schemas: StreamSchema) -> list[bytes]:
    """Return a batch of one record in each schema."""
    batches = []
    for offset, schema in enumerate(schemas):
        rows = pa.RecordBatch.from_arrays([pa.array([5], pa.int32())], schema=schema.arrow)
        options = {"stream_id": 7, "timestamp_ms": 1, "base_offset": offset}
        batches.append(encode_columns(rows, schema, **options))
    return batches


def test_a_batch_of_columns_that_names_no_schema_is_damaged():
    schema = StreamSchema.of(pa.schema([("a", pa.int32())]))
    (envelope,) = split_envelopes(memoryview(one_column_batches(schema)[0]))
    with pytest.raises(RecordBatchError):
        StreamDecoder(7, 0).decode(replace(envelope, schema_fingerprint=None))


GIVEN = pa.schema(
    [
        pa.field("a", pa.dictionary(pa.int8(), pa.large_string()), nullable=False),
        pa.field("b", pa.large_list(pa.timestamp("ms", tz="Europe/Paris"))),
        pa.field("c", pa.struct([pa.field("d", pa.uint32(), nullable=False)])),
        pa.field("e", pa.map_(pa.string(), pa.timestamp("ms"))),
        pa.field("f", pa.date32()),
    ]
)
FOUND = pa.schema(
    [
        pa.field("a", pa.string(), nullable=False),
        pa.field("b", pa.list_(pa.timestamp("us", tz="UTC"))),
        pa.field("c", pa.struct([pa.field("d", pa.int64(), nullable=False)])),
        pa.field("e", pa.map_(pa.string(), pa.timestamp("us"))),
        pa.field("f", pa.date32()),
    ]
)


@pytest.mark.parametrize("make", [pa.ipc.new_file, pa.ipc.new_stream, pq.ParquetWriter])
def test_the_columns_of_a_file_are_those_that_spark_writes(tmp_path, make):
    path = tmp_path / "table"
    with make(str(path), GIVEN) as writer:
        writer.write_table(GIVEN.empty_table())
    assert StreamSchema.of(read_file_schema(path)) == StreamSchema.of(FOUND)


LOCAL = pa.timestamp("us")
TIMES = pa.schema(
    [
        ("at", LOCAL),
        ("list", pa.list_(pa.field("element", pa.struct([("in.side", LOCAL)])))),
        ("map", pa.map_(pa.date32(), LOCAL)),
        ("id", pa.binary(16)),
        ("pair", pa.list_(pa.binary(2), 2)),
        ("last", pa.dictionary(pa.int8(), pa.string())),
    ]
)


@pytest.mark.parametrize(
    ("is_int96", "kind"), [(True, pa.timestamp("us", tz="UTC")), (False, LOCAL)]
)
def test_times_of_a_parquet_file_are_in_utc_where_spark_has_them_so(tmp_path, is_int96, kind):
    path = tmp_path / "table"
    pq.write_table(TIMES.empty_table(), path, use_deprecated_int96_timestamps=is_int96)
    expected = pa.schema(
        [
            ("at", kind),
            ("list", pa.list_(pa.field("element", pa.struct([("in.side", kind)])))),
            ("map", pa.map_(pa.date32(), kind)),
            ("id", pa.binary()),
            ("pair", pa.list_(pa.binary())),
            ("last", pa.string()),
        ]
    )
    assert StreamSchema.of(read_file_schema(path)) == StreamSchema.of(expected)


def test_some_times_of_a_parquet_file_are_in_utc(tmp_path):
    path = tmp_path / "table"
    mixed = pa.schema([("zoned", UTC), ("local", LOCAL), ("n", pa.int64())])
    pq.write_table(mixed.empty_table(), path)
    assert StreamSchema.of(read_file_schema(path)).arrow == mixed


@pytest.mark.parametrize("data", [b"", b"PAR1", b"ARROW1", b"lines\n" * 9])
def test_other_files_have_no_columns(tmp_path, data):
    path = tmp_path / "table"
    path.write_bytes(data)
    with pytest.raises(ConfigurationError, match="table cannot be read"):
        read_file_schema(path)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_file_schema(tmp_path / "nothing")
