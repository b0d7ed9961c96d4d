"""The words of a condition, checked before they are parsed.

`sqlglot` accepts more than Spark: it ignores words that are missing or repeated, and reads comments
and values that Spark lacks. Spark refuses such a condition, or reads another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import sqlglot
from sqlglot import Token, TokenType

_BLANKS: Final = " \t\r\n"
_COMPARING: Final = frozenset(
    (
        TokenType.EQ,
        TokenType.NEQ,
        TokenType.LT,
        TokenType.LTE,
        TokenType.GT,
        TokenType.GTE,
        TokenType.NULLSAFE_EQ,
    )
)
_JOINING: Final = frozenset((TokenType.AND, TokenType.OR))
_OPENING: Final = (
    _COMPARING
    | _JOINING
    | {TokenType.L_PAREN, TokenType.COMMA, TokenType.NOT, TokenType.BETWEEN, TokenType.LIKE}
    | {TokenType.ALIAS}
)
"""Words behind which something begins: a condition, a column or a value."""
_BEGINNING_NOTHING: Final = (
    _COMPARING | _JOINING | {TokenType.R_PAREN, TokenType.COMMA, TokenType.PLUS, TokenType.IS}
)
_VALUES: Final = frozenset(
    (
        TokenType.NUMBER,
        TokenType.STRING,
        TokenType.HEX_STRING,
        TokenType.NULL,
        TokenType.TRUE,
        TokenType.FALSE,
    )
)
_BEHIND_NO_VALUE: Final = _VALUES | {
    TokenType.DATE,
    TokenType.TIMESTAMPTZ,
    TokenType.TIMESTAMPNTZ,
    TokenType.DOT,
}
"""Words that cannot follow a value: one more value, or the point of a path, which would drop it."""
_UNKNOWN_TO_SPARK: Final = frozenset((TokenType.ISNULL, TokenType.NOTNULL, TokenType.SEMICOLON))


def maybe_fault(text: str) -> str | None:
    """Return what is wrong with the words of a condition, with the place; None if nothing is.

    Raises TokenError if the text does not consist of words, such as with an open quote.
    """
    tokens = sqlglot.tokenize(text, dialect="spark")
    end = 0
    for at, token in enumerate(tokens):
        comment = _maybe_comment(text, end, token.start)
        if comment is not None:
            return comment
        end = token.end + 1
        word = text[token.start : end]
        wrong = _maybe_wrong(tokens[max(at - 2, 0) : at], token, word)
        if wrong is not None:
            return _misplaced(word, token.start, wrong)
    comment = _maybe_comment(text, end, len(text))
    if comment is None and (not tokens or tokens[-1].token_type in _OPENING):
        return f"is no condition: it ends at character {end}, and something is missing there"
    return comment


def _maybe_comment(text: str, start: int, end: int) -> str | None:
    """Return what is wrong between two words; None if there are blanks only."""
    between = text[start:end].strip(_BLANKS)
    if not between:
        return None
    return _misplaced(between, text.index(between, start), "comments are not possible here")


def _maybe_wrong(last: Sequence[Token], token: Token, word: str) -> str | None:
    """Return why a word cannot be where it is, behind the last two; None if it can."""
    kind = token.token_type
    if kind in _UNKNOWN_TO_SPARK:
        return "it is not in Spark's grammar"
    if kind is TokenType.HEX_STRING and word[0] == "0":
        return f"write X'{token.text}' for bytes"
    kinds = [each.token_type for each in last]
    if kind is TokenType.NULL and kinds[-1:] == [TokenType.NOT] and kinds[0] is not TokenType.IS:
        return "write is not null"
    if not last or kinds[-1] in _OPENING:
        is_missing = kind in _BEGINNING_NOTHING
        return "a condition, a column or a value is missing before it" if is_missing else None
    before = last[-1]
    if word == "!":
        return "write not"
    if before.start == token.start:  # sqlglot makes three words of a number with a suffix
        return "write the number without a suffix"
    if before.token_type is kind is TokenType.STRING:
        return 'a quote in text is written as in "it\'s"'
    is_fraction = before.token_type is TokenType.DOT and kind is TokenType.NUMBER
    if is_fraction and before.end + 1 < token.start:
        return "write it next to the point"
    if before.token_type in _VALUES and kind in _BEHIND_NO_VALUE:
        return "it cannot follow a value"
    return None


def _misplaced(word: str, start: int, why: str) -> str:
    shown = word if len(word) <= 80 else f"{word[:80]}..."
    return f"has {shown} at character {start + 1}: {why}"
