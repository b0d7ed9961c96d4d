"""What the command writes: text for people, JSON for programs, errors in one line."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def write_line(text: str) -> None:
    """Write one line to standard output, at once."""
    print(text, flush=True)


def write_json(value: Any) -> None:
    """Write one JSON value as a line to standard output."""
    print(json.dumps(value))


def write_table(heading: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Write rows in aligned columns, the heading above them."""
    cells = [[str(cell) for cell in row] for row in (heading, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(padded).rstrip())


def show_time(time_ms: int) -> str:
    """Return a time, ms since 1970 UTC, in ISO 8601."""
    try:
        return (_EPOCH + timedelta(milliseconds=time_ms)).isoformat(timespec="seconds")
    except OverflowError:
        return f"{time_ms} ms"


def write_error(error: Exception) -> None:
    """Write an error and its notes as one line to standard error."""
    notes: list[str] = getattr(error, "__notes__", [])
    text = "; ".join([str(error), *notes])
    print(f"sbp: {_printable(text)}", file=sys.stderr)


def write_notice(text: str) -> None:
    """Write what people should know to standard error."""
    print(f"sbp: {text}", file=sys.stderr)


def discard_stdout() -> None:
    """Send what is still buffered nowhere, so that the exit of the process stays quiet."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _printable(text: str) -> str:
    """Return the text in one line; what came from a peer must not control the terminal."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode()
        for char in " ".join(text.split())
    )
