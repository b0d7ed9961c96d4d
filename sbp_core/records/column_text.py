r"""Columns from text, the inverse of `field_text`: `id int64 not null`, `tags list<string>`.

column   NAME type, a word or a string of JSON
type     KIND [as "LOGICAL TYPE"] [not null]
KIND     bool int8 ... (see stream_schema), decimal(P, S), list<type>, map<type, type>,
struct<column, ...>
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from sbp_core import limits
from sbp_core.errors import SchemaError
from sbp_core.records.stream_schema import PLAIN_TYPES, StreamSchema, with_logical_type

_TOKEN: Final = re.compile(
    r'\s*(?:(?P<string>"(?:[^"\\]|\\.)*")|(?P<word>\w+)|(?P<sign>[<>(),]))', re.ASCII
)
_TYPES: Final = {text: kind for kind, text in PLAIN_TYPES.items()}
_SHOWN_MAX: Final = 80


def parse_columns(texts: Sequence[str]) -> StreamSchema:
    """Return the schema with these columns. Raises SchemaError."""
    fields = []
    for text in texts:
        parser = _Parser(text)
        fields.append(parser.column(1))
        parser.check_end()
    return StreamSchema.of(pa.schema(fields))


class _Parser:
    """Reads one text, token by token."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0

    def column(self, depth: int) -> pa.Field:
        name = self._maybe("string")
        if name is None:
            return self._typed(self._word("the name of a column"), depth)
        try:
            return self._typed(json.loads(name), depth)
        except ValueError as error:
            raise self._wrong("a name in the form of JSON") from error

    def check_end(self) -> None:
        if self._text[self._position :].strip():
            raise self._wrong("the end")

    def _typed(self, name: str, depth: int) -> pa.Field:
        """Return the field of a name whose type comes next."""
        kind = self._kind(depth)
        logical = None
        if self._has_word("as"):
            logical = self._maybe("string")
            if logical is None:
                raise self._wrong("a logical type in quotes")
        is_nullable = True
        if self._has_word("not"):
            is_nullable = False
            if not self._has_word("null"):
                raise self._wrong("null")
        field = pa.field(name, kind, nullable=is_nullable)
        return field if logical is None else with_logical_type(field, logical[1:-1])

    def _kind(self, depth: int) -> pa.DataType:
        if depth > limits.SCHEMA_DEPTH_MAX + 1:
            raise self._wrong(f"at most {limits.SCHEMA_DEPTH_MAX} types in each other")
        word = self._word("a type")
        match word:
            case "decimal":
                self._sign("(")
                precision = self._number()
                self._sign(",")
                scale = self._number()
                self._sign(")")
                return self._decimal(precision, scale)
            case "list":
                self._sign("<")
                kind = pa.list_(self._typed("element", depth + 1))
            case "map":
                self._sign("<")
                key = self._typed("key", depth + 1).with_nullable(False)
                self._sign(",")
                kind = pa.map_(key, self._typed("value", depth + 1))
            case "struct":
                self._sign("<")
                fields = [self.column(depth + 1)]
                while self._maybe("sign", ",") is not None:
                    fields.append(self.column(depth + 1))
                kind = pa.struct(fields)
            case _ if word in _TYPES:
                return _TYPES[word]
            case _:
                known = ", ".join(_TYPES)
                raise self._wrong(f"one of {known}, decimal(p, s), list, map, struct", back=word)
        self._sign(">")
        return kind

    def _decimal(self, precision: int, scale: int) -> pa.DataType:
        try:
            return pa.decimal128(precision, scale)
        except ValueError as error:
            raise self._wrong("a decimal with a precision up to 38") from error

    def _maybe(self, group: str, wanted: str | None = None) -> str | None:
        """Return the next token if it belongs to a group, and equals `wanted` if given."""
        found = _TOKEN.match(self._text, self._position)
        if found is None or found[group] is None or wanted not in {None, found[group]}:
            return None
        self._position = found.end()
        token: str = found[group]
        return token

    def _word(self, expected: str) -> str:
        found = self._maybe("word")
        if found is None:
            raise self._wrong(expected)
        return found

    def _has_word(self, wanted: str) -> bool:
        return self._maybe("word", wanted) is not None

    def _number(self) -> int:
        found = self._word("a number")
        if not found.isdigit() or len(found) > 2:
            raise self._wrong("a number", back=found)
        return int(found)

    def _sign(self, wanted: str) -> None:
        if self._maybe("sign", wanted) is None:
            raise self._wrong(wanted)

    def _wrong(self, expected: str, back: str = "") -> SchemaError:
        """Return the error at this position, or before the token that was read last."""
        rest = self._text[self._position - len(back) :].strip()
        shown = ascii(rest[:_SHOWN_MAX]) if rest else "the end"
        return SchemaError(
            f"column {self._text[:_SHOWN_MAX]!a}: expected {expected}, found {shown}"
        )
