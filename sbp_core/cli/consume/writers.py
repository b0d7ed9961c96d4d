"""Where records go, and their form: text, or tables of Parquet and of Arrow's IPC formats.

A file gets its name once it is complete.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, Protocol, Self

import pyarrow as pa
import pyarrow.parquet as pq

from sbp_core import limits
from sbp_core.cli.consume.rendering import Render, other_columns
from sbp_core.cli.consume.selected_rows import Choice, Rows
from sbp_core.cli.output import OutputError, write_all, writing

_UMASK_MODE: Final = 0o666


@dataclass(frozen=True, slots=True)
class Target:
    """A file that is open for writing; `guard` makes errors of the command of its errors."""

    file: BinaryIO
    guard: Callable[[], AbstractContextManager[None]]
    is_terminal: bool

    def write(self, data: memoryview | bytes) -> None:
        """Write bytes, at once. Raises OutputError, ReaderGoneError."""
        with self.guard():
            write_all(self.file, data)


def standard_output() -> Target:
    """Return standard output as it is."""
    return Target(sys.stdout.buffer, writing, sys.stdout.isatty())


@contextmanager
def file_target(path: str) -> Iterator[Target]:
    """Open a file, which replaces the one at `path` when the body ends.

    Nothing is left of it if the body raises. A device or a pipe is written as it is. Raises
    OutputError.
    """

    @contextmanager
    def guard() -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OutputError(f"{path} cannot be written: {error.strerror or error}") from error

    with guard():
        place = Path(path).resolve()
        if place.exists() and not place.is_file():
            temporary = None
            file: BinaryIO = place.open("wb")
        else:
            descriptor, made = tempfile.mkstemp(dir=place.parent, prefix=f".{place.name[:100]}.")
            temporary = Path(made)
            file = os.fdopen(descriptor, "wb")
    try:
        yield Target(file, guard, file.isatty())
        with guard():
            _complete(file, temporary, place)
    except BaseException:
        with suppress(OSError):
            file.close()
        if temporary is not None:
            with suppress(OSError):
                temporary.unlink()
        raise


def _complete(file: BinaryIO, temporary: Path | None, place: Path) -> None:
    """Give a file that is on the disk its name, and the mode of any new file."""
    file.flush()
    if temporary is not None:
        mask = os.umask(0)
        os.umask(mask)
        os.fchmod(file.fileno(), _UMASK_MODE & ~mask)
        os.fsync(file.fileno())
        temporary.replace(place)
    file.close()


_GROUP_BYTES: Final = 64 * limits.MIB
"""Bytes in memory that become a row group of Parquet."""


class Writer(Protocol):
    """Writes records to a target. A context: what is left is written when the body succeeds."""

    def write(self, rows: Rows) -> None:
        """Write records. Raises SbpError."""

    def __enter__(self) -> Writer: ...

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None: ...


class TextWriter:
    """Writes the text of records, at once."""

    def __init__(self, target: Target, render: Render) -> None:
        self._target = target
        self._render = render

    def write(self, rows: Rows) -> None:
        """Write records."""
        self._target.write(self._render(rows))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Write nothing: all is written."""


class TableWriter:
    """Writes a table, whose columns are those of the first records.

    A table without records has no columns. Row groups of Parquet are in memory until they are full.
    """

    def __init__(self, target: Target, choice: Choice, *, is_parquet: bool, is_file: bool) -> None:
        self._target = target
        self._choice = choice
        self._is_parquet = is_parquet
        self._is_file = is_file
        self._writer: pq.ParquetWriter | pa.RecordBatchWriter | None = None
        self._schema: pa.Schema | None = None
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = 0

    def write(self, rows: Rows) -> None:
        """Write records. Raises SchemaError for other columns than those before."""
        columns = self._choice.of(rows)
        if self._schema is None:
            self._schema = columns.schema
        elif not self._schema.equals(columns.schema):
            raise other_columns(rows.stream)
        self._held.append(columns)
        self._held_bytes += columns.nbytes
        if not self._is_parquet or self._held_bytes >= _GROUP_BYTES:
            self._write_held()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._write_held()
                with self._target.guard():
                    self._opened().close()
                    self._target.file.flush()
        finally:
            if isinstance(self._writer, pq.ParquetWriter):
                self._writer.is_open = False  # its finalizer would write to a closed file

    def _write_held(self) -> None:
        if not self._held:
            return
        table = pa.Table.from_batches(self._held)
        self._held, self._held_bytes = [], 0
        with self._target.guard():
            self._opened().write_table(table)
            self._target.file.flush()

    def _opened(self) -> pq.ParquetWriter | pa.RecordBatchWriter:
        if self._writer is None:
            schema = pa.schema([]) if self._schema is None else self._schema
            file = self._target.file
            if self._is_parquet:
                self._writer = pq.ParquetWriter(file, schema, compression="zstd")
            else:
                make = pa.ipc.new_file if self._is_file else pa.ipc.new_stream
                self._writer = make(file, schema)
        return self._writer
