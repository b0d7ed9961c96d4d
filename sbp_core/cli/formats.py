"""The formats of records: what `--format` means in `sbp produce` and in `sbp consume`."""

from __future__ import annotations

from pathlib import PurePath
from typing import Final

import click

from sbp_core.quantities import quoted

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


class _Format(click.Choice[str]):
    """A format. A template of kcat in its place is refused, and the option for it is named."""

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if "%" in value:
            told = f"{quoted(value)} is a template, which `sbp consume` takes with --template"
            self.fail(f"{told}; the formats are {', '.join(FORMATS)}", param, ctx)
        return super().convert(value, param, ctx)


FORMAT: Final = _Format(FORMATS)


def maybe_format_of(path: str) -> str | None:
    """Return the format that the name of a file stands for, None if it says nothing."""
    return SUFFIXES.get(PurePath(path).suffix.lower())
