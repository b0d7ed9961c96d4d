"""Columns: what the source gives to Spark, and what the sink takes from it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from sbp_core.errors import ConfigurationError
from sbp_spark.logical_types import logical_arrow_schema
from sbp_spark.selection import check_selection, ddl, exactly

_HEADERS: Final = StructField("headers", MapType(StringType(), BinaryType()))
_SOURCE_FIELDS: Final = (
    StructField("stream", StringType(), nullable=False),
    StructField("stream_id", LongType(), nullable=False),
    StructField("range_index", IntegerType(), nullable=False),
    StructField("offset", LongType(), nullable=False),
    StructField("timestamp", TimestampType()),
    StructField("key", BinaryType()),
    StructField("value", BinaryType()),
)

_SINK_COLUMNS: Final = {
    "value": "string or binary",
    "key": "string or binary",
    "headers": "map<string,binary>",
    "timestamp": "timestamp",
    "stream": "string or bigint",
    "stream_id": "bigint or string",
}
_STREAM_COLUMNS: Final = ("stream", "stream_id")
_POSITION_COLUMNS: Final = frozenset({"range_index", "offset"})
"""Where a record of a source was: not written, so that a source's DataFrame can be written back."""


def source_schema(*, include_headers: bool) -> StructType:
    """Return the columns of the source as Spark sees them.

    Where a record was is always known; Spark then need not look for nulls in each row.
    """
    fields = [*_SOURCE_FIELDS, _HEADERS] if include_headers else list(_SOURCE_FIELDS)
    return StructType(fields)


def source_arrow_schema(schema: StructType) -> pa.Schema:
    """Return columns of the source as Spark demands them of Arrow batches."""
    return logical_arrow_schema(schema)


def check_source_schema(given: StructType, *, include_headers: bool) -> None:
    """Raise ConfigurationError, naming all faults, unless the source has these columns.

    They may be any of its columns, in any order, and key and value may be strings;
    `include_headers` demands that headers are there.
    """
    faults = []
    if include_headers and "headers" not in map(str.lower, given.names):
        faults.append("column headers is left out, but the option includeHeaders asks for it")
    there = source_schema(include_headers=True)
    check_selection(given, there, check=_exactly_or_as_string, more_faults=faults)


def _exactly_or_as_string(given: StructField, there: StructField, path: str) -> Iterator[str]:
    """Yield a fault unless a column is asked for as it is, or its bytes as the string they are.

    The sink takes both, so a table that Spark makes of what was written may have either.
    """
    is_binary = there.dataType == BinaryType()
    if not (is_binary and given.nullable and given.dataType == StringType()):
        yield from exactly(given, there, path)


def check_sink_schema(schema: StructType, *, is_stream_given: bool) -> None:
    """Raise ConfigurationError, naming all faults, unless rows of `schema` can be written.

    `is_stream_given`: the option `stream` says where all rows go, so no column has to.
    """
    faults = [*_column_faults(schema), *_missing_columns(schema, is_stream_given=is_stream_given)]
    if faults:
        lines = "\n".join(f"  - {fault}" for fault in faults)
        raise ConfigurationError(f"the sbp sink cannot write these columns:\n{lines}")


def _column_faults(schema: StructType) -> list[str]:
    faults = []
    seen: set[str] = set()
    for field in schema.fields:
        found = field.dataType.simpleString()
        if field.name in seen:
            faults.append(f"column {field.name} stands there twice; drop one of them")
        elif field.name in _POSITION_COLUMNS:
            pass
        elif field.name not in _SINK_COLUMNS:
            faults.append(
                f"column {field.name} ({found}) would be lost; expected only"
                f" {', '.join(_SINK_COLUMNS)}: put it into value, for example with"
                " to_json(struct(...)), or drop it"
            )
        elif not _is_writable(field.name, field.dataType):
            faults.append(
                f"column {field.name} has type {found}; expected {_SINK_COLUMNS[field.name]}:"
                f" {_remedy(field.name)}"
            )
        seen.add(field.name)
    return faults


def _missing_columns(schema: StructType, *, is_stream_given: bool) -> list[str]:
    names = set(schema.fieldNames())
    faults = []
    if "value" not in names:
        faults.append(
            f"column value is missing among ({ddl(schema)}); expected string or binary: name or"
            " build one, for example with to_json(struct(...))"
        )
    if names.isdisjoint(_STREAM_COLUMNS) and not is_stream_given:
        faults.append(
            f"column stream is missing among ({ddl(schema)}), and so is the option stream;"
            ' expected one of them: add .option("stream", "name"), or a column that names the'
            " stream of each row"
        )
    return faults


def _is_writable(name: str, found: DataType) -> bool:
    if name == "timestamp":
        return isinstance(found, TimestampType)
    if name == "headers":
        return (
            isinstance(found, MapType)
            and isinstance(found.keyType, StringType)
            and isinstance(found.valueType, BinaryType)
        )
    if name in _STREAM_COLUMNS:
        return isinstance(found, StringType | LongType | IntegerType | ShortType)
    return isinstance(found, StringType | BinaryType)


def _remedy(name: str) -> str:
    if name not in {"key", "value"}:
        of_cast = _SINK_COLUMNS[name].partition(" or ")[0]
        return f"cast it, for example .cast('{of_cast}'), or drop it"
    return "cast it to one of them, or encode it, for example with to_json"
