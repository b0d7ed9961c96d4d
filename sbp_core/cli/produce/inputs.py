"""The input of `sbp produce`: a file or standard input, as lines or as rows of a format."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from sbp_core import limits
from sbp_core.app.encoding import Target
from sbp_core.cli import formats
from sbp_core.errors import ConfigurationError, RecordBatchError
from sbp_core.records import ROWS_SCHEMA, record_too_large
from sbp_core.records.json_lines import parse_json_lines
from sbp_core.records.json_parsing import RowFault

_READ_BYTES: Final = limits.MIB
LINGER_SECONDS: Final = 0.05
"""How long the first record of a batch waits for others, unless more input is there already."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A file that is open for reading, or standard input; `name` is what errors call it."""

    descriptor: int
    name: str

    def failed(self, error: OSError) -> ConfigurationError:
        """Return the error of a read that failed."""
        hint = "; name a FILE, pipe lines into it, or use </dev/null" if self.is_standard else ""
        return ConfigurationError(f"{self.name} cannot be read: {error.strerror or error}{hint}")

    @property
    def is_standard(self) -> bool:
        """Whether it is standard input."""
        return self.name == STANDARD_INPUT


STANDARD_INPUT: Final = "standard input"


def read_lines(
    source: Opened,
    read_bytes: int = _READ_BYTES,
    *,
    line_bytes_max: int = limits.RECORD_BYTES_MAX,
    linger_seconds: float = LINGER_SECONDS,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[list[bytes]]:
    """Yield the lines of a file, as they come, without their newlines.

    An empty list means that the lines since the last one have waited `linger_seconds` by `clock`,
    and that no input is there now. The last line may lack its newline.
    Raises RecordBatchError for a line that is longer than `line_bytes_max`, by its number, after
    the lines before it; ConfigurationError for a file that cannot be read.
    """
    rest: list[bytes] = []
    rest_bytes = line_count = 0
    due_at: float | None = None
    while True:
        seconds = None if due_at is None else max(0.0, due_at - clock())
        if not select.select([source.descriptor], [], [], seconds)[0]:
            due_at = None
            yield []
            continue
        try:
            data = os.read(source.descriptor, read_bytes)
        except OSError as error:
            raise source.failed(error) from error
        first, *others = data.split(b"\n")
        rest.append(first)
        rest_bytes += len(first)
        if others:
            lines = [b"".join(rest), *others]
            last = lines.pop()
            rest, rest_bytes = [last], len(last)
            line_count += len(lines)
            if due_at is None:
                due_at = clock() + linger_seconds
            yield lines
        if rest_bytes > line_bytes_max:
            raise RecordBatchError(
                f"line {line_count + 1} has at least {record_too_large(rest_bytes, line_bytes_max)}"
            )
        if not data:
            if rest_bytes:
                yield [b"".join(rest)]
            return


Piece: TypeAlias = pa.RecordBatch | None
"""Rows of the stream. None: no more input is there now, and the rows before have waited for it."""

PLACE_COLUMNS: Final = frozenset({"stream", "offset"})
"""Columns of `sbp consume` that say where a record was. Plain records leave these columns out."""
_HEADERS: Final = ROWS_SCHEMA.field("headers").type


@dataclass(frozen=True, slots=True)
class Defaults:
    """Key, headers and time of plain records that bring none.

    The time is in microseconds since the epoch; None is the time at which a record is read.
    """

    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    timestamp_us: int | None = None

    @property
    def time_us(self) -> int:
        """The time of a record that is read now."""
        return time.time_ns() // 1000 if self.timestamp_us is None else self.timestamp_us

    def filled(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows of ROWS_SCHEMA with key and headers where they have none."""
        key, value, headers, timestamp = rows.columns
        if self.key is not None:
            key = pc.fill_null(key, pa.scalar(self.key, pa.binary()))
        if self.headers:
            headers = pc.fill_null(headers, pa.scalar(list(self.headers), _HEADERS))
        return pa.RecordBatch.from_arrays([key, value, headers, timestamp], schema=ROWS_SCHEMA)


@dataclass(frozen=True, slots=True)
class Parsing:
    """How an input is to be read: for which stream, and with which options."""

    target: Target
    defaults: Defaults = Defaults()
    key_separator: bytes | None = None


def parse_until_fault(
    lines: Sequence[tuple[int, bytes]], parse: Callable[[Sequence[bytes]], pa.RecordBatch]
) -> tuple[pa.RecordBatch, RecordBatchError | None]:
    """Return the rows of numbered lines up to the first that has a fault, and its error."""
    try:
        return parse([line for _, line in lines]), None
    except RowFault as fault:
        rows, earlier = parse_until_fault(lines[: fault.index], parse)
        error = RecordBatchError(f"line {lines[fault.index][0]}: {fault.reason}")
        return rows, earlier or error


JSON_BYTES_PER_BYTE: Final = 6
"""Bytes that JSON may need for one byte of a record: an escape such as \\u0000."""
JSON_BYTES_AROUND: Final = 65_536
"""Bytes of a line that are no content: names of columns, punctuation, white space."""


def read_values(source: Opened, parsing: Parsing) -> Iterator[Piece]:
    """Yield a record for each line, without its newline; the key stands before the separator."""
    bytes_max = parsing.target.record_bytes_max
    for lines in read_lines(source, line_bytes_max=bytes_max):
        if not lines:
            yield None
            continue
        rows = rows_of_lines(lines, parsing.key_separator, timestamp_us=parsing.defaults.time_us)
        yield parsing.defaults.filled(rows)


def read_json(source: Opened, parsing: Parsing) -> Iterator[Piece]:
    """Yield a record for each line of JSON that is not empty, as `sbp consume --json` prints it.

    Raises RecordBatchError for the first line with a fault, by its number, after those before it.
    """
    schema, defaults = parsing.target.schema, parsing.defaults

    def parse(lines: Sequence[bytes]) -> pa.RecordBatch:
        rows = parse_json_lines(lines, schema, default_timestamp_us=defaults.time_us)
        return defaults.filled(rows) if schema is None else rows

    bytes_max = parsing.target.record_bytes_max * JSON_BYTES_PER_BYTE + JSON_BYTES_AROUND
    line_count = 0
    for lines in read_lines(source, line_bytes_max=bytes_max):
        if not lines:
            yield None
            continue
        numbered = [(at, line) for at, line in enumerate(lines, line_count + 1) if line.strip()]
        line_count += len(lines)
        rows, fault = parse_until_fault(numbered, parse)
        yield rows
        if fault is not None:
            raise fault


def rows_of_lines(
    lines: Sequence[bytes], separator: bytes | None, *, timestamp_us: int
) -> pa.RecordBatch:
    """Return one row per line; `timestamp_us` is microseconds since the epoch.

    The text before the first `separator` is the key; a line without a separator has a null key.
    """
    count = len(lines)
    keys = pa.nulls(count, pa.binary())
    values = lines
    if separator is not None:
        parts = [line.partition(separator) for line in lines]
        keys = pa.array([before if found else None for before, found, _ in parts], pa.binary())
        values = [after if found else before for before, found, after in parts]
    _, _, headers, timestamp = ROWS_SCHEMA.types
    return pa.RecordBatch.from_arrays(
        [
            keys,
            pa.array(values, pa.binary()),
            pa.nulls(count, headers),
            pa.repeat(pa.scalar(timestamp_us, timestamp), count),
        ],
        schema=ROWS_SCHEMA,
    )


Reader: TypeAlias = Callable[[Opened, Parsing], Iterator[Piece]]

_READERS: Final[Mapping[str, str]] = {
    formats.LINES: "inputs:read_values",
    formats.JSON: "inputs:read_json",
    formats.CSV: "csv_inputs:read_csv",
    formats.PARQUET: "arrow_inputs:read_parquet",
    formats.ARROW: "arrow_inputs:read_arrow",
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
