"""The input of `sbp produce`: a file or standard input, in one of the formats."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Final

from sbp_core.cli import formats
from sbp_core.cli.produce.lines import STANDARD_INPUT, Opened
from sbp_core.cli.produce.parsing import Parsing, Piece
from sbp_core.errors import ConfigurationError

Reader = Callable[[Opened, Parsing], Iterator[Piece]]

_READERS: Final[Mapping[str, str]] = {
    formats.LINES: "texts:read_values",
    formats.JSON: "texts:read_json",
    formats.CSV: "csv_rows:read_csv",
    formats.PARQUET: "tables:read_parquet",
    formats.ARROW: "tables:read_arrow",
}
"""By format: the function that reads it, which is imported when it is needed."""


def reader_of(form: str) -> Reader:
    """Return the function that reads a format."""
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
