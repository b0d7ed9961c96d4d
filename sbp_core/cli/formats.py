"""The formats of records: what `--format` means in `sbp produce` and in `sbp consume`."""

from __future__ import annotations

from pathlib import PurePath
from typing import Final

import click

LINES: Final = "lines"
JSON: Final = "json"
CSV: Final = "csv"
PARQUET: Final = "parquet"
ARROW: Final = "arrow"
FORMATS: Final = (LINES, JSON, CSV, PARQUET, ARROW)
SUFFIXES: Final = {
    ".txt": LINES,
    ".json": JSON,
    ".jsonl": JSON,
    ".ndjson": JSON,
    ".csv": CSV,
    ".parquet": PARQUET,
    ".arrow": ARROW,
    ".feather": ARROW,
    ".arrows": ARROW,
}
"""By the end of a file's name. `.arrows` is a stream of Arrow IPC, `.arrow` a file of it."""


FORMAT: Final = click.Choice(FORMATS)


def maybe_format_of(path: str) -> str | None:
    """Return the format that the name of a file stands for, None if it says nothing."""
    return SUFFIXES.get(PurePath(path).suffix.lower())
