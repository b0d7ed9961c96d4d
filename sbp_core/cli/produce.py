"""`sbp produce`: append the lines of standard input as records."""

from __future__ import annotations

import os
import select
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa

from sbp_core import limits
from sbp_core.cli.connect import PATIENT, connect, find_stream
from sbp_core.cli.output import write_notice, write_result
from sbp_core.cli.parsing import add_client_options, parse_separator
from sbp_core.client import (
    AppendItem,
    AppendOutcome,
    Client,
    Dialect,
    StreamInfo,
    Writer,
    newest_schemas,
)
from sbp_core.errors import ConfigurationError, RecordBatchError, SbpError, UnsupportedError
from sbp_core.records import ROWS_SCHEMA, RowsBuilder, peek_batch, record_too_large
from sbp_core.wording import counted

_READ_BYTES: Final = limits.MIB
_LINGER_SECONDS: Final = 0.05
"""How long the first record of a batch waits for others, unless more input is there already."""


def add_produce(parser: ArgumentParser) -> None:
    """Declare `sbp produce`."""
    parser.description = (
        "Append each line of standard input, without its newline, as one record: each line once,"
        " also if connections break or the server restarts. Lines are duplicated only if the server"
        " has no idempotent appends, of which the command warns, or if you run it again on the same"
        " input."
    )
    add_client_options(parser)
    parser.add_argument("stream", metavar="NAME_OR_ID")
    parser.add_argument(
        "--key-separator",
        type=parse_separator,
        metavar="TEXT",
        help="the text before it in a line becomes the key; a line without it has no key",
    )
    parser.set_defaults(run=produce)


def produce(options: Namespace) -> int:
    """Append each line of standard input to a stream."""
    separator = None if options.key_separator is None else os.fsencode(options.key_separator)
    with connect(options, PATIENT) as client:
        info = find_stream(client, options.stream)
        if newest_schemas(client, [info.stream_id]):
            raise ConfigurationError(
                f"{info.label} has a schema, and lines have no columns; write to it with"
                " sbp_core.connect, over HTTP, or with Spark and encoding=columns, or produce to"
                " another stream"
            )
        writer = _LineAppender(client, info)
        try:
            for lines in read_lines(sys.stdin.fileno(), record_bytes_max=writer.record_bytes_max):
                writer.add(lines, separator)
            writer.flush()
        except SbpError as error:
            error.add_note(f"acknowledged before: {counted(writer.record_count, 'record')}")
            raise
    text = f"{counted(writer.record_count, 'record')} appended to {info.label}"
    write_result(writer.summary(), text, is_json=options.json)
    return 0


def read_lines(
    descriptor: int,
    read_bytes: int = _READ_BYTES,
    *,
    record_bytes_max: int = limits.RECORD_BYTES_MAX,
) -> Iterator[list[bytes]]:
    """Yield the lines of a file, as they come, without their newlines.

    An empty list means that the lines since the last one have waited long enough, and that no input
    is there now. The last line may lack its newline.
    Raises RecordBatchError for a line that is too long for a record.
    """
    rest: list[bytes] = []
    rest_bytes = line_count = 0
    due_at: float | None = None
    while True:
        seconds = None if due_at is None else max(0.0, due_at - time.monotonic())
        if not select.select([descriptor], [], [], seconds)[0]:
            due_at = None
            yield []
            continue
        try:
            data = os.read(descriptor, read_bytes)
        except OSError as error:
            raise ConfigurationError(
                f"standard input cannot be read: {error.strerror}; pipe lines into it, or use"
                " </dev/null"
            ) from error
        first, *others = data.split(b"\n")
        rest.append(first)
        rest_bytes += len(first)
        lines = [b"".join(rest), *others] if others or not data else []
        size_bytes = max(rest_bytes, *map(len, lines), 0)
        if size_bytes > record_bytes_max:
            raise RecordBatchError(
                f"one of the lines from {line_count + 1} on has at least"
                f" {record_too_large(size_bytes, record_bytes_max)}"
            )
        if lines:
            last = lines.pop()
            rest, rest_bytes = [last], len(last)
        if not data:
            if rest_bytes:
                yield rest
            return
        line_count += len(lines)
        if lines:
            if due_at is None:
                due_at = time.monotonic() + _LINGER_SECONDS
            yield lines


class _LineAppender:
    """Turns lines into record batches and appends them, one call at a time, each once."""

    def __init__(self, client: Client, info: StreamInfo) -> None:
        self._client = client
        self._info = info
        is_sequence = client.dialect() is Dialect.ELASTICSTREAM_2023_04
        self.record_bytes_max = client.record_bytes_max([info.stream_id])[info.stream_id]
        self._builder = RowsBuilder(
            info.stream_id, is_sequence=is_sequence, record_bytes_max=self.record_bytes_max
        )
        self._writer: Writer | None = Writer()
        self.record_count = 0
        self._first_offset: int | None = None
        self._last_offset: int | None = None

    def add(self, lines: Sequence[bytes], separator: bytes | None) -> None:
        """Add lines; append the record batches that are full. No lines: append all that wait."""
        if not lines:
            self.flush()
            return
        now_us = time.time_ns() // 1000
        rows = rows_of_lines(lines, separator, timestamp_us=now_us)
        self._append(self._builder.add(rows, timestamp_ms=now_us // 1000))

    def flush(self) -> None:
        """Append what waits for a fuller record batch."""
        self._append(self._builder.flush())

    def summary(self) -> dict[str, str | int | None]:
        """Return what was acknowledged; offsets are None when nothing was."""
        return {
            "stream": self._info.label,
            "stream_id": self._info.stream_id,
            "records": self.record_count,
            "first_offset": self._first_offset,
            "last_offset": self._last_offset,
        }

    def _append(self, batches: Sequence[bytes]) -> None:
        for batch in batches:
            item = AppendItem(self._info.stream_id, batch)
            outcome = self._append_one(item)
            count = peek_batch(batch).record_count
            self.record_count += count
            if self._first_offset is None:
                self._first_offset = outcome.base_offset
            self._last_offset = outcome.base_offset + count - 1

    def _append_one(self, item: AppendItem) -> AppendOutcome:
        try:
            (outcome,) = self._client.append(
                [item], writer=self._writer, retry_unknown=self._writer is None
            )
        except UnsupportedError:
            if self._writer is None:
                raise
            write_notice(
                "the server has no idempotent appends: records may be duplicated if a connection"
                " breaks"
            )
            self._writer = None
            return self._append_one(item)
        return outcome


def rows_of_lines(
    lines: Sequence[bytes], separator: bytes | None, *, timestamp_us: int
) -> pa.RecordBatch:
    """Return one row per line; `timestamp_us` is microseconds since the epoch.

    The text before the first `separator` is the key; a line without a separator has a null key.
    """
    count = len(lines)
    keys: Sequence[bytes | None] = [None] * count
    values = lines
    if separator is not None:
        parts = [line.partition(separator) for line in lines]
        keys = [before if found else None for before, found, _ in parts]
        values = [after if found else before for before, found, after in parts]
    columns = {
        "key": pa.array(keys, pa.binary()),
        "value": pa.array(values, pa.binary()),
        "headers": pa.nulls(count, ROWS_SCHEMA.field("headers").type),
        "timestamp": pa.repeat(pa.scalar(timestamp_us, ROWS_SCHEMA.field("timestamp").type), count),
    }
    return pa.record_batch([columns[name] for name in ROWS_SCHEMA.names], schema=ROWS_SCHEMA)
