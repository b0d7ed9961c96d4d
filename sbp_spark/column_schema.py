"""Columns of a DataFrame as columns of typed streams, and the column that a source adds."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Final

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    CalendarIntervalType,
    CharType,
    DataType,
    DateType,
    GeographyType,
    GeometryType,
    IntegerType,
    IntegralType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    UserDefinedType,
    VarcharType,
    VariantType,
    YearMonthIntervalType,
)

from sbp_core.errors import ConfigurationError, SchemaError
from sbp_core.records import StreamSchema, find_column, maybe_statistics_type
from sbp_spark.logical_types import is_kept, logical_arrow_schema, logical_spark_schema
from sbp_spark.options.sink_targets import ColumnOptions
from sbp_spark.spark_internals import CHAR_VARCHAR_KEY

METADATA_COLUMN: Final = "_metadata"
"""The name of the column with the place and the time of a record."""
METADATA_FIELD: Final = StructField(
    METADATA_COLUMN,
    StructType(
        [
            StructField("stream", StringType()),
            StructField("stream_id", LongType()),
            StructField("range_index", IntegerType()),
            StructField("offset", LongType()),
            StructField("timestamp", TimestampType()),
        ]
    ),
)
"""The column that says where a record was, and its time."""

_REMEDIES: Final[dict[type[DataType], str]] = {
    VariantType: "convert it to a string, for example with to_json",
    GeometryType: "convert it to binary, for example with st_asbinary",
    GeographyType: "convert it to binary, for example with st_asbinary",
    CalendarIntervalType: "split it into columns of months, days and microseconds",
    YearMonthIntervalType: "convert it to a number of months",
    NullType: "which says nothing about values: cast it to the type that it is to have",
}
_ROUTING_TYPES: Final = (StringType, BinaryType, IntegralType, BooleanType, DateType)


def written_columns(schema: StructType, columns: ColumnOptions) -> StreamSchema:
    """Return the schema that a stream needs for a DataFrame.

    Raises ConfigurationError naming all columns that cannot be written, or that options name and
    that cannot be what they say.
    """
    fields = [_with_length(field) for field in schema]
    given, faults = _converted(fields)
    faults += [
        f"column {field.name} has the name of the column that a source adds, with another"
        " type, and could not be read back; rename it, or drop it"
        for field in fields
        if field.name.lower() == METADATA_COLUMN
    ]
    faults += _option_faults(
        fields,
        "routingColumn",
        columns.routing_column,
        "a string, binary, integer, boolean or date",
        lambda kind: isinstance(kind, _ROUTING_TYPES),
    )
    faults += _option_faults(
        fields,
        "timestampColumn",
        columns.timestamp_column,
        "a timestamp with a time zone",
        lambda kind: isinstance(kind, TimestampType),
    )
    if given is not None:
        found = (_maybe_stats_fault(given.arrow, path) for path in columns.stats_columns)
        faults += [fault for fault in found if fault is not None]
    if faults or given is None:
        lines = "\n".join(f"  - {fault}" for fault in faults)
        raise ConfigurationError(f"the sbp sink cannot write these columns:\n{lines}")
    return given


def _with_length(field: StructField) -> StructField:
    """Return a column of `char` or `varchar`, at any level, as Spark has it without their types."""
    plain = _without_length(field.dataType)
    if plain == field.dataType:
        return field
    metadata = {**(field.metadata or {}), CHAR_VARCHAR_KEY: field.dataType.simpleString()}
    return StructField(field.name, plain, field.nullable, metadata)


def _without_length(kind: DataType) -> DataType:
    match kind:
        case CharType() | VarcharType():
            return StringType()
        case ArrayType():
            return ArrayType(_without_length(kind.elementType), kind.containsNull)
        case MapType():
            key, value = _without_length(kind.keyType), _without_length(kind.valueType)
            return MapType(key, value, kind.valueContainsNull)
        case StructType():
            fields = [
                StructField(each.name, _without_length(each.dataType), each.nullable, each.metadata)
                for each in kind
            ]
            return StructType(fields)
    return kind


def _converted(fields: list[StructField]) -> tuple[StreamSchema | None, list[str]]:
    """Return the possible columns, and the faults of the others."""
    faults = []
    possible = []
    for field in fields:
        found = _type_faults(field.dataType, field.name)
        faults += found
        if not found:
            possible.append(field)
    if not possible and faults:
        return None, faults
    try:
        return StreamSchema.of(logical_arrow_schema(StructType(possible))), faults
    except SchemaError as error:
        return None, [*faults, *error.faults]


def _type_faults(kind: DataType, place: str) -> list[str]:
    """Return the faults of a column's type."""
    if isinstance(kind, UserDefinedType):
        if is_kept(kind):
            return []
        name = type(kind).__name__
        parts = "make columns of its parts, for example with a udf"
        return [f"column {place} has the user-defined type {name}, which no stream has; {parts}"]
    if isinstance(kind, ArrayType):
        return _type_faults(kind.elementType, f"{place}.element")
    if isinstance(kind, MapType):
        keys = _type_faults(kind.keyType, f"{place}.key")
        return keys + _type_faults(kind.valueType, f"{place}.value")
    if isinstance(kind, StructType):
        found = (_type_faults(each.dataType, f"{place}.{each.name}") for each in kind)
        return [fault for faults in found for fault in faults]
    remedy = _REMEDIES.get(type(kind))
    if remedy is None:
        try:
            to_arrow_schema(StructType([StructField(place, kind)]), timezone="UTC")
        except PySparkException:
            remedy = "cast it, for example to a string"
    if remedy is None:
        return []
    return [f"column {place} has type {kind.simpleString()}, which no stream has; {remedy}"]


def _option_faults(
    fields: list[StructField],
    option: str,
    name: str | None,
    expected: str,
    is_possible: Callable[[DataType], bool],
) -> list[str]:
    """Return the faults of a column that an option names."""
    if name is None:
        return []
    kinds = {field.name: field.dataType for field in fields}
    if name not in kinds:
        folded = {each.lower(): each for each in kinds}
        near = difflib.get_close_matches(name.lower(), folded, n=1)
        hint = f"did you mean {folded[near[0]]}?" if near else f"there are {', '.join(kinds)}"
        return [f"option {option} names {name}, which is no column; {hint}"]
    if is_possible(kinds[name]):
        return []
    found = kinds[name].simpleString()
    remedy = "cast it, or name another column"
    return [f"option {option} names {name}, which has type {found}; expected {expected}: {remedy}"]


def _maybe_stats_fault(given: pa.Schema, path: str) -> str | None:
    """Return why the column that statsColumns names cannot have statistics; None if it can."""
    if "." in path and path.strip("`").lower() in map(str.lower, given.names):
        wrong = "which has a dot in its name, and such a column has no statistics"
        return f"option statsColumns names {path}, {wrong}; rename it, or leave it out"
    try:
        names, field = find_column(given, path.split("."))
    except SchemaError as error:
        return f"option statsColumns: {error}"
    found = ".".join(names)
    if maybe_statistics_type(given, found) is not None:
        return None
    (column,) = logical_spark_schema(pa.schema([field]))
    return (
        f"option statsColumns names {found}, which has type {column.dataType.simpleString()} and no"
        " statistics; expected a number, string without a collation, binary, boolean, date or"
        " timestamp, or a field of structs such as place.city: name another column"
    )


def without_metadata(schema: StructType) -> StructType:
    """Return the columns without `_metadata`, if that is a source's, or some of its fields."""
    return StructType(
        [
            field
            for field in schema
            if field.name != METADATA_COLUMN or not _is_of_source(field.dataType)
        ]
    )


def _is_of_source(kind: DataType) -> bool:
    if not isinstance(kind, StructType) or not isinstance(METADATA_FIELD.dataType, StructType):
        return False
    known = {field.name: field.dataType for field in METADATA_FIELD.dataType}
    return all(known.get(field.name) == field.dataType for field in kind)
