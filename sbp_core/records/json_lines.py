"""Lines of JSON as rows of a stream."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa

from sbp_core.records.json_parsing import RowFault, parse_plain_rows, parse_typed_rows
from sbp_core.records.stream_schema import StreamSchema

_HALF_PAIR: Final = re.compile(
    rb"(?:[^\\]+|\\[^u]|\\u(?![dD][89a-fA-F])"
    rb"|\\u[dD][89abAB][\da-fA-F]{2}\\u[dD][c-fC-F][\da-fA-F]{2})*+"
    rb"(\\u[dD][89a-fA-F][\da-fA-F]{2})",
    re.DOTALL,
)
"""A line up to the first escape that is half of a surrogate pair, which is no character."""
_NAME_END: Final = re.compile(rb'"[ \t\r\n]*:')
"""The end of a name in an object. Texts with JSON in them have some, too."""


def check_names(data: bytes | bytearray) -> None:
    """Raise ValueError for an object that has a name twice: readers differ in its value."""
    json.loads(data.decode(), object_pairs_hook=_unique)


def _unique(pairs: list[tuple[str, Any]]) -> None:
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        twice = next(name for index, name in enumerate(names) if name in names[:index])
        raise ValueError(f"an object has {ascii(twice)[:40]} twice")


def _name_count(value: Any) -> int:
    """Return the names in all objects of a value."""
    if isinstance(value, dict):
        return len(value) + sum(
            _name_count(each) for each in value.values() if isinstance(each, dict | list)
        )
    if isinstance(value, list):
        return sum(_name_count(each) for each in value if isinstance(each, dict | list))
    return 0


def parse_json_lines(
    lines: Sequence[bytes], schema: StreamSchema | None, *, default_timestamp_us: int | None
) -> pa.RecordBatch:
    """Return a row for each line: of a typed stream's `schema`, or of ROWS_SCHEMA without one.

    Plain records that bring no time get the default one, microseconds since the epoch; None is
    none. Raises RowFault.
    """
    values = [_decoded(index, line) for index, line in enumerate(lines)]
    if schema is None:
        return parse_plain_rows(values, default_timestamp_us=default_timestamp_us)
    return parse_typed_rows(values, schema)


def _decoded(index: int, line: bytes) -> Any:
    try:
        value = msgspec.json.decode(line)
        if _name_count(value) < len(_NAME_END.findall(line)):
            check_names(line)
        return value
    except RecursionError as error:
        raise RowFault(index, "it is nested too deeply") from error
    except ValueError as error:  # also UnicodeDecodeError
        half = _HALF_PAIR.match(line)
        if half is not None:
            raise RowFault(
                index, f"{half[1].decode('ascii')} is half of a surrogate pair"
            ) from error
        raise RowFault(index, f"it is no JSON: {error}") from error
