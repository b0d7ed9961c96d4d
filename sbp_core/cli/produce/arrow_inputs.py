"""Parquet and Arrow as rows: columns are found by their names."""

from __future__ import annotations

import io
import os
import select
from collections.abc import Iterator
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from sbp_core.cli.produce.inputs import LINGER_SECONDS, PLACE_COLUMNS, Opened, Parsing, Piece
from sbp_core.errors import ConfigurationError

_ROWS_AT_ONCE: Final = 8_192
_FILE_MAGIC: Final = b"ARROW1"


def read_parquet(source: Opened, parsing: Parsing) -> Iterator[Piece]:
    """Yield the rows of a Parquet file.

    Raises SchemaError for columns that do not fit, ConfigurationError for what is no such file.
    """
    with _file(source) as file:
        _check_seekable(file, source, "Parquet")
        try:
            batches = pq.ParquetFile(file).iter_batches(_ROWS_AT_ONCE)
        except (pa.ArrowException, OSError) as error:
            raise _damaged(source, "Parquet", error) from error
        yield from _rows(batches, source, parsing, "Parquet")


def read_arrow(source: Opened, parsing: Parsing) -> Iterator[Piece]:
    """Yield the rows of an Arrow IPC stream, as they come, or of an Arrow IPC file.

    Raises SchemaError for columns that do not fit, ConfigurationError for what is no such file.
    """
    with _file(source) as file:
        try:
            if file.peek(len(_FILE_MAGIC)).startswith(_FILE_MAGIC):
                _check_seekable(file, source, "an Arrow file")
                with pa.ipc.open_file(file) as reader:
                    batches = map(reader.get_batch, range(reader.num_record_batches))
                    yield from _rows(batches, source, parsing, "an Arrow file")
            else:
                with pa.ipc.open_stream(file) as reader:
                    yield from _rows(reader, source, parsing, "an Arrow stream")
        except (pa.ArrowException, OSError) as error:
            raise _damaged(source, "an Arrow stream or file", error) from error


def _rows(
    batches: Iterator[pa.RecordBatch], source: Opened, parsing: Parsing, form: str
) -> Iterator[Piece]:
    """Yield rows in the columns of the stream, and None where the next ones are late."""
    while True:
        try:
            batch = next(batches, None)
        except (pa.ArrowException, OSError) as error:
            raise _damaged(source, form, error) from error
        if batch is None:
            return
        yield _mapped(batch, parsing)
        if not select.select([source.descriptor], [], [], LINGER_SECONDS)[0]:
            yield None


def _mapped(batch: pa.RecordBatch, parsing: Parsing) -> pa.RecordBatch:
    now_us = parsing.defaults.time_us
    if parsing.target.schema is not None:
        return parsing.target.mapped(batch, now_us)
    own = [each for each in batch.schema.names if each not in PLACE_COLUMNS]
    return parsing.defaults.filled(parsing.target.mapped(batch.select(own), now_us))


def _file(source: Opened) -> io.BufferedReader:
    try:
        return os.fdopen(source.descriptor, "rb", closefd=False)
    except OSError as error:
        raise source.failed(error) from error


def _check_seekable(file: io.BufferedReader, source: Opened, form: str) -> None:
    if not file.seekable():
        raise ConfigurationError(
            f"{form} is read from its end, which {source.name} does not have before all is written:"
            " name a FILE, or send an Arrow stream, or lines"
        )


def _damaged(source: Opened, form: str, error: Exception) -> ConfigurationError:
    if isinstance(error, OSError) and error.errno:
        return source.failed(error)
    return ConfigurationError(f"{source.name} cannot be read as {form}: {error}")
