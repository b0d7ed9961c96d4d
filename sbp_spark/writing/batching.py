"""The record batches being built, and sending them while the next ones are."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import pyarrow as pa

from sbp_core import limits
from sbp_core.client import AppendItem
from sbp_core.errors import RecordBatchError
from sbp_core.records import BatchBuilder
from sbp_spark.writing.appending import TaskAppend

WAITING_BYTES_MAX: Final = 32 * limits.MIB
"""Octets of all streams that wait for a full record batch; beyond them all are sent."""
APPEND_BYTES: Final = 4 * limits.MIB
"""Encoded octets after which an append starts."""


class Builders:
    """The record batches being built, one per stream; what waits is bounded over all of them."""

    def __init__(
        self, make_builder: Callable[[int], BatchBuilder], linger_ms: int | None = None
    ) -> None:
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
        return items + self.flush() if self._waiting_bytes > WAITING_BYTES_MAX else items

    def flush_late(self, now_ms: int) -> list[AppendItem]:
        """Return everything that waits once rows have waited for long enough, by any clock."""
        if self._linger_ms is None:
            return []
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
    """Gathers batches until there are enough of them for an append, which goes on meanwhile."""

    def __init__(self, append: TaskAppend) -> None:
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
            if self._items_bytes >= APPEND_BYTES:
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
