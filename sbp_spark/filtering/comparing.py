"""Comparing a column of one Arrow type with a value of a condition, exactly as Spark does.

Integers, decimals, dates and timestamps are whole numbers of units, so a value between two of them,
or beyond all of them, makes a comparison with another operator or none. Floats are compared as
doubles.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from math import ceil, floor
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from sbp_spark.filtering.condition import Literal, Op

_EPOCH_DAY: Final = date(1970, 1, 1)
_PER_SECOND: Final = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


@dataclass(frozen=True, slots=True)
class Test:
    """A comparison with a scalar of the column's type; of floats with one of a double."""

    op: Op
    scalar: pa.Scalar


def is_exact(kind: pa.DataType) -> bool:
    """Whether values of a type are whole numbers of units."""
    types = pa.types
    return bool(
        types.is_signed_integer(kind)
        or types.is_decimal128(kind)
        or types.is_date32(kind)
        or types.is_timestamp(kind)
    )


def test_of(kind: pa.DataType, op: Op, value: Literal) -> Test | bool:
    """Return how a column of a type is compared; a bool if the result is the same for all values.

    The value is not null, and was found to fit (see `checking`).
    """
    if pa.types.is_floating(kind):
        assert isinstance(value, int | float | Decimal)
        return Test(op, pa.scalar(float(value), pa.float64()))
    if not is_exact(kind):
        return Test(op, pa.scalar(value, kind))
    units = _units(kind, value)
    least, most = _limits(kind)
    match op:
        case Op.LESS | Op.LESS_OR_EQUAL:
            whole = floor(units) if op is Op.LESS_OR_EQUAL else ceil(units) - 1
            is_within = least <= whole < most
            return Test(Op.LESS_OR_EQUAL, _scalar(kind, whole)) if is_within else whole >= most
        case Op.GREATER | Op.GREATER_OR_EQUAL:
            whole = ceil(units) if op is Op.GREATER_OR_EQUAL else floor(units) + 1
            is_within = least < whole <= most
            return Test(Op.GREATER_OR_EQUAL, _scalar(kind, whole)) if is_within else whole <= least
        case Op.EQUAL | Op.OTHER:
            is_value = units.denominator == 1 and least <= units <= most
            return Test(op, _scalar(kind, int(units))) if is_value else op is Op.OTHER


@lru_cache(maxsize=64)
def equal_to(kind: pa.DataType, values: tuple[Literal, ...]) -> pa.Array:
    """Return the values of a list that a column of a type can equal; of floats doubles.

    It is kept, as each batch is compared with it. Null and -0.0 are not among them: 0.0 is.
    """
    tests = [test_of(kind, Op.EQUAL, value) for value in values if value is not None]
    scalars = [test.scalar for test in tests if isinstance(test, Test)]
    if not pa.types.is_floating(kind):
        return pa.array(scalars, kind)
    return pc.add(pa.array(scalars, pa.float64()), 0.0)  # which makes 0.0 of -0.0


def _units(kind: pa.DataType, value: Literal) -> Fraction:
    """Return a value in the units of a type."""
    if isinstance(value, datetime):
        since = value.replace(tzinfo=value.tzinfo or UTC) - datetime(1970, 1, 1, tzinfo=UTC)
        return Fraction(since // timedelta(microseconds=1), 10**6) * _PER_SECOND[kind.unit]
    if isinstance(value, date):
        return Fraction((value - _EPOCH_DAY).days)
    assert isinstance(value, int | float | Decimal)
    return Fraction(value) * 10 ** (kind.scale if pa.types.is_decimal(kind) else 0)


def _limits(kind: pa.DataType) -> tuple[int, int]:
    """Return the least and the greatest number of units that a type has."""
    if pa.types.is_decimal(kind):
        most = 10**kind.precision - 1
        return -most, most
    most = (1 << (kind.bit_width - 1)) - 1
    return -most - 1, most


def _scalar(kind: pa.DataType, units: int) -> pa.Scalar:
    if pa.types.is_decimal(kind):
        digits = tuple(map(int, str(abs(units))))
        return pa.scalar(Decimal((int(units < 0), digits, -kind.scale)), kind)
    whole = pa.int32() if pa.types.is_date32(kind) else pa.int64()
    return pa.scalar(units, whole).cast(kind)
