"""How records are written: as text, or as tables of Parquet and of Arrow's IPC formats."""

from __future__ import annotations

from typing import Final, Protocol, Self

import pyarrow as pa
import pyarrow.parquet as pq

from sbp_core import limits
from sbp_core.cli.consume.rendering import Render, other_columns
from sbp_core.cli.consume.rows import Choice, Rows
from sbp_core.cli.consume.target import Target

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
