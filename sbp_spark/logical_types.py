"""Spark's types as Arrow's, with a logical type where Arrow's alone says less, and back.

A field without a logical type is the widest of the types that are equal in Arrow: a string is of
the collation UTF8_BINARY, a duration an interval of days to seconds, a time one of nanoseconds.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql.pandas.types import (
    from_arrow_schema,
    from_arrow_type,
    to_arrow_schema,
    to_arrow_type,
)
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DayTimeIntervalType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimeType,
    UserDefinedType,
)

from sbp_core.records import maybe_logical_type, with_logical_type
from sbp_spark.spark_internals import CHAR_VARCHAR_KEY

_NANOSECONDS: Final = TimeType(9)
_WIDEST: Final = (StringType(), DayTimeIntervalType(), _NANOSECONDS)
_USER_DEFINED: Final = {
    f"org.apache.spark.{package}.linalg.{name}": (f"pyspark.{package}.linalg", name)
    for package in ("ml", "mllib")
    for name in ("VectorUDT", "MatrixUDT")
}
"""Spark's own types by their classes in Scala, with those in Python. No other class is loaded
because a schema names it: a writer to a stream could choose the code that its readers run."""

_COLLATED: Final = re.compile(r"string collate (\w+)", re.ASCII)
_TIME: Final = re.compile(r"time\(([0-9])\)")
_INTERVAL: Final = re.compile(r"interval (day|hour|minute|second)(?: to (hour|minute|second))?")
_CHAR_OR_VARCHAR: Final = re.compile(r".*\b(var)?char\([0-9]+\).*")
_UNITS: Final = ("day", "hour", "minute", "second")


def is_kept(kind: UserDefinedType) -> bool:
    """Whether readers get a user-defined type back."""
    return kind.scalaUDT() in _USER_DEFINED


def logical_arrow_schema(schema: StructType) -> pa.Schema:
    """Return columns as Arrow's, with their logical types.

    Raises PySparkException for a type that Arrow has not.
    """
    converted = to_arrow_schema(schema, timezone="UTC")
    return pa.schema(
        [
            _with_logical(arrow, field.dataType, field.metadata.get(CHAR_VARCHAR_KEY))
            for arrow, field in zip(converted, schema, strict=True)
        ]
    )


def logical_spark_schema(schema: pa.Schema) -> StructType:
    """Return columns as Spark's; a logical type that is not known here is as if there were none."""
    return StructType([_spark_field(field) for field in schema])


def is_kept_by_arrow(schema: StructType) -> bool:
    """Whether Spark, shown the columns in Arrow alone, finds the same schema, metadata included."""
    return from_arrow_schema(logical_arrow_schema(schema)) == schema


def _with_logical(arrow: pa.Field, kind: DataType, text: str | None = None) -> pa.Field:
    inner = arrow.type
    match kind:
        case StructType():
            fields = zip(inner, kind, strict=True)
            inner = pa.struct([_with_logical(each, field.dataType) for each, field in fields])
        case ArrayType():
            inner = pa.list_(_with_logical(inner.value_field, kind.elementType))
        case MapType():
            key = _with_logical(inner.key_field, kind.keyType)
            inner = pa.map_(key, _with_logical(inner.item_field, kind.valueType))
        case UserDefinedType():
            text = kind.scalaUDT()
        case StringType() | DayTimeIntervalType() | TimeType() if kind not in _WIDEST:
            text = kind.simpleString()
    return with_logical_type(pa.field(arrow.name, inner, arrow.nullable), text)


def _spark_field(field: pa.Field) -> StructField:
    text = maybe_logical_type(field) or ""
    metadata = {CHAR_VARCHAR_KEY: text} if _CHAR_OR_VARCHAR.fullmatch(text) else None
    return StructField(field.name, _spark_type(field), field.nullable, metadata)


def _spark_type(field: pa.Field) -> DataType:
    kind = field.type
    logical = _maybe_parsed(maybe_logical_type(field) or "")
    if logical is not None and to_arrow_type(logical, timezone="UTC") == kind:
        return logical
    if pa.types.is_struct(kind):
        return StructType([_spark_field(each) for each in kind])
    if pa.types.is_map(kind):
        key, value = _spark_type(kind.key_field), _spark_type(kind.item_field)
        return MapType(key, value, kind.item_field.nullable)
    if pa.types.is_list(kind):
        return ArrayType(_spark_type(kind.value_field), kind.value_field.nullable)
    return _NANOSECONDS if pa.types.is_time64(kind) else from_arrow_type(kind)


def _maybe_parsed(text: str) -> DataType | None:
    """Return the type that a logical type stands for, None if it is not known here."""
    if text in _USER_DEFINED:
        module, name = _USER_DEFINED[text]
        found = getattr(importlib.import_module(module), name)()
        assert isinstance(found, DataType)
        return found
    if match := _COLLATED.fullmatch(text):
        return StringType(match[1])
    if match := _TIME.fullmatch(text):
        return TimeType(int(match[1]))
    if match := _INTERVAL.fullmatch(text):
        return DayTimeIntervalType(_UNITS.index(match[1]), _UNITS.index(match[2] or match[1]))
    return None


def retyped(array: pa.Array, target: pa.DataType) -> pa.Array:
    """Return an array as one of a type that differs in time zones and names only, without a copy.

    A struct that is null may have a null in a field that is required where the struct is not: in
    the rows that a left join found no partner for. Arrow's own cast refuses those.
    """
    kind = array.type
    if kind == target:
        return array
    if pa.types.is_struct(target):
        children = _retyped_fields(array, list(target))
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(children, fields=list(target), mask=mask)
    if pa.types.is_map(target):
        fields = [target.key_field, target.item_field]
        parts = _retyped_fields(array.values, fields)
        return _with_child(array, target, pa.StructArray.from_arrays(parts, fields=fields))
    if pa.types.is_list(target):
        return _with_child(array, target, retyped(array.values, target.value_type))
    return array.cast(target)


def _retyped_fields(array: pa.StructArray, fields: Sequence[pa.Field]) -> list[pa.Array]:
    return [retyped(array.field(index), field.type) for index, field in enumerate(fields)]


def _with_child(array: pa.Array, target: pa.DataType, child: pa.Array) -> pa.Array:
    validity, offsets = array.buffers()[:2]
    return pa.Array.from_buffers(
        target, len(array), [validity, offsets], array.null_count, array.offset, [child]
    )
