"""Conditions on the columns of a row, as values. `grammar` makes them of text.

They have SQL's three truth values: a comparison with null is neither true nor false, and only rows
for which a condition is true are wanted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import date, datetime
from decimal import Decimal
from enum import Enum

Path = tuple[str, ...]
"""A column, or the way to a field of structs in it, from the outside to the inside."""
Literal = bool | int | Decimal | float | str | bytes | date | datetime | None
"""A value of a condition: a float is a number with an exponent, a datetime without a zone one of
a column without a time zone."""


class Op(Enum):
    """How a column is compared with a value."""

    EQUAL = "="
    OTHER = "!="
    LESS = "<"
    LESS_OR_EQUAL = "<="
    GREATER = ">"
    GREATER_OR_EQUAL = ">="

    @property
    def negated(self) -> Op:
        """The operator that is true of the values for which this one is false."""
        return _NEGATED[self]

    @property
    def mirrored(self) -> Op:
        """The operator of the comparison with its sides exchanged."""
        return _MIRRORED.get(self, self)


_NEGATED = {
    Op.EQUAL: Op.OTHER,
    Op.OTHER: Op.EQUAL,
    Op.LESS: Op.GREATER_OR_EQUAL,
    Op.GREATER_OR_EQUAL: Op.LESS,
    Op.GREATER: Op.LESS_OR_EQUAL,
    Op.LESS_OR_EQUAL: Op.GREATER,
}
_MIRRORED = {
    Op.LESS: Op.GREATER,
    Op.GREATER: Op.LESS,
    Op.LESS_OR_EQUAL: Op.GREATER_OR_EQUAL,
    Op.GREATER_OR_EQUAL: Op.LESS_OR_EQUAL,
}


@dataclass(frozen=True, slots=True)
class Comparison:
    """A column compared with a value."""

    path: Path
    op: Op
    value: Literal


@dataclass(frozen=True, slots=True)
class OneOf:
    """A column that equals one of some values."""

    path: Path
    values: tuple[Literal, ...]


@dataclass(frozen=True, slots=True)
class StartsWith:
    """A string column whose values begin with `prefix`."""

    path: Path
    prefix: str


@dataclass(frozen=True, slots=True)
class IsNull:
    """A column that is null, also because a struct around it is."""

    path: Path


Leaf = Comparison | OneOf | StartsWith | IsNull


@dataclass(frozen=True, slots=True)
class Not:
    """True if the operand is false, and the other way round."""

    operand: Condition


@dataclass(frozen=True, slots=True)
class AllOf:
    """True if all operands are true."""

    operands: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    """True if one operand is true."""

    operands: tuple[Condition, ...]


Condition = Leaf | Not | AllOf | AnyOf


def leaves(condition: Condition) -> list[Leaf]:
    """Return what a condition asks of single columns, in the order of the text."""
    match condition:
        case Not(operand):
            return leaves(operand)
        case AllOf(operands) | AnyOf(operands):
            return [leaf for each in operands for leaf in leaves(each)]
        case _:
            return [condition]


def with_paths(condition: Condition, paths: dict[Path, Path]) -> Condition:
    """Return a condition with other names for its columns."""
    match condition:
        case Not(operand):
            return Not(with_paths(operand, paths))
        case AllOf(operands):
            return AllOf(tuple(with_paths(each, paths) for each in operands))
        case AnyOf(operands):
            return AnyOf(tuple(with_paths(each, paths) for each in operands))
        case _:
            return replace(condition, path=paths[condition.path])
