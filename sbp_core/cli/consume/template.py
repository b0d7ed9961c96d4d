r"""The lines that `sbp consume --template` prints: `%t %o %k %v\n`, as kcat has them."""

from __future__ import annotations

import enum
import os
import re
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from sbp_core.cli.consume.joining import Part, join
from sbp_core.cli.consume.json_text import json_texts, object_texts
from sbp_core.cli.consume.rows import Rows
from sbp_core.cli.output import value_text
from sbp_core.errors import ConfigurationError
from sbp_core.quantities import quoted

_TOKEN: Final = re.compile(
    rb"%(?P<field>[\x20-\x7e])|\\x(?P<byte>[0-9A-Fa-f]{2})|\\(?P<escape>[^x])|(?P<text>[^%\\]+)",
    re.DOTALL,
)
_ESCAPES: Final = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"\\": b"\\"}


class Field(enum.Enum):
    """A part of a record, by the letter behind a percent sign."""

    STREAM = "t"
    OFFSET = "o"
    TIME_MS = "T"
    KEY = "k"
    KEY_LENGTH = "K"
    VALUE = "v"
    VALUE_LENGTH = "S"
    HEADERS = "h"


_FIELDS: Final = {each.value: each for each in Field} | {"s": Field.VALUE}


@dataclass(frozen=True, slots=True)
class Template:
    """Constants and fields, one behind the other."""

    parts: tuple[bytes | Field, ...]


def parse_template(text: str) -> Template:
    r"""Return a template. Raises ConfigurationError.

    %t is the stream, %o the offset, %T the time in ms, %k the key, %K its length, %v or %s the
    value, %S its length, %h the headers, %% a percent sign; \n, \t, \r, \\ and \xHH are bytes.
    """
    data, parts, at = os.fsencode(text), [], 0
    while at < len(data):
        token = _TOKEN.match(data, at)
        part = None if token is None else _maybe_part(token)
        if token is None or part is None:
            wrong = os.fsdecode(data[at : at + 2])
            raise ConfigurationError(
                f"{wrong!a} in the template is none of %t %o %T %k %K %v %s %S %h %% \\n \\t \\r"
                " \\xHH, nor a backslash as \\\\"
            )
        parts.append(part)
        at = token.end()
    if not any(isinstance(each, Field) for each in parts):
        raise ConfigurationError(
            f"{quoted(text)} has no field such as %v, so each record would look the same; for JSON,"
            " CSV, Parquet or Arrow write --format json and so on"
        )
    return Template(tuple(parts))


def _maybe_part(token: re.Match[bytes]) -> bytes | Field | None:
    if (text := token["text"]) is not None:
        return text
    if (field := token["field"]) is not None:
        return b"%" if field == b"%" else _FIELDS.get(field.decode())
    if (byte := token["byte"]) is not None:
        return bytes.fromhex(byte.decode())
    return _ESCAPES.get(token["escape"])


def fill(template: Template, rows: Rows, *, is_terminal: bool) -> memoryview:
    """Return the bytes for records; on a terminal keys, values and headers are made safe."""
    parts: list[Part] = []
    for each in template.parts:
        part = _field(each, rows) if isinstance(each, Field) else each
        if is_terminal and each in {Field.KEY, Field.VALUE, Field.HEADERS}:
            part = safe(part)
        parts.append(part)
    return join(parts, len(rows))


def values(rows: Rows) -> pa.BinaryArray:
    """Return the value of each record; of a typed stream its columns, as an object of JSON."""
    if rows.is_typed:
        columns = rows.columns
        return object_texts(
            {name: json_texts(columns.column(name)) for name in columns.schema.names}
        ).cast(pa.binary())
    return pc.fill_null(rows.columns.column("value"), b"")


def safe(texts: pa.BinaryArray) -> pa.BinaryArray:
    """Return bytes as a terminal can show them."""
    return pa.array([value_text(each).encode() for each in texts.to_pylist()], pa.binary())


def _field(field: Field, rows: Rows) -> Part:
    match field:
        case Field.STREAM:
            return rows.stream
        case Field.OFFSET:
            return rows.offsets.cast(pa.string())
        case Field.TIME_MS:
            times = rows.times.cast(pa.timestamp("ms"), safe=False)
            return times.cast(pa.int64()).cast(pa.string())
        case Field.VALUE:
            return values(rows)
        case Field.VALUE_LENGTH:
            own = values(rows) if rows.is_typed else rows.columns.column("value")
            return _lengths(own)
    if rows.is_typed:  # which has neither keys nor headers
        return "-1" if field is Field.KEY_LENGTH else pa.repeat(pa.scalar(b""), len(rows))
    if field is Field.HEADERS:
        headers = rows.columns.column("headers").to_pylist()
        return pa.array(map(_shown_headers, headers), pa.binary())
    keys = rows.columns.column("key")
    return _lengths(keys) if field is Field.KEY_LENGTH else pc.fill_null(keys, b"")


def _lengths(column: pa.BinaryArray) -> pa.StringArray:
    """Return how many bytes values have, -1 where there is none."""
    return pc.fill_null(pc.binary_length(column), -1).cast(pa.string())


def _shown_headers(headers: list[tuple[str, bytes | None]] | None) -> bytes:
    return b",".join(name.encode() + b"=" + (value or b"") for name, value in headers or ())
