"""Which rows of a batch a condition is true for."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from sbp_spark.filtering.comparing import equal_to, test_of
from sbp_spark.filtering.condition import (
    AllOf,
    AnyOf,
    Comparison,
    Condition,
    IsNull,
    Literal,
    Not,
    OneOf,
    Op,
    Path,
    StartsWith,
)

_KERNELS: Final[dict[Op, Callable[[Any, Any], Any]]] = {
    Op.EQUAL: pc.equal,
    Op.OTHER: pc.not_equal,
    Op.LESS: pc.less,
    Op.LESS_OR_EQUAL: pc.less_equal,
    Op.GREATER: pc.greater,
    Op.GREATER_OR_EQUAL: pc.greater_equal,
}


def matching(condition: Condition, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows for which a condition, whose columns these have, is true."""
    return rows.filter(_truth(condition, rows))


def _truth(condition: Condition, rows: pa.RecordBatch) -> pa.BooleanArray:
    """Return the truth values, null where the condition is neither true nor false."""
    match condition:
        case Not(operand):
            return pc.invert(_truth(operand, rows))
        case AllOf(operands):
            return reduce(pc.and_kleene, (_truth(each, rows) for each in operands))
        case AnyOf(operands):
            return reduce(pc.or_kleene, (_truth(each, rows) for each in operands))
        case OneOf(path, values):
            return _is_one_of(values, _column(rows, path))
        case IsNull(path):
            return pc.is_null(_column(rows, path))
        case StartsWith(path, prefix):
            return pc.starts_with(_column(rows, path), prefix)
        case Comparison():
            return _compared(condition, _column(rows, condition.path))


def _compared(comparison: Comparison, column: pa.Array) -> pa.BooleanArray:
    if comparison.value is None:
        return pa.nulls(len(column), pa.bool_())
    test = test_of(column.type, comparison.op, comparison.value)
    if isinstance(test, bool):
        everywhere = pa.repeat(test, len(column))
        return pc.if_else(column.is_valid(), everywhere, pa.scalar(None, pa.bool_()))
    if not pa.types.is_floating(column.type):
        return _KERNELS[test.op](column, test.scalar)
    found = _KERNELS[test.op](column.cast(pa.float64()), test.scalar)
    is_true_of_nan = test.op in (Op.OTHER, Op.GREATER, Op.GREATER_OR_EQUAL)
    return pc.or_(found, pc.is_nan(column)) if is_true_of_nan else found


def _is_one_of(values: tuple[Literal, ...], column: pa.Array) -> pa.BooleanArray:
    """Return where a column equals one of some values; null also if it equals none beside null."""
    value_set = equal_to(column.type, values)
    if pa.types.is_floating(column.type):
        column = pc.add(column.cast(pa.float64()), 0.0)  # which makes 0.0 of -0.0
    found = pc.is_in(column, value_set=value_set)
    is_known = found if None in values else column.is_valid()
    return pc.if_else(is_known, found, pa.scalar(None, pa.bool_()))


def _column(rows: pa.RecordBatch, path: Path) -> pa.Array:
    first, *others = path
    column = rows.column(first)
    return pc.struct_field(column, others) if others else column
