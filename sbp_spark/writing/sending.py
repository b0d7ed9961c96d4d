"""The record batches of a task: built, and sent while the next ones are built."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from sbp_core import limits
from sbp_core.client import AppendItem, Client, Transaction, Writer
from sbp_core.errors import RecordBatchError, TxnEndedError, UnsupportedError
from sbp_core.failpoints import failpoint
from sbp_core.records import BatchBuilder
from sbp_spark.spark_internals.task_log import LOG


class StagedAppend:
    """Stages batches in a transaction. If it `may_end`, batches after its end are dropped.

    A transaction ends when its batch is decided, or when the placement driver has given it up. The
    placement driver records both first, so a later commit of the transaction is a replay or is
    refused, and publishes nothing.
    """

    def __init__(self, client: Client, transaction: Transaction, *, may_end: bool) -> None:
        self._appender = client.appender(transaction=transaction)
        self._may_end = may_end
        self._has_ended = False

    def append(self, items: Sequence[AppendItem]) -> None:
        """Stage the batches. Raises SbpError."""
        if self._has_ended:
            return
        failpoint("sink.before_stage")
        try:
            self._appender.append(items)
        except TxnEndedError as error:
            self._end(error)

    def finish(self) -> None:
        """Return when all of them are staged. Raises SbpError."""
        if self._has_ended:
            return
        try:
            self._appender.finish()
        except TxnEndedError as error:
            self._end(error)

    def close(self) -> None:
        """Give up batches that are not staged."""
        self._appender.close()

    def _end(self, error: TxnEndedError) -> None:
        if not self._may_end:
            raise error
        LOG.info("staging ended early, the commit decides about the batch error=%s", error)
        self._has_ended = True


class PlainAppend:
    """Appends batches as a numbered writer, so that a batch that is sent again is stored once.

    A server that knows no writers may store it twice.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._is_numbered = True
        self._appender = client.appender(writer=Writer())

    def append(self, items: Sequence[AppendItem]) -> None:
        """Append the batches. Raises SbpError."""
        try:
            self._appender.append(items)
        except UnsupportedError as error:
            self._go_on_without_numbers(error)

    def finish(self) -> None:
        """Return when all of them are appended. Raises SbpError."""
        try:
            self._appender.finish()
        except UnsupportedError as error:
            self._go_on_without_numbers(error)
            self._appender.finish()

    def close(self) -> None:
        """Give up batches that are not appended."""
        self._appender.close()

    def _go_on_without_numbers(self, error: UnsupportedError) -> None:
        if not self._is_numbered:
            raise error
        self._is_numbered = False
        left = self._appender.unacknowledged
        self._appender = self._client.appender(retry_unknown=True)
        self._appender.append(left)


@dataclass(frozen=True)
class SendingPace:
    """When rows leave a task; `now_ms` is any clock that does not go back."""

    waiting_bytes_max: int = 32 * limits.MIB
    """Bytes of all streams that wait for a full record batch; beyond them all are sent."""
    append_bytes: int = 4 * limits.MIB
    """Encoded bytes after which an append starts."""
    now_ms: Callable[[], int] = lambda: time.monotonic_ns() // 1_000_000


PACE: Final = SendingPace()


class Builders:
    """The record batches being built, one per stream; the waiting bytes of all are bounded."""

    def __init__(
        self,
        make_builder: Callable[[int], BatchBuilder],
        linger_ms: int | None = None,
        pace: SendingPace = PACE,
    ) -> None:
        self._pace = pace
        self.record_count = 0
        self._make_builder = make_builder
        self._linger_ms = linger_ms
        self._builders: dict[int, BatchBuilder] = {}
        self._waiting_bytes = 0
        self._waiting_since_ms: int | None = None

    @property
    def stream_count(self) -> int:
        """Streams that rows were added for."""
        return len(self._builders)

    def add(self, stream_id: int, rows: pa.RecordBatch, *, timestamp_ms: int) -> list[AppendItem]:
        """Add rows of one stream; return the batches that are full, or all when too much waits."""
        builder = self._builders.get(stream_id)
        if builder is None:
            builder = self._builders[stream_id] = self._make_builder(stream_id)
        before_bytes = builder.waiting_bytes
        try:
            full = builder.add(rows, timestamp_ms=timestamp_ms)
        except RecordBatchError as error:
            error.add_note(f"while writing to the stream with id {stream_id}")
            raise
        self.record_count += rows.num_rows
        self._waiting_bytes += builder.waiting_bytes - before_bytes
        items = [AppendItem(stream_id, batch) for batch in full]
        return items + self.flush() if self._waiting_bytes > self._pace.waiting_bytes_max else items

    def flush_late(self) -> list[AppendItem]:
        """Return everything that waits once rows have waited for long enough."""
        if self._linger_ms is None:
            return []
        now_ms = self._pace.now_ms()
        if self._waiting_since_ms is None:
            self._waiting_since_ms = now_ms
        return self.flush() if now_ms - self._waiting_since_ms >= self._linger_ms else []

    def flush(self) -> list[AppendItem]:
        """Return everything that waits."""
        self._waiting_bytes = 0
        self._waiting_since_ms = None
        return [
            AppendItem(stream_id, batch)
            for stream_id, builder in self._builders.items()
            for batch in builder.flush()
        ]


class Sender:
    """Collects batches until there are enough for an append, which runs in the background."""

    def __init__(self, append: StagedAppend | PlainAppend, pace: SendingPace = PACE) -> None:
        self._pace = pace
        self.batch_count = 0
        self.size_bytes = 0
        self._append = append
        self._items: list[AppendItem] = []
        self._items_bytes = 0

    def __enter__(self) -> Sender:
        return self

    def __exit__(self, *_: object) -> None:
        self._append.close()

    def send(self, items: Iterable[AppendItem]) -> None:
        """Take batches; append them when there are enough. Raises SbpError, of earlier ones too."""
        for item in items:
            self._items.append(item)
            self._items_bytes += len(item.batch)
            if self._items_bytes >= self._pace.append_bytes:
                self.flush()

    def flush(self) -> None:
        """Append what there is. Raises SbpError, of earlier batches too."""
        if self._items:
            self.batch_count += len(self._items)
            self.size_bytes += self._items_bytes
            self._append.append(self._items)
        self._items = []
        self._items_bytes = 0

    def finish(self) -> None:
        """Wait until everything is acknowledged. Raises SbpError."""
        self.flush()
        self._append.finish()
