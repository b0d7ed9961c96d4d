"""What the command writes: text for people, JSON for programs, errors in one line.

Everything is safe to show on a terminal, see `escaping`. Writing to standard output raises
OutputError or ReaderGoneError, which the command ends with.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from sbp_core.cli.escaping import escape, one_line, to_json, value_text
from sbp_core.cli.standard_streams import write_error_line, writing

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def write_line(text: str) -> None:
    """Write one line to standard output, at once."""
    write_lines([text])


def write_lines(texts: Iterable[str]) -> None:
    """Write lines to standard output, all at once."""
    with writing():
        print("\n".join(map(escape, texts)), flush=True)


def write_json(value: Any) -> None:
    """Write one JSON value as a line to standard output."""
    with writing():
        print(to_json(value, is_ascii=True))


def write_table(heading: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Write rows in aligned columns, the heading above them."""
    cells = [[escape(str(cell)) for cell in row] for row in (heading, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    with writing():
        for row in cells:
            padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            print("  ".join(padded).rstrip())


def write_values(values: Iterable[bytes]) -> None:
    """Write the values of records, a newline behind each: as they are, safe on a terminal."""
    if sys.stdout.isatty():
        values = (value_text(value).encode() for value in values)
    _write_bytes(values)


def write_records(values: Iterable[object]) -> None:
    """Write records as JSON in UTF-8, one in a line."""
    _write_bytes(to_json(value).encode() for value in values)


def show_time(time_ms: int) -> str:
    """Return a time, ms since 1970 UTC, in ISO 8601; "unknown" if it is negative."""
    if time_ms < 0:
        return "unknown"
    try:
        return (_EPOCH + timedelta(milliseconds=time_ms)).isoformat(timespec="seconds")
    except OverflowError:
        return f"{time_ms} ms"


def write_error(error: Exception) -> None:
    """Write an error and its notes as one line to standard error."""
    notes: list[str] = getattr(error, "__notes__", [])
    write_notice("; ".join([str(error), *notes]))


def write_notice(text: str) -> None:
    """Write what people should know to standard error."""
    write_error_line(f"sbp: {one_line(text)}")


def _write_bytes(lines: Iterable[bytes]) -> None:
    with writing():
        sys.stdout.buffer.write(b"".join(line + b"\n" for line in lines))
        sys.stdout.buffer.flush()
