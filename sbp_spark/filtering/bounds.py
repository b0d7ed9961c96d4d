"""A condition as bounds that each wanted row of a batch is within.

A condition is followed down to its leaves with the truth value that is wanted of it, as `not` wants
the other one; so three truth values make no difference. Bounds are a hull: they may take rows that
the condition does not, and never leave out one that it takes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import reduce
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from sbp_core.records import ColumnBounds, maybe_statistics_type, order_key
from sbp_spark.filtering.comparing import equal_to, test_of
from sbp_spark.filtering.condition import (
    AllOf,
    AnyOf,
    Comparison,
    Condition,
    IsNull,
    Leaf,
    Literal,
    Not,
    OneOf,
    Op,
    Path,
    StartsWith,
    leaves,
)

_ABOVE_ALL: Final = b"\xff" * 64
"""Above each order key that statistics have."""


@dataclass(frozen=True, slots=True)
class _Hull:
    """Values of a column from `least` up to `most`, None for no bound, and maybe null."""

    least: bytes | None = None
    most: bytes | None = None
    takes_null: bool = False
    takes_values: bool = True

    def both(self, other: _Hull) -> _Hull | None:
        """Return the hull of what is in both; None if nothing can be."""
        leasts = [each.least for each in (self, other) if each.least is not None]
        mosts = [each.most for each in (self, other) if each.most is not None]
        least, most = max(leasts, default=None), min(mosts, default=None)
        is_empty = least is not None and most is not None and least > most
        takes_values = self.takes_values and other.takes_values and not is_empty
        takes_null = self.takes_null and other.takes_null
        if not takes_values:
            return _NULL if takes_null else None
        return _Hull(least, most, takes_null)

    def either(self, other: _Hull) -> _Hull:
        """Return the hull of what is in one of them."""
        takes_null = self.takes_null or other.takes_null
        if not (self.takes_values and other.takes_values):
            one = self if self.takes_values else other
            return _Hull(one.least, one.most, takes_null, one.takes_values)
        least = most = None
        if self.least is not None and other.least is not None:
            least = min(self.least, other.least)
        if self.most is not None and other.most is not None:
            most = max(self.most, other.most)
        return _Hull(least, most, takes_null)

    def bounds(self, path: Path) -> ColumnBounds:
        """Return the hull as a server gets it."""
        if not self.takes_values:
            return ColumnBounds(".".join(path), _ABOVE_ALL, b"", self.takes_null)
        return ColumnBounds(".".join(path), self.least, self.most, self.takes_null)


_NULL: Final = _Hull(takes_null=True, takes_values=False)
_NO_NULL: Final = _Hull()
_NOTHING: Final = _Hull(takes_values=False)
_Hulls = Mapping[Path, _Hull]
"""Hulls by columns; a column that is not there is not bounded."""


def bounds_of(
    condition: Condition, schema: pa.Schema, version: pa.Schema
) -> tuple[ColumnBounds, ...]:
    """Return bounds for batches whose columns are those of `version`.

    `schema` has the columns as the condition compares them, in the same names. There are none if
    nothing is known.
    """
    bounding = _Bounding(schema, version)
    hulls = bounding.hulls(condition, is_wanted=True)
    if hulls is None:  # no row can match, so no value of any column is wanted
        paths = {leaf.path for leaf in leaves(condition)}
        hulls = {path: _NOTHING for path in paths if bounding.maybe_kind(path) is not None}
    return tuple(hull.bounds(path) for path, hull in sorted(hulls.items()))


@dataclass(frozen=True, slots=True)
class _Bounding:
    schema: pa.Schema
    version: pa.Schema

    def hulls(self, condition: Condition, *, is_wanted: bool) -> _Hulls | None:
        """Return the hulls of the rows for which a condition is true, or false; None of no row."""
        match condition:
            case Not(operand):
                return self.hulls(operand, is_wanted=not is_wanted)
            case AllOf(operands) | AnyOf(operands):
                found = [self.hulls(each, is_wanted=is_wanted) for each in operands]
                is_all = isinstance(condition, AllOf) is is_wanted
                return _all_of(found) if is_all else _any_of(found)
            case _:
                return self._leaf(condition, is_wanted=is_wanted)

    def _leaf(self, leaf: Leaf, *, is_wanted: bool) -> _Hulls | None:
        match leaf:
            case Comparison(_, _, None):
                return None
            case OneOf(_, values) if None in values and not is_wanted:
                return None
        kind = self.maybe_kind(leaf.path)
        if kind is None:
            return {}
        hull: _Hull | None
        match leaf:
            case IsNull():
                hull = _NULL if is_wanted else _NO_NULL
            case StartsWith(_, prefix):
                hull = _prefixed(prefix) if is_wanted else _NO_NULL
            case OneOf(path, values):
                hull = _one_of(kind, self._compared_as(path, values)) if is_wanted else _NO_NULL
            case Comparison(path, op, value):
                (value,) = self._compared_as(path, (value,))
                hull = _compared(kind, op if is_wanted else op.negated, value)
        return None if hull is None else {leaf.path: hull}

    def _compared_as(self, path: Path, values: tuple[Literal, ...]) -> tuple[Literal, ...]:
        """Return values as doubles if they are compared so, also where the version has integers."""
        if not pa.types.is_floating(type_at(self.schema, path)):
            return values
        return tuple(float(each) if isinstance(each, int | Decimal) else each for each in values)

    def maybe_kind(self, path: Path) -> pa.DataType | None:
        """Return the type of a column in the version, if its order is that of the condition."""
        if any("." in name for name in path):
            return None
        kind = maybe_statistics_type(self.version, ".".join(path))
        if kind is None or not _has_same_order(kind, type_at(self.schema, path)):
            return None
        return kind


def type_at(schema: pa.Schema, path: Path) -> pa.DataType:
    """Return the type of a column, or of a field of structs in it, which is there."""
    first, *others = path
    return reduce(lambda kind, name: kind.field(name).type, others, schema.field(first).type)


def _has_same_order(there: pa.DataType, here: pa.DataType) -> bool:
    """Whether values keep what they are, and so their order, when `there` becomes `here`."""
    types = pa.types
    if there == here:
        return True
    if types.is_timestamp(there) and types.is_timestamp(here):
        return bool(there.unit != "ns" and (there.tz is None) == (here.tz is None))
    if types.is_signed_integer(there) and types.is_floating(here):
        return bool(types.is_float64(here) and there.bit_width <= 32)
    if types.is_floating(there) and types.is_floating(here):
        return True
    numbers = (types.is_signed_integer, types.is_decimal128)
    return all(any(is_kind(each) for is_kind in numbers) for each in (there, here))


def _compared(kind: pa.DataType, op: Op, value: Literal) -> _Hull | None:
    test = test_of(kind, op, value)
    if isinstance(test, bool):
        return _NO_NULL if test else None
    key = order_key(test.scalar, kind)
    match test.op:
        case Op.EQUAL:
            return _Hull(key, key)
        case Op.OTHER:
            return _NO_NULL
        case Op.LESS | Op.LESS_OR_EQUAL:
            return _Hull(most=key)
        case Op.GREATER | Op.GREATER_OR_EQUAL:
            return _Hull(least=key)


def _one_of(kind: pa.DataType, values: tuple[Literal, ...]) -> _Hull | None:
    extremes = pc.min_max(equal_to(kind, values))
    if not extremes["min"].is_valid:  # no value can be equal
        return None
    return _Hull(order_key(extremes["min"], kind), order_key(extremes["max"], kind))


def _prefixed(prefix: str) -> _Hull:
    least = prefix.encode()
    most = least[:-1] + bytes([least[-1] + 1]) if least else None  # no byte of UTF-8 is 255
    return _Hull(least, most)


def _all_of(found: Sequence[_Hulls | None]) -> _Hulls | None:
    together: dict[Path, _Hull] = {}
    for hulls in found:
        if hulls is None:
            return None
        for path, hull in hulls.items():
            both = together[path].both(hull) if path in together else hull
            if both is None:
                return None
            together[path] = both
    return together


def _any_of(found: Sequence[_Hulls | None]) -> _Hulls | None:
    possible = [hulls for hulls in found if hulls is not None]
    if not possible:
        return None
    first, *others = possible
    return {
        path: reduce(_Hull.either, (hulls[path] for hulls in others), hull)
        for path, hull in first.items()
        if all(path in hulls for hulls in others)
    }
