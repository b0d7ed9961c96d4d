"""The parser of conditions: a part of Spark SQL's grammar, and the same rows as `df.where`.

    condition  = all {"or" all}
    all        = term {"and" term}
    term       = ("not" | "!") term | "(" condition ")" | predicate
    predicate  = column
               | column compare literal | literal compare column
               | column ["not"] "in" "(" literal {"," literal} ")"
               | column ["not"] "between" literal "and" literal
               | column ["not"] "like" string
               | column "is" ["not"] "null"
    compare    = "=" | "==" | "!=" | "<>" | "<" | "<=" | ">" | ">=" | "<=>"
    column     = name {"." name}
    literal    = ["-"] number | string | "null" | "true" | "false"
               | ("x" | "date" | "timestamp" | "timestamp_ntz") string

The tokens are those of Spark with its default settings. Where another setting of Spark, such as its
time zone, would change the meaning of a text, the text is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from math import isfinite
from typing import Final, NamedTuple

from sbp_spark.filtering.condition import (
    MIRRORED,
    NEGATED,
    AllOf,
    AnyOf,
    Comparison,
    Condition,
    IsNull,
    OneOf,
    Path,
    StartsWith,
    Value,
)

TEXT_LENGTH_MAX: Final = 64 * 1024
"""Characters of a condition: enough for a list of some thousand ids."""
DEPTH_MAX: Final = 100
"""How deep `not` and parentheses nest."""
POSSIBLE: Final = (
    "comparisons of a column with a value (= != < <= > >= <=>), [not] in, [not] between,"
    " is [not] null, [not] like 'prefix%', and, or, not; for all else filter with df.where instead"
)

_TOKEN: Final = re.compile(
    r"""[ \t\r\n]* (?:
      (?P<number> (?: \d+ \.? \d* | \. \d+ ) (?: [eE] [+-]? \d+ )? (?!\w) )
    | (?P<word>   [A-Za-z_] \w* )
    | (?P<name>   ` (?: [^`] | `` )+ ` )
    | (?P<string> ' [^']* ' | " [^"]* " )
    | (?P<sign>   <=> | == | != | <> | <= | >= | [=<>!().,-] )
    | (?P<end>    \Z )
    | (?P<other>  \S\w* )
    )""",
    re.ASCII | re.VERBOSE,
)
KEYWORDS: Final = frozenset(
    ("and", "between", "false", "in", "is", "like", "not", "null", "or", "true")
) | {"current_path"}  # for which Spark calls a function, even beside a column of this name
"""Words that are columns in backticks only."""
_OPERATORS: Final = {op: op for op in (*NEGATED, "<=>")} | {"==": "=", "<>": "!="}
_DECIMAL_DIGITS_MAX: Final = 38
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_TIME: Final = re.compile(
    r"\d{4}-\d\d-\d\d[ T]([01]\d|2[0-3]):\d\d:\d\d(\.\d{1,6})?"
    r"(?P<zone>Z|[+-](0\d|1[0-7]):[0-5]\d|[+-]18:00)?",
    re.ASCII,
)
_TYPED: Final = {
    "x": "X'1F'",
    "date": "date '2026-01-31'",
    "timestamp": "timestamp '2026-01-31 12:00:00+01:00', with its zone",
    "timestamp_ntz": "timestamp_ntz '2026-01-31 12:00:00'",
}
"""Examples of literals whose type is named before their text."""


class RefusedError(ValueError):
    """The text is not a condition that is possible here; the message says where and why."""


class _Token(NamedTuple):
    kind: str
    text: str
    start: int


def parse_condition(text: str) -> Condition:
    """Parse a condition. Raises RefusedError."""
    if len(text) > TEXT_LENGTH_MAX:
        raise RefusedError(f"has {len(text)} characters, more than {TEXT_LENGTH_MAX}")
    if "\\" in text:
        raise RefusedError("has a backslash, which Spark's settings give different meanings")
    parser = _Parser(text)
    condition = parser.condition(is_negated=False)
    parser.expect("end", "and, or, an operator or the end")
    return condition


def _tokens(text: str) -> list[_Token]:
    found = []
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup
        assert kind is not None
        found.append(_Token(kind, match[kind], match.start(kind)))
        if kind == "end":
            break
    return found


class _Parser:
    """Recursive descent over tokens; `is_negated` says that a `not` around a condition applies."""

    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self._at = 0
        self._depth = 0

    def condition(self, *, is_negated: bool) -> Condition:
        """Parse alternatives of `or`; negated, all of them have to be false."""
        operands = self._chain("or", lambda: self._all(is_negated=is_negated))
        return operands[0] if len(operands) == 1 else (AnyOf, AllOf)[is_negated](operands)

    def _all(self, *, is_negated: bool) -> Condition:
        operands = self._chain("and", lambda: self._term(is_negated=is_negated))
        return operands[0] if len(operands) == 1 else (AllOf, AnyOf)[is_negated](operands)

    def _chain(self, word: str, operand: Callable[[], Condition]) -> tuple[Condition, ...]:
        operands = [operand()]
        while self._take(word):
            operands.append(operand())
        return tuple(operands)

    def _term(self, *, is_negated: bool) -> Condition:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise RefusedError(f"is nested too deeply: {DEPTH_MAX} levels are possible")
        if self._take("not") or self._take("!"):
            found = self._term(is_negated=not is_negated)
        elif self._take("("):
            found = self.condition(is_negated=is_negated)
            self.expect(")", "and, or, an operator or a closing parenthesis")
        else:
            found = self._predicate(is_negated=is_negated)
        self._depth -= 1
        return found

    def _predicate(self, *, is_negated: bool) -> Condition:
        if not self._is_column():
            value = self._literal("a condition, a column or a value")
            op = self._maybe_operator()
            if op is None:
                raise self._refused("a comparison with a column")
            return _compared(self._path(), MIRRORED.get(op, op), value, is_negated=is_negated)
        path = self._path()
        op = self._maybe_operator()
        if op is not None:
            return _compared(path, op, self._literal(), is_negated=is_negated)
        if self._take("is"):
            is_negated ^= self._take("not")
            self.expect("null", "null or not null")
            return IsNull(path, is_negated)
        has_not = self._take("not")
        is_negated ^= has_not
        if self._take("in"):
            return _one_of(path, self._list(), is_negated=is_negated)
        if self._take("between"):
            low = self._literal()
            self.expect("and", "and")
            bounds = ((">=", low), ("<=", self._literal()))
            found = tuple(_compared(path, *each, is_negated=is_negated) for each in bounds)
            return (AllOf, AnyOf)[is_negated](found)
        if self._take("like"):
            return StartsWith(path, self._prefix(), is_negated)
        if has_not:
            raise self._refused("in, between or like")
        return _compared(path, "=", True, is_negated=is_negated)

    def _is_column(self) -> bool:
        token, following = self._tokens[self._at], self._tokens[self._at + 1 :]
        if token.kind != "word":
            return token.kind == "name"
        is_typed = token.text.lower() in _TYPED and following[0].kind == "string"
        return token.text.lower() not in KEYWORDS and not is_typed

    def _path(self) -> Path:
        if not self._is_column():
            raise self._refused("a column (in backticks, if its name is a word of the grammar)")
        names = [self._name()]
        while self._take("."):
            if self._tokens[self._at].kind not in {"word", "name"}:
                raise self._refused("a field")
            names.append(self._name())
        return tuple(names)

    def _name(self) -> str:
        token = self._next()
        return token.text if token.kind == "word" else token.text[1:-1].replace("``", "`")

    def _maybe_operator(self) -> str | None:
        """Take a comparison operator, if there is one."""
        op = _OPERATORS.get(self._tokens[self._at].text)
        self._at += op is not None
        return op

    def _list(self) -> tuple[Value | None, ...]:
        self.expect("(", "values in parentheses")
        values = [self._literal()]
        while self._take(","):
            values.append(self._literal())
        self.expect(")", "a comma or a closing parenthesis")
        return tuple(values)

    def _prefix(self) -> str:
        token = self._tokens[self._at]
        if token.kind != "string" or not re.fullmatch("[^%_]*%", token.text[1:-1]):
            raise self._refused("a prefix and a %, such as 'A%'")
        return self._next().text[1:-2]

    def _literal(self, expected: str = "a value") -> Value | None:
        is_minus = self._take("-")
        token = self._tokens[self._at]
        if is_minus and token.kind != "number":
            raise self._refused("a number")
        word = token.text.lower() if token.kind == "word" else ""
        if word in {"null", "true", "false"}:
            self._at += 1
            return None if word == "null" else word == "true"
        if word in _TYPED and self._tokens[self._at + 1].kind == "string":
            self._at += 1
            return _typed(word, self._next().text[1:-1])
        if token.kind == "number":
            return _number("-" * is_minus + self._next().text)
        if token.kind == "string":
            return self._next().text[1:-1]
        raise self._refused(expected)

    def expect(self, text: str, expected: str) -> None:
        """Take a token that has to be there. Raises RefusedError."""
        if not self._take(text):
            raise self._refused(expected)

    def _take(self, text: str) -> bool:
        """Take a word, a sign or the end, if it is there."""
        token = self._tokens[self._at]
        is_there = token.kind in {"word", "sign", "end"} and text == (
            token.text.lower() or token.kind
        )
        self._at += is_there
        return is_there

    def _next(self) -> _Token:
        self._at += 1
        return self._tokens[self._at - 1]

    def _refused(self, expected: str) -> RefusedError:
        token = self._tokens[self._at]
        shown = token.text if len(token.text) <= 80 else f"{token.text[:80]}..."
        found = f"has {shown}" if shown else "ends"
        return RefusedError(f"{found} at character {token.start + 1} where {expected} is expected")


def _compared(path: Path, op: str, value: Value | None, *, is_negated: bool) -> Condition:
    if value is None:
        return IsNull(path, is_negated) if op == "<=>" else OneOf(path, ())
    if op == "<=>" and is_negated:
        return AnyOf((Comparison(path, "!=", value), IsNull(path)))
    op = "=" if op == "<=>" else op
    return Comparison(path, NEGATED[op] if is_negated else op, value)


def _one_of(path: Path, values: tuple[Value | None, ...], *, is_negated: bool) -> OneOf:
    given = tuple(each for each in values if each is not None)
    if is_negated and len(given) < len(values):  # null may be the value, so nothing is outside
        return OneOf(path, ())
    return OneOf(path, given, is_negated)


def _number(text: str) -> int | Decimal | float:
    if "e" in text.lower():
        value = float(text)
        if not isfinite(value):
            raise RefusedError(f"has {text}, which is above the largest double")
        return value
    exact = Decimal(text)
    _, digits, exponent = exact.as_tuple()
    assert isinstance(exponent, int)
    if max(len(digits), -exponent) > _DECIMAL_DIGITS_MAX:
        raise RefusedError(f"has {text}, and a decimal has {_DECIMAL_DIGITS_MAX} digits at most")
    return exact if "." in text else int(text)


def _typed(word: str, text: str) -> bytes | date | datetime:
    """Return the value of X'...', date '...', timestamp '...' or timestamp_ntz '...'."""
    reason = ""
    try:
        if word == "x" and re.fullmatch("[0-9A-Fa-f]*", text):
            return bytes.fromhex(text.zfill(len(text) + len(text) % 2))
        if word == "date" and _DATE.fullmatch(text):
            return date.fromisoformat(text)
        found = _TIME.fullmatch(text)
        if found and word == ("timestamp" if found["zone"] else "timestamp_ntz"):
            return datetime.fromisoformat(text)
    except ValueError as error:
        reason = f" ({error})"
    raise RefusedError(f"has {word} '{text}'{reason}; write it as in {_TYPED[word]}")
