"""The rows of a batch that match a condition."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from functools import lru_cache, reduce
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from sbp_spark.filtering.condition import (
    AllOf,
    AnyOf,
    Comparison,
    Condition,
    IsNull,
    OneOf,
    StartsWith,
    Value,
)

_KERNELS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "=": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
_TRUE_OF_NAN: Final = frozenset({"!=", ">", ">="})
"""NaN is equal to nothing that can be written, and above all of it."""


def matching(condition: Condition, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows that match a condition. The rows have its columns."""
    return rows.filter(_truth(condition, rows))


def _truth(condition: Condition, rows: pa.RecordBatch) -> pa.BooleanArray:
    """Return where a condition is true; elsewhere there is false or null."""
    match condition:
        case AllOf(operands):
            return reduce(pc.and_kleene, (_truth(each, rows) for each in operands))
        case AnyOf(operands):
            return reduce(pc.or_kleene, (_truth(each, rows) for each in operands))
    first, *others = condition.path
    column = pc.struct_field(rows.column(first), others) if others else rows.column(first)
    match condition:
        case Comparison(_, op, value):
            if not pa.types.is_floating(column.type):
                return _KERNELS[op](column, scalar_of(column.type, value))
            found = _KERNELS[op](column.cast(pa.float64()), scalar_of(column.type, value))
            return pc.or_(found, pc.is_nan(column)) if op in _TRUE_OF_NAN else found
        case IsNull(_, is_negated):
            return column.is_valid() if is_negated else column.is_null()
        case StartsWith(_, prefix, is_negated):
            found = pc.starts_with(column, prefix)
            return pc.invert(found) if is_negated else found
        case OneOf(_, values, is_negated):
            value_set = scalars_of(column.type, values)
            found = pc.is_in(_positive_zero(column), value_set=value_set)
            return pc.and_not(column.is_valid(), found) if is_negated else found


def scalar_of(kind: pa.DataType, value: Value) -> pa.Scalar:
    """Return a value as columns of a type are compared with it: a double for floats."""
    if not pa.types.is_floating(kind):
        return pa.scalar(value, kind)
    assert isinstance(value, int | float | Decimal)
    return pa.scalar(float(value), pa.float64())


@lru_cache(maxsize=64)
def scalars_of(kind: pa.DataType, values: tuple[Value, ...]) -> pa.Array:
    """Return the values of a list as columns of a type are compared with them.

    The array is cached, because each batch is compared with it.
    """
    compared = pa.float64() if pa.types.is_floating(kind) else kind
    return _positive_zero(pa.array([scalar_of(kind, value) for value in values], compared))


def _positive_zero(array: pa.Array) -> pa.Array:
    """Return floats as doubles with 0.0 for each -0.0, which Arrow's hash tells apart."""
    return pc.add(array.cast(pa.float64()), 0.0) if pa.types.is_floating(array.type) else array
