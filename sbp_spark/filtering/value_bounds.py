"""Bounds of a condition: the hull of the values that each column has in rows that match.

A server skips a record batch if the statistics of the batch lie outside of the bounds. A hull may
contain rows that do not match, and never lacks a row that does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Final

import pyarrow as pa

from sbp_core.records import ColumnBounds, maybe_statistics_type, order_key
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
    leaves,
)
from sbp_spark.filtering.resolving import RowFilter, field_at

_ABOVE_ALL: Final = b"\xff" * 64
"""Above each order key that statistics have."""
_Hulls = Mapping[str, ColumnBounds]
"""The bounds of each column that is bounded."""


def bounds_of(row_filter: RowFilter, version: pa.Schema) -> tuple[ColumnBounds, ...]:
    """Return the bounds for batches of a schema `version`; empty if no column is bounded.

    `version` may have narrower types than the columns of the filter, in the same names.
    """
    kinds = {
        leaf.path: kind
        for leaf in leaves(row_filter.condition)
        if (kind := _maybe_kind(leaf.path, row_filter.columns, version)) is not None
    }
    hulls = _hulls(row_filter.condition, kinds)
    if hulls is None:
        names = sorted(map(".".join, kinds))
        return tuple(ColumnBounds(name, _ABOVE_ALL, b"", takes_null=False) for name in names)
    return tuple(hulls[name] for name in sorted(hulls))


def _maybe_kind(path: Path, columns: pa.Schema, version: pa.Schema) -> pa.DataType | None:
    """Return the type of a column in the version; None if it has other order keys."""
    if any("." in name for name in path):
        return None
    there, here = maybe_statistics_type(version, ".".join(path)), field_at(columns, path).type
    alike = (pa.types.is_signed_integer, pa.types.is_floating, pa.types.is_decimal128)
    is_alike = there is not None and any(is_kind(there) and is_kind(here) for is_kind in alike)
    return there if there == here or is_alike else None


def _hulls(condition: Condition, kinds: Mapping[Path, pa.DataType]) -> _Hulls | None:
    """Return the hulls of the rows that match; None if no row can match."""
    match condition:
        case AllOf(operands):
            return _all_of([_hulls(each, kinds) for each in operands])
        case AnyOf(operands):
            return _any_of([_hulls(each, kinds) for each in operands])
        case OneOf(_, (), False):
            return None
    kind = kinds.get(condition.path)
    if kind is None:
        return {}
    name = ".".join(condition.path)
    try:
        return {name: _hull(name, condition, kind)}
    except ValueError:  # the version has no such value: its decimals are narrower
        return {}


def _hull(name: str, leaf: Leaf, kind: pa.DataType) -> ColumnBounds:
    """Return the bounds of one column. Raises ValueError for a value beyond its type."""
    least = most = None
    match leaf:
        case IsNull(_, False):
            return ColumnBounds(name, _ABOVE_ALL, b"", takes_null=True)
        case StartsWith(_, prefix, False) if prefix:
            least = prefix.encode()
            most = least[:-1] + bytes([least[-1] + 1])  # no byte of UTF-8 is 255
        case OneOf(_, values, False):
            keys = [key for each in values if (key := order_key(each, kind)) is not None]
            least, most = min(keys), max(keys)
        case Comparison(_, op, value):
            key = order_key(value, kind)
            before, behind = (key, key) if key is None else _neighbours(key, kind)
            least = {"=": key, ">": behind, ">=": key}.get(op)
            most = {"=": key, "<": before, "<=": key}.get(op)
    return ColumnBounds(name, least, most, takes_null=False)


def _neighbours(key: bytes, kind: pa.DataType) -> tuple[bytes, bytes]:
    """Return the keys before and behind a value; its own where other values may lie between."""
    types = pa.types
    is_whole = types.is_signed_integer(kind) or types.is_date32(kind) or types.is_decimal128(kind)
    if not is_whole and not (types.is_timestamp(kind) and kind.unit == "us"):
        return key, key
    number, most = int.from_bytes(key, "big"), (1 << 8 * len(key)) - 1
    numbers = max(number - 1, 0), min(number + 1, most)
    before, behind = (each.to_bytes(len(key), "big") for each in numbers)
    return before, behind


def _all_of(found: Sequence[_Hulls | None]) -> _Hulls | None:
    together: dict[str, ColumnBounds] = {}
    for hulls in found:
        if hulls is None:
            return None
        for name, hull in hulls.items():
            both = _both(together[name], hull) if name in together else hull
            if _has_no_value(both) and not both.takes_null:
                return None
            together[name] = both
    return together


def _any_of(found: Sequence[_Hulls | None]) -> _Hulls | None:
    possible = [hulls for hulls in found if hulls is not None]
    if not possible:
        return None
    first, *others = possible
    return {
        name: reduce(_either, (hulls[name] for hulls in others), hull)
        for name, hull in first.items()
        if all(name in hulls for hulls in others)
    }


def _both(one: ColumnBounds, other: ColumnBounds) -> ColumnBounds:
    """Return the bounds of the values in both."""
    least = max((each.least for each in (one, other) if each.least is not None), default=None)
    most = min((each.most for each in (one, other) if each.most is not None), default=None)
    return ColumnBounds(one.column, least, most, one.takes_null and other.takes_null)


def _either(one: ColumnBounds, other: ColumnBounds) -> ColumnBounds:
    """Return the bounds of the values in one of them, and between."""
    takes_null = one.takes_null or other.takes_null
    if _has_no_value(one) or _has_no_value(other):
        wider = other if _has_no_value(one) else one
        return ColumnBounds(one.column, wider.least, wider.most, takes_null)
    least = None if one.least is None or other.least is None else min(one.least, other.least)
    most = None if one.most is None or other.most is None else max(one.most, other.most)
    return ColumnBounds(one.column, least, most, takes_null)


def _has_no_value(hull: ColumnBounds) -> bool:
    return hull.least is not None and hull.most is not None and hull.least > hull.most
