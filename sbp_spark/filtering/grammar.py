"""The text of a condition, in the grammar of Spark SQL, as a `Condition`.

`sqlglot` parses it as Spark does. A condition has to select exactly the rows that `df.where` would,
so all that is not in the tables of `docs/how-to/read-some-rows.md` is refused by its name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from math import isfinite
from typing import Final

import sqlglot
from sqlglot import exp
from sqlglot.errors import ParseError, TokenError

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
from sbp_spark.filtering.words import maybe_fault

TEXT_LENGTH_MAX: Final = 64 * 1024
"""Characters of a condition: far more than one that is written, or made of a list of ids."""
POSSIBLE: Final = (
    "comparisons of a column with a value (= != < <= > >= <=>), [not] in, [not] between,"
    " is [not] null, [not] like 'prefix%', and, or, not; for all else filter with df.where instead"
)

_OPS: Final[dict[type[exp.Expr], Op]] = {
    exp.EQ: Op.EQUAL,
    exp.NEQ: Op.OTHER,
    exp.LT: Op.LESS,
    exp.LTE: Op.LESS_OR_EQUAL,
    exp.GT: Op.GREATER,
    exp.GTE: Op.GREATER_OR_EQUAL,
}
_ARGUMENTS: Final = frozenset(
    ("this", "expression", "expressions", "low", "high", "negate", "to", "is_string", "quoted")
) | {"table", "db", "catalog"}
"""The parts that conditions have; a tree with others means something else."""
_DECIMAL_DIGITS_MAX: Final = 38
_NUMBER: Final = re.compile(r"\d+|(\d+\.\d*|\d*\.\d+)|(\d+\.?\d*|\.\d+)[eE][+-]?\d+", re.ASCII)
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_TIME: Final = re.compile(
    r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d{1,6})?(?P<zone>Z|[+-](0\d|1[0-7]):[0-5]\d|[+-]18:00)?",
    re.ASCII,
)


class RefusedError(ValueError):
    """A condition that is no condition, or is not possible here; the message says what of it."""


def parse_condition(text: str) -> Condition:
    """Return a condition. Raises RefusedError."""
    if len(text) > TEXT_LENGTH_MAX:
        raise RefusedError(f"has {len(text)} characters, more than {TEXT_LENGTH_MAX}")
    if "\\" in text:
        raise RefusedError("has a backslash, which Spark's settings give different meanings")
    try:
        fault = maybe_fault(text)
        if fault is not None:
            raise RefusedError(fault)
        tree = sqlglot.parse_one(text, dialect="spark", error_message_context=TEXT_LENGTH_MAX)
        _check_arguments(tree)
        return _condition(tree)
    except TokenError:
        raise RefusedError(
            "is no condition: a quote or a comment is not closed, or X'...' has no hex digits"
        ) from None
    except ParseError as error:
        context = error.errors[0] if error.errors else {"start_context": text, "highlight": ""}
        place = len(context["start_context"] + context["highlight"])
        raise RefusedError(
            f"is no condition: something is missing, or too much, at character {place}; a column"
            " whose name is a word of SQL, such as values or desc, is written in backticks"
        ) from None
    except RecursionError:
        raise RefusedError("is nested too deeply") from None


def _check_arguments(tree: exp.Expr) -> None:
    """Raise RefusedError for a variant of a condition, such as between symmetric."""
    for each in tree.walk():
        given = {name for name, value in each.args.items() if value not in (None, False, [])}
        if given - _ARGUMENTS:
            raise _refused(each)


def _condition(tree: exp.Expr) -> Condition:
    match tree:
        case exp.Paren():
            return _condition(tree.this)
        case exp.And():
            return AllOf(tuple(map(_condition, _operands(tree, exp.And))))
        case exp.Or():
            return AnyOf(tuple(map(_condition, _operands(tree, exp.Or))))
        case exp.Not():
            return Not(_condition(tree.this))
        case exp.In() if tree.expressions:
            return OneOf(_path(tree.this), tuple(map(_literal, tree.expressions)))
        case exp.Between() if tree.args.get("symmetric") is None:
            path = _path(tree.this)
            low = Comparison(path, Op.GREATER_OR_EQUAL, _literal(tree.args["low"]))
            high = Comparison(path, Op.LESS_OR_EQUAL, _literal(tree.args["high"]))
            return AllOf((low, high))
        case exp.Is() if isinstance(tree.expression, exp.Null):
            return IsNull(_path(tree.this))
        case exp.Like():
            begins = _starts_with(tree)
            return Not(begins) if tree.args.get("negate") else begins
        case exp.Column() | exp.Dot():
            return Comparison(_path(tree), Op.EQUAL, True)
        case exp.NullSafeEQ():
            path, _, value = _sides(tree, Op.EQUAL)
            if value is None:
                return IsNull(path)
            return AllOf((Not(IsNull(path)), Comparison(path, Op.EQUAL, value)))
        case _ if type(tree) in _OPS:
            return Comparison(*_sides(tree, _OPS[type(tree)]))
    raise _refused(tree)


def _operands(tree: exp.Expr, kind: type[exp.Expr]) -> Iterator[exp.Expr]:
    """Yield the operands of a chain of the same operator, which may be a long one."""
    waiting = [tree]
    while waiting:
        each = waiting.pop()
        if type(each) is kind:
            waiting += [each.expression, each.this]
        else:
            yield each


def _sides(tree: exp.Expr, op: Op) -> tuple[Path, Op, Literal]:
    """Return the column, the operator and the value of a comparison, whichever is first."""
    first, second = tree.this, tree.expression
    if isinstance(second, exp.Column | exp.Dot) and not isinstance(first, exp.Column | exp.Dot):
        return _path(second), op.mirrored, _literal(first)
    return _path(first), op, _literal(second)


def _starts_with(tree: exp.Like) -> StartsWith:
    pattern = _literal(tree.expression)
    if isinstance(pattern, str) and re.fullmatch(r"[^%_]*%", pattern):
        return StartsWith(_path(tree.this), pattern[:-1])
    raise RefusedError(f"has a pattern that is no prefix and a % ({_shown(tree)})")


def _path(tree: exp.Expr) -> Path:
    if isinstance(tree, exp.Column | exp.Dot):
        parts = tree.parts
        if all(isinstance(part, exp.Identifier) for part in parts):
            return tuple(part.name for part in parts)
    raise RefusedError(f"has {_shown(tree)} where a column is expected")


def _literal(tree: exp.Expr) -> Literal:
    match tree:
        case exp.Null():
            return None
        case exp.Boolean():
            return bool(tree.this)
        case exp.Literal(is_string=True):
            return str(tree.this)
        case exp.Literal():
            return _number(str(tree.this))
        case exp.Neg():
            value = _literal(tree.this)
            if isinstance(value, int | Decimal | float) and not isinstance(value, bool):
                return -value if not isinstance(value, Decimal) else value.copy_negate()
        case exp.HexString():
            digits = str(tree.this)
            return bytes.fromhex(digits.zfill(len(digits) + len(digits) % 2))
        case exp.Cast(this=exp.Literal(is_string=True)) if type(tree) is exp.Cast:
            return _dated(tree)
    raise RefusedError(f"has {_shown(tree)} where a value is expected")


def _number(text: str) -> int | Decimal | float:
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise RefusedError(f"has {text}, which is no number")
    if match[2] is not None:
        value = float(text)
        if not isfinite(value):
            raise RefusedError(f"has {text}, which is above the largest double")
        return value
    exact = Decimal(text)
    _, digits, exponent = exact.as_tuple()
    assert isinstance(exponent, int)
    if max(len(digits), -exponent) > _DECIMAL_DIGITS_MAX:
        raise RefusedError(f"has {text}, and a decimal has {_DECIMAL_DIGITS_MAX} digits at most")
    return exact if match[1] is not None else int(text)


def _dated(tree: exp.Cast) -> date | datetime:
    """Return the value of date '...', timestamp '...' and timestamp_ntz '...'."""
    text, kind = str(tree.this.this), tree.to.this
    shown = f"{tree.to.sql(dialect='spark').lower()} '{text}'"
    try:
        if kind is exp.DataType.Type.DATE and _DATE.fullmatch(text):
            return date.fromisoformat(text)
        found = _TIME.fullmatch(text)
        if found and kind is exp.DataType.Type.TIMESTAMPTZ and found["zone"]:
            return datetime.fromisoformat(text)
        if found and kind is exp.DataType.Type.TIMESTAMPNTZ and not found["zone"]:
            return datetime.fromisoformat(text)
    except ValueError as error:
        raise RefusedError(f"has {shown}: {error}") from None
    raise RefusedError(
        f"has {shown}, expected one such as date '2026-01-31', timestamp '2026-01-31"
        " 12:00:00+01:00' (with its zone, of 18:00 at most: the session's is not known to a source)"
        " or timestamp_ntz '2026-01-31 12:00:00'"
    )


def _refused(tree: exp.Expr) -> RefusedError:
    return RefusedError(f"has {_shown(tree)}, which is no condition that is possible here")


def _shown(tree: exp.Expr) -> str:
    """Return a part of a condition as it is written, maybe cut."""
    text = tree.sql(dialect="spark")
    return text if len(text) <= 80 else f"{text[:80]}..."
