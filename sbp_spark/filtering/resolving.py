"""Conditions and the columns of a source: whether they fit, and which columns have to be read.

A column is compared with values of its own type only. Spark then compares without a conversion, or
with a conversion that loses nothing. Floats are the exception: both sides compare them as doubles.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from decimal import Decimal
from functools import reduce
from typing import Final

import pyarrow as pa

from sbp_core.errors import ConfigurationError, SchemaError
from sbp_core.records import find_column, maybe_logical_type
from sbp_core.wording import listed
from sbp_spark.filtering.condition import (
    AllOf,
    AnyOf,
    Comparison,
    Condition,
    IsNull,
    Leaf,
    OneOf,
    Path,
    StartsWith,
    Value,
    leaves,
)

_EXACT_IN_FLOAT: Final = 1 << 24
_LISTED_SCALE_MAX: Final = 18
"""Spark gives a list of whole numbers 20 digits before the point, and a decimal has 38."""


@dataclass(frozen=True, slots=True)
class RowFilter:
    """A condition for rows, and the columns to read: the query's columns, and the condition's."""

    condition: Condition
    columns: pa.Schema


def row_filter(condition: Condition, wanted: pa.Schema, there: pa.Schema) -> RowFilter:
    """Return the filter for rows of a query of the columns `wanted`, which are some of `there`.

    Case of names does not matter. The columns of the query have its types, which may be wider.
    Raises ConfigurationError naming all columns that do not exist, or cannot be compared so.
    """
    faults: list[str] = []
    paths: dict[Path, Path] = {}
    columns = list(wanted)
    for path in dict.fromkeys(each.path for each in leaves(condition)):
        try:
            paths[path], _ = find_column(there, path)
        except SchemaError as error:
            faults.append(str(error))
        else:
            columns = _with(columns, list(there), paths[path])
    schema = pa.schema(columns)
    for leaf in leaves(condition):
        if leaf.path in paths:
            field = field_at(schema, paths[leaf.path])
            kind = maybe_logical_type(field) or field.type
            faults += [
                f"column {'.'.join(leaf.path)} of type {kind} {wrong}"
                for wrong in _mismatches(leaf, field)
            ]
    if faults:
        lines = "\n".join(f"  - {fault}" for fault in dict.fromkeys(faults))
        raise ConfigurationError(
            f"option where: it does not fit the columns ({listed(there.names)}):\n{lines}\n"
            "Correct it, or filter with df.where instead"
        )
    return RowFilter(_with_paths(condition, paths), schema)


def field_at(schema: pa.Schema, path: Path) -> pa.Field:
    """Return a column, or a field of structs in it, which is there."""
    first, *others = path
    return reduce(lambda field, name: field.type.field(name), others, schema.field(first))


def _with_paths(condition: Condition, paths: dict[Path, Path]) -> Condition:
    if isinstance(condition, AllOf | AnyOf):
        return type(condition)(tuple(_with_paths(each, paths) for each in condition.operands))
    return replace(condition, path=paths[condition.path])


def _with(fields: Sequence[pa.Field], there: Sequence[pa.Field], path: Path) -> list[pa.Field]:
    """Return the fields, and the field that `path` leads to in `there` if they lack it."""
    name, *others = path
    source = next(field for field in there if field.name == name)
    before = next((field for field in fields if field.name == name), None)
    if before is None:
        return [*fields, _only(source, others)]
    if not others or not pa.types.is_struct(before.type):
        return list(fields)
    grown = before.with_type(pa.struct(_with(list(before.type), list(source.type), tuple(others))))
    return [grown if field is before else field for field in fields]


def _only(field: pa.Field, others: Sequence[str]) -> pa.Field:
    """Return a struct with nothing in it but the field that a path leads to."""
    if not others:
        return field
    return field.with_type(pa.struct([_only(field.type.field(others[0]), others[1:])]))


def _mismatches(leaf: Leaf, field: pa.Field) -> Iterator[str]:
    """Yield the reasons why a column cannot be compared with the values of a condition."""
    values: Sequence[Value] = ()
    match leaf:
        case IsNull():
            return
        case StartsWith(_, prefix):
            values = (prefix,)
        case Comparison(_, _, value):
            values = (value,)
        case OneOf(_, values):
            pass
    kinds, expected = _comparable(field)
    if not kinds:
        yield "can be tested for null only"
    is_decimal_list = isinstance(leaf, OneOf) and pa.types.is_decimal(field.type)
    if is_decimal_list and field.type.scale > _LISTED_SCALE_MAX:
        yield f"has more than {_LISTED_SCALE_MAX} decimal places, which Spark rounds in a list"
    for value in values if kinds else ():
        if not _fits(value, kinds, field.type):
            shown = repr(value) if isinstance(value, str | bytes) else str(value).lower()
            yield f"is compared with {expected}, not with {shown}"


def _comparable(field: pa.Field) -> tuple[tuple[type, ...], str]:
    """Return the types of values that a column is compared with, in Python and in words."""
    kind, types = field.type, pa.types
    if maybe_logical_type(field) is not None:
        return (), ""
    if types.is_boolean(kind):
        return (bool,), "true or false"
    if types.is_string(kind):
        return (str,), "a string in quotes"
    if types.is_binary(kind):
        return (bytes,), "bytes such as X'1F'"
    if types.is_date32(kind):
        return (date,), "date '2026-01-31'"
    if types.is_timestamp(kind) and kind.tz is None:
        return (datetime,), "timestamp_ntz '2026-01-31 12:00:00'"
    if types.is_timestamp(kind):
        return (datetime,), "timestamp '2026-01-31 12:00:00Z'"
    if types.is_float32(kind):
        return (int, Decimal, float), f"a number, written with a point above {_EXACT_IN_FLOAT}"
    if types.is_float64(kind):
        return (int, Decimal, float), "a number"
    if types.is_signed_integer(kind):
        return (int,), f"a whole number of {kind.bit_width} bits"
    if types.is_decimal128(kind):
        digits = f"{kind.precision - kind.scale} digits before and {kind.scale} behind the point"
        return (int, Decimal), f"a number of at most {digits}"
    return (), ""


def _fits(value: Value, kinds: tuple[type, ...], kind: pa.DataType) -> bool:
    """Whether a value is one of the column's type."""
    if type(value) not in kinds:
        return False
    if isinstance(value, datetime):
        return bool((value.tzinfo is None) == (kind.tz is None))
    if pa.types.is_float32(kind) and isinstance(value, int):
        return abs(value) <= _EXACT_IN_FLOAT
    if pa.types.is_signed_integer(kind) and isinstance(value, int):
        return bool(-(1 << kind.bit_width - 1) <= value < 1 << kind.bit_width - 1)
    if pa.types.is_decimal(kind) and isinstance(value, int | Decimal):
        _, digits, exponent = Decimal(value).as_tuple()
        assert isinstance(exponent, int)
        whole = len(digits) + exponent if value else 0
        return bool(-exponent <= kind.scale and whole <= kind.precision - kind.scale)
    return True
