"""The input of `sbp produce`: a file or standard input, in one of the formats."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import PurePath
from typing import Final

from sbp_core.cli.produce.lines import STANDARD_INPUT, Opened
from sbp_core.cli.produce.parsing import Parsing, Piece
from sbp_core.errors import ConfigurationError

Reader = Callable[[Opened, Parsing], Iterator[Piece]]

LINES: Final = "lines"
_READERS: Final[Mapping[str, str]] = {
    LINES: "texts:read_values",
    "json": "texts:read_json",
    "csv": "csv_rows:read_csv",
    "parquet": "tables:read_parquet",
    "arrow": "tables:read_arrow",
}
"""By format: the function that reads it, which is imported when it is needed."""
FORMATS: Final = (*_READERS,)
_SUFFIXES: Final = {
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".csv": "csv",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".arrows": "arrow",
    ".feather": "arrow",
}


def format_of(path: str | None) -> str:
    """Return the format that the name of a file stands for; lines if it has none."""
    return LINES if path is None else _SUFFIXES.get(PurePath(path).suffix.lower(), LINES)


def reader_of(form: str) -> Reader:
    """Return the function that reads one of the FORMATS."""
    module, _, function = _READERS[form].partition(":")
    reader: Reader = getattr(import_module(f"sbp_core.cli.produce.{module}"), function)
    return reader


@contextmanager
def opened(path: str | None) -> Iterator[Opened]:
    """Open a file; standard input without a path. Raises ConfigurationError."""
    if path is None:
        yield Opened(sys.stdin.fileno(), STANDARD_INPUT)
        return
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from error
    try:
        yield Opened(descriptor, path)
    finally:
        os.close(descriptor)
