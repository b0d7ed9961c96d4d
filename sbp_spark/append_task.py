"""What a task does to write its rows: convert, route, batch, append. At least once."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import WriterCommitMessage

from sbp_core import limits
from sbp_core.client import AppendItem, AppendOutcome, StreamInfo
from sbp_core.errors import ConfigurationError, NotFoundError, RecordBatchError
from sbp_core.records import ROWS_SCHEMA, RowsBuilder
from sbp_spark.client_pool import Patience, client_for
from sbp_spark.options import SinkOptions, StreamRef, parse_stream_ref
from sbp_spark.task_log import LOG

WAITING_BYTES_MAX: Final = 32 * limits.MIB
"""Octets of all streams that wait for a full record batch; beyond them all are sent."""
APPEND_BYTES: Final = 4 * limits.MIB
"""Encoded octets after which an append starts."""


class AppendClient(Protocol):
    """What is needed of a client."""

    def describe_streams(self, refs: Sequence[int | str]) -> list[StreamInfo]:
        """Return the streams, or raise NotFoundError naming the missing ones."""
        ...

    def append(
        self, items: Sequence[AppendItem], *, retry_unknown: bool = False
    ) -> list[AppendOutcome]:
        """Append the batches, those of one stream in order."""
        ...


@dataclass(frozen=True)
class AppendedMessage(WriterCommitMessage):
    """What one task has written, all of it acknowledged; `size_bytes` of encoded batches."""

    record_count: int
    batch_count: int
    size_bytes: int
    stream_count: int


def write_rows(batches: Iterable[pa.RecordBatch], options: SinkOptions) -> AppendedMessage:
    """Append all rows of a task; return when all of them are acknowledged. Raises SbpError."""
    client = client_for(options.servers, Patience.RUNNING)
    written = append_rows(batches, client, options.stream)
    LOG.debug("appended %s", written)
    return written


def append_rows(
    batches: Iterable[pa.RecordBatch], client: AppendClient, stream: StreamRef | None
) -> AppendedMessage:
    """Append rows of a checked schema to `stream`, or each to that of its column `stream`.

    The rows of one stream keep their order. Records without a timestamp get the time of now.
    """
    router = _Router(client, stream)
    builders = _Builders()
    with _Sender(client) as sender:
        for batch in batches:
            now_us = time.time_ns() // 1_000
            rows = to_rows(batch, now_us=now_us)
            for stream_id, part in router.split(batch, rows):
                sender.send(builders.add(stream_id, part, timestamp_ms=now_us // 1_000))
        sender.send(builders.flush())
        sender.finish()
    return AppendedMessage(
        builders.record_count, sender.batch_count, sender.size_bytes, builders.stream_count
    )


def to_rows(batch: pa.RecordBatch, *, now_us: int) -> pa.RecordBatch:
    """Return the record columns of Spark's batch in ROWS_SCHEMA; missing ones are null.

    Missing or null timestamps become `now_us`, microseconds since the epoch.
    """
    columns = []
    for field in ROWS_SCHEMA:
        if field.name in batch.schema.names:
            columns.append(batch.column(field.name).cast(field.type))
        else:
            columns.append(pa.nulls(batch.num_rows, field.type))
    now = pa.scalar(now_us, ROWS_SCHEMA.field("timestamp").type)
    at = ROWS_SCHEMA.get_field_index("timestamp")
    columns[at] = pc.fill_null(columns[at], now)
    return pa.RecordBatch.from_arrays(columns, schema=ROWS_SCHEMA)


class _Router:
    """Finds the streams of rows; each name is looked up once."""

    def __init__(self, client: AppendClient, stream: StreamRef | None) -> None:
        self._client = client
        self._stream = stream
        self._ids: dict[str, int] = {}

    def split(
        self, batch: pa.RecordBatch, rows: pa.RecordBatch
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield (stream id, its rows in their order) of `rows`, which are those of `batch`.

        Raises ConfigurationError or NotFoundError for rows that name no stream.
        """
        if rows.num_rows == 0:
            return
        if self._stream is not None:
            self._look_up([self._stream.text], "option stream")
            yield self._ids[self._stream.text], rows
            return
        column = batch.column("stream")
        if column.null_count:
            raise ConfigurationError(
                f"column stream is null in {column.null_count} of {rows.num_rows} rows; expected"
                " the name or id of a stream in each: fill it, filter these rows out, or use the"
                " option stream"
            )
        encoded = column.dictionary_encode()
        texts = encoded.dictionary.to_pylist()
        self._look_up(texts, "column stream")
        stream_ids = np.array([self._ids[text] for text in texts])[np.asarray(encoded.indices)]
        if (stream_ids == stream_ids[0]).all():
            yield int(stream_ids[0]), rows
            return
        order = np.argsort(stream_ids, kind="stable")
        ordered_ids = stream_ids[order]
        ordered_rows = rows.take(pa.array(order))
        starts = np.flatnonzero(np.diff(ordered_ids, prepend=ordered_ids[0] - 1))
        for start, stop in zip(starts, [*starts[1:], rows.num_rows], strict=True):
            yield int(ordered_ids[start]), ordered_rows.slice(start, stop - start)

    def _look_up(self, texts: Sequence[str], where: str) -> None:
        refs = [_parse(text, where) for text in texts if text not in self._ids]
        if not refs:
            return
        wanted = [ref.text if ref.maybe_id is None else ref.maybe_id for ref in refs]
        try:
            infos = self._client.describe_streams(wanted)
        except NotFoundError as error:
            raise NotFoundError(
                error.code,
                f"{where}: {error.message}; on the command line: `sbp streams create NAME`",
            ) from None
        self._ids |= {ref.text: info.stream_id for ref, info in zip(refs, infos, strict=True)}


def _parse(text: str, where: str) -> StreamRef:
    try:
        return parse_stream_ref(text)
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error}; correct these rows") from None


class _Builders:
    """The record batches being built, one per stream; what waits is bounded over all of them."""

    def __init__(self) -> None:
        self.record_count = 0
        self._builders: dict[int, RowsBuilder] = {}
        self._waiting_bytes = 0

    @property
    def stream_count(self) -> int:
        """Streams that rows were added for."""
        return len(self._builders)

    def add(self, stream_id: int, rows: pa.RecordBatch, *, timestamp_ms: int) -> list[AppendItem]:
        """Add rows of one stream; return the batches that are full, or all when too much waits."""
        builder = self._builders.get(stream_id)
        if builder is None:
            builder = self._builders[stream_id] = RowsBuilder(stream_id)
        before_bytes = builder.waiting_bytes
        try:
            full = builder.add(rows, timestamp_ms=timestamp_ms)
        except RecordBatchError as error:
            error.add_note(f"while writing to the stream with id {stream_id}")
            raise
        self.record_count += rows.num_rows
        self._waiting_bytes += builder.waiting_bytes - before_bytes
        items = [AppendItem(stream_id, batch) for batch in full]
        return items + self.flush() if self._waiting_bytes > WAITING_BYTES_MAX else items

    def flush(self) -> list[AppendItem]:
        """Return everything that waits."""
        self._waiting_bytes = 0
        return [
            AppendItem(stream_id, batch)
            for stream_id, builder in self._builders.items()
            for batch in builder.flush()
        ]


class _Sender:
    """Appends in a thread of its own, one append at a time, while the next one is gathered.

    Between calls at most two appends' worth of batches is held.
    """

    def __init__(self, client: AppendClient) -> None:
        self.batch_count = 0
        self.size_bytes = 0
        self._client = client
        self._items: list[AppendItem] = []
        self._items_bytes = 0
        self._in_flight: Future[list[AppendOutcome]] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sbp-append")

    def __enter__(self) -> _Sender:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def send(self, items: Iterable[AppendItem]) -> None:
        """Take batches; start an append when there are enough. Raises what an append raised."""
        for item in items:
            self._items.append(item)
            self._items_bytes += len(item.batch)
            if self._items_bytes >= APPEND_BYTES:
                self._start()

    def finish(self) -> None:
        """Wait until everything is acknowledged. Raises what an append raised."""
        self._start()
        self._settle()

    def _start(self) -> None:
        self._settle()
        if self._items:
            self.batch_count += len(self._items)
            self.size_bytes += self._items_bytes
            self._in_flight = self._thread.submit(
                self._client.append, self._items, retry_unknown=True
            )
        self._items = []
        self._items_bytes = 0

    def _settle(self) -> None:
        in_flight, self._in_flight = self._in_flight, None
        if in_flight is not None:
            in_flight.result()
