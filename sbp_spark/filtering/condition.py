"""Conditions on the columns of a row, as values. `parser` makes them of text.

Conditions are in negation normal form: the parser applies each `not` to the comparisons below it.
SQL's third truth value then needs no care: a comparison with null is not true, negated or not, and
only rows for which a condition is true are wanted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Final

Path = tuple[str, ...]
"""The name of a column, followed by the names of struct fields inside of it."""
Value = bool | int | Decimal | float | str | bytes | date
"""A literal that is not null. A float was written with an exponent; dates include datetimes."""
NEGATED: Final = {"=": "!=", "!=": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
"""Maps an operator to the operator that is true exactly where the first is false."""
MIRRORED: Final = {"=": "=", "!=": "!=", "<": ">", ">": "<", "<=": ">=", ">=": "<="}
"""The operator of a comparison whose sides are exchanged."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A column compared with a value, by one of the operators of `NEGATED`."""

    path: Path
    op: str
    value: Value


@dataclass(frozen=True, slots=True)
class OneOf:
    """A column that equals one of some values, or none of them. No row equals one of no values."""

    path: Path
    values: tuple[Value, ...]
    is_negated: bool = False


@dataclass(frozen=True, slots=True)
class StartsWith:
    """A string column whose values begin with `prefix`, or do not."""

    path: Path
    prefix: str
    is_negated: bool = False


@dataclass(frozen=True, slots=True)
class IsNull:
    """A column that is null, or is not. A field is null if a struct around it is."""

    path: Path
    is_negated: bool = False


Leaf = Comparison | OneOf | StartsWith | IsNull


@dataclass(frozen=True, slots=True)
class AllOf:
    """True if all operands are true."""

    operands: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    """True if one operand is true."""

    operands: tuple[Condition, ...]


Condition = Leaf | AllOf | AnyOf


def leaves(condition: Condition) -> Iterator[Leaf]:
    """Yield the conditions on single columns, in the order of the text."""
    if isinstance(condition, AllOf | AnyOf):
        for operand in condition.operands:
            yield from leaves(operand)
    else:
        yield condition
