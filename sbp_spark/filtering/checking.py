"""Whether a condition fits the columns of a source, and which columns it needs.

Types that Spark would convert before it compares are accepted where that changes no result.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Final

import pyarrow as pa

from sbp_core.errors import ConfigurationError
from sbp_core.records import maybe_logical_type
from sbp_core.wording import listed
from sbp_spark.filtering.condition import (
    Comparison,
    Condition,
    IsNull,
    Leaf,
    Literal,
    OneOf,
    Op,
    Path,
    StartsWith,
    leaves,
    with_paths,
)

_DECIMAL_DIGITS_MAX: Final = 38
_INTEGER_DIGITS: Final = {8: 3, 16: 5, 32: 10, 64: 20}
"""Digits of the decimals that Spark makes of integers, by their bits."""
_LONG_MAX: Final = (1 << 63) - 1
_EXACT_IN_DOUBLE: Final = 1 << 53
_EXACT_IN_FLOAT: Final = 1 << 24


@dataclass(frozen=True, slots=True)
class RowFilter:
    """A condition for rows, and the columns to read: those of the query, and more that it needs."""

    condition: Condition
    columns: pa.Schema


def row_filter(condition: Condition, wanted: pa.Schema, there: pa.Schema) -> RowFilter:
    """Return what filters rows of a query of the columns `wanted`, which are some of `there`.

    Case of names does not matter. The columns of the query have its types, which may be wider.
    Raises ConfigurationError naming all columns that do not exist, or cannot be compared so.
    """
    faults: list[str] = []
    paths: dict[Path, Path] = {}
    columns = list(wanted)
    for path in dict.fromkeys(each.path for each in leaves(condition)):
        found = _maybe_found(path, there, faults)
        if found is not None:
            paths[path] = found
            columns = _with(columns, list(there), found)
    schema = pa.schema(columns)
    for leaf in leaves(condition):
        if leaf.path in paths:
            fault = _maybe_fault(leaf, _field_at(schema, paths[leaf.path]))
            faults += [fault] if fault else []
    if faults:
        lines = "\n".join(f"  - {fault}" for fault in dict.fromkeys(faults))
        raise ConfigurationError(
            f"option where: it does not fit the columns ({listed(there.names)}):\n{lines}\n"
            "Correct it, or filter with df.where instead"
        )
    return RowFilter(with_paths(condition, paths), schema)


def _maybe_found(path: Path, there: pa.Schema, faults: list[str]) -> Path | None:
    """Return a path in the names of `there`; None, and a fault, if it leads to nothing."""
    fields = list(there)
    found: list[str] = []
    for at, name in enumerate(path):
        names = {field.name.lower(): field for field in fields} | {f.name: f for f in fields}
        field = names.get(name) or names.get(name.lower())
        place = ".".join(path[: at + 1])
        if field is None:
            near = difflib.get_close_matches(name.lower(), [each.name for each in fields], n=1)
            prefix = "".join(f"{each}." for each in found)
            hint = f"; did you mean {prefix}{near[0]}?" if near else ""
            faults.append(f"column {place} does not exist{hint}")
            return None
        found.append(field.name)
        is_last = at == len(path) - 1
        if not is_last and not pa.types.is_struct(field.type):
            faults.append(f"column {'.'.join(path)} does not exist: {place} is no struct")
            return None
        fields = [] if is_last else list(field.type)
    return tuple(found)


def _with(fields: Sequence[pa.Field], there: Sequence[pa.Field], path: Path) -> list[pa.Field]:
    """Return the fields with the one that `path` leads to, as it is in `there`, if they lack it."""
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
    """Return a field with nothing in its structs but what a path leads to."""
    if not others:
        return field
    return field.with_type(pa.struct([_only(field.type.field(others[0]), others[1:])]))


def _field_at(schema: pa.Schema, path: Path) -> pa.Field:
    first, *others = path
    field = schema.field(first)
    for name in others:
        field = field.type.field(name)
    return field


def _maybe_fault(leaf: Leaf, field: pa.Field) -> str | None:
    """Return what is wrong with a comparison of a column; None if nothing is."""
    values: Sequence[Literal]
    match leaf:
        case IsNull():
            return None
        case StartsWith(_, prefix):
            values = [prefix]
        case Comparison(_, _, value):
            values = [value]
        case OneOf(_, values):
            pass
    faults = _wrong(field, [each for each in values if each is not None])
    wrong = next(faults, None) or _maybe_beyond_long(leaf, field.type)
    if wrong is None:
        return None
    kind = maybe_logical_type(field) or field.type
    return f"column {'.'.join(leaf.path)} of type {kind} {wrong}"


def _maybe_beyond_long(leaf: Leaf, kind: pa.DataType) -> str | None:
    """Return what is wrong with the order of an integer column and a number beyond all longs.

    Spark's analyzer replaces such a comparison by true or false, also where the column is null.
    """
    if not isinstance(leaf, Comparison) or leaf.op in (Op.EQUAL, Op.OTHER):
        return None
    value = leaf.value
    if not isinstance(value, int | Decimal) or not pa.types.is_signed_integer(kind):
        return None
    if -_LONG_MAX - 1 <= value <= _LONG_MAX:
        return None
    nearest = _LONG_MAX if value > 0 else -_LONG_MAX - 1
    return (
        f"is ordered against {value}, which is beyond 64 bits, so Spark gives null a result too:"
        f" compare it with {nearest}"
    )


def _wrong(
    field: pa.Field, values: Sequence[bool | int | Decimal | float | str | bytes | date]
) -> Iterator[str]:
    """Yield what is wrong with a comparison of a column with values that are not null."""
    kind, types = field.type, pa.types
    if maybe_logical_type(field) is not None:
        yield "can be tested for null only"
    elif types.is_boolean(kind):
        yield from _unlike(values, (bool,), "true or false")
    elif types.is_string(kind):
        yield from _unlike(values, (str,), "a string in quotes")
    elif types.is_binary(kind):
        yield from _unlike(values, (bytes,), "bytes such as X'1F'")
    elif types.is_date32(kind):
        yield from _unlike(values, (date,), "date '2026-01-31'")
    elif types.is_timestamp(kind):
        example = "timestamp '2026-01-31 12:00:00Z'"
        if kind.tz is None:
            example = "timestamp_ntz '2026-01-31 12:00:00'"
        yield from _unlike(values, (datetime,), example)
        for each in values:
            if isinstance(each, datetime) and (each.tzinfo is None) != (kind.tz is None):
                yield f"is compared with {example}, not with one with{_out(each)} a zone"
    elif types.is_floating(kind) or types.is_decimal128(kind) or types.is_signed_integer(kind):
        yield from _unlike(values, (int, Decimal, float), "a number")
        yield from _inexact(
            kind, [each for each in values if not isinstance(each, str | bytes | date)]
        )
    else:
        yield "can be tested for null only"


def _out(value: datetime) -> str:
    return "" if value.tzinfo else "out"


def _unlike(values: Sequence[object], kinds: tuple[type, ...], expected: str) -> Iterator[str]:
    for each in values:
        if isinstance(each, bool) and bool not in kinds:
            yield f"is neither a condition nor true or false: compare it with {expected}"
        if type(each) not in kinds:
            yield f"is compared with {expected}, not with {each!r}"


def _inexact(kind: pa.DataType, values: Sequence[int | Decimal | float]) -> Iterator[str]:
    """Yield where Spark converts numbers with a loss before it compares them."""
    if pa.types.is_floating(kind):
        for each in values:
            if kind.bit_width == 32 and isinstance(each, int) and abs(each) > _EXACT_IN_FLOAT:
                yield f"is compared with {each}, which Spark may round: write it as {each}.0"
        return
    if len({isinstance(each, float) for each in values}) > 1:
        yield "is compared with numbers with and without an exponent in one list: write all alike"
    for each in values:
        is_long = kind.bit_width == 64 and _EXACT_IN_DOUBLE <= abs(float(each)) <= 1 << 63
        if isinstance(each, float) and (pa.types.is_decimal(kind) or is_long):
            yield f"is compared with {each}, which has an exponent, so Spark rounds the column"
    exact = [Decimal(each).as_tuple() for each in values if not isinstance(each, float)]
    places, whole = 0, _INTEGER_DIGITS.get(kind.bit_width, 0)
    if pa.types.is_decimal(kind):
        places, whole = kind.scale, kind.precision - kind.scale
    for each_exact in exact:
        assert isinstance(each_exact.exponent, int)
        whole = max(whole, len(each_exact.digits) + each_exact.exponent)
        places = max(places, -each_exact.exponent)
    if exact and whole + places > _DECIMAL_DIGITS_MAX:
        yield (
            f"is compared with numbers that Spark rounds for their digits: {whole} before and"
            f" {places} behind the point, {_DECIMAL_DIGITS_MAX} together at most"
        )
