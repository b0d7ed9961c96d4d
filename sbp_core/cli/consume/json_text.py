"""Columns as texts of JSON: what `to_json` makes of each value that `describe_values` returns.

Text, numbers and times are written by Arrow for all rows together, which is 20 times as fast as
`to_json` for each; the values of other types are written one by one.
"""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from sbp_core.cli.consume.joining import content, join_text
from sbp_core.cli.output import to_json
from sbp_core.records.json_values import describe_bytes, describe_values

_ESCAPES: Final = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}
"""The backslash is first: the others bring backslashes of their own."""
_WITHOUT_BREAKS: Final = str.maketrans("", "", "\n\t\r")
_FIRST_US: Final = -62_135_596_800_000_000
_LAST_US: Final = 253_402_300_799_999_999
"""The years 1 to 9999, which ISO 8601 has."""


def json_texts(column: pa.Array) -> pa.StringArray:
    """Return the values of a column as JSON; `null` where there is none."""
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        texts = _strings(column)
    elif pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        texts = column.cast(pa.string())
    elif (times := maybe_time_texts(column)) is not None:
        texts = join_text(['"', times, '"'])
    else:
        texts = _one_by_one(describe_values(column))
    return pc.fill_null(texts, "null")


def maybe_time_texts(column: pa.Array) -> pa.StringArray | None:
    """Return the times of a column in ISO 8601, None if it has others than that can express."""
    if not (pa.types.is_timestamp(column.type) and column.type.unit == "us"):
        return None
    micros = column.cast(pa.int64())
    first, last = (each.as_py() for each in pc.min_max(micros).values())
    if first is None or first < _FIRST_US or last > _LAST_US:
        return None
    texts = micros.cast(pa.timestamp("us")).cast(pa.string())
    texts = pc.binary_replace_slice(texts, 10, 11, "T")
    return texts if column.type.tz is None else join_text([texts, "+00:00"])


def header_texts(headers: pa.MapArray) -> pa.StringArray:
    """Return headers as lists of pairs: a name may occur several times."""
    if headers.null_count == len(headers):
        return pa.repeat("null", len(headers))
    return pc.fill_null(_one_by_one([_pairs(each) for each in headers.to_pylist()]), "null")


def object_texts(fields: Mapping[str, pa.StringArray]) -> pa.StringArray:
    """Return objects with these fields, at least one, whose values are texts of JSON."""
    parts: list[pa.StringArray | str] = []
    for name, texts in fields.items():
        parts += [("{" if not parts else ", ") + to_json(name) + ": ", texts]
    return join_text([*parts, "}"])


def _strings(column: pa.Array) -> pa.StringArray:
    escaped = _maybe_escaped(column)
    if escaped is not None:
        return join_text(['"', escaped, '"'])
    return pa.array(map(_maybe_string, column.to_pylist()), pa.string())


def _maybe_escaped(column: pa.Array) -> pa.StringArray | None:
    """Return texts with the usual escapes, None if one needs others or is not UTF-8."""
    try:
        texts = column.cast(pa.string())
        whole = str(content(texts), "utf-8")
    except (pa.ArrowInvalid, UnicodeDecodeError):
        return None
    if not whole.isprintable() and not whole.translate(_WITHOUT_BREAKS).isprintable():
        return None
    for char, escape in _ESCAPES.items():
        if char in whole:
            texts = pc.replace_substring(texts, char, escape)
    return texts


def _maybe_string(value: str | bytes | None) -> str | None:
    if value is None:
        return None
    if isinstance(value, str):
        return to_json(value)
    try:
        return to_json(value.decode())
    except UnicodeDecodeError:
        return f'{{"base64": "{b2a_base64(value, newline=False).decode()}"}}'


def _one_by_one(values: list[Any]) -> pa.StringArray:
    return pa.array([None if each is None else to_json(each) for each in values], pa.string())


def _pairs(headers: list[tuple[str, bytes | None]] | None) -> list[list[Any]] | None:
    if headers is None:
        return None
    return [[name, None if value is None else describe_bytes(value)] for name, value in headers]
