"""The records of a producer from `send` to the acknowledgement, without I/O.

Any thread offers records; a worker on the event loop takes batches and settles them.

Records are collected in one open batch for each stream. A batch is *sealed* when it is full, when
it has lingered, at a flush and at the close. Sealed batches are *taken* in this order to be
appended, and *settled* when their outcome is known::

    OPEN  --close-->  CLOSING  --all settled-->  CLOSED
      `------fail-------+-> FAILED

A failed stream accepts nothing more, and loses its unsettled batches; other streams go on.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto

from sbp_core.app import defaults
from sbp_core.app.delivery import Receipt
from sbp_core.app.encoding import Collected, Encoded, Outgoing, Target, record_bytes
from sbp_core.app.record import checked_timestamp_us
from sbp_core.errors import ConfigurationError, SbpError


class State(Enum):
    """Whether records are accepted, and whether all of them are settled."""

    OPEN = auto()
    CLOSING = auto()
    CLOSED = auto()
    FAILED = auto()


@dataclass(frozen=True, slots=True)
class Batching:
    """When a batch is sent, and how much is buffered. Raises ConfigurationError.

    A batch is sent when it has `batch_bytes` or `batch_records` of records, or `linger_ms` after
    its first record; 0 does not wait for more records. `buffer_bytes` may be unacknowledged.
    """

    batch_bytes: int = defaults.BATCH_BYTES
    batch_records: int = defaults.BATCH_RECORDS_MAX
    linger_ms: float = defaults.LINGER_MS
    buffer_bytes: int = defaults.BUFFER_BYTES

    def __post_init__(self) -> None:
        for name, value, high in (
            ("batch_bytes", self.batch_bytes, defaults.BATCH_BYTES),
            ("batch_records", self.batch_records, defaults.BATCH_RECORDS_MAX),
        ):
            if not 1 <= value <= high:
                raise ConfigurationError(f"{name} {value} is not in 1..{high}")
        if self.linger_ms < 0:
            raise ConfigurationError(f"linger_ms {self.linger_ms} is negative; 0 does not wait")
        if self.buffer_bytes < self.batch_bytes:
            raise ConfigurationError(
                f"buffer_bytes {self.buffer_bytes} is less than one batch, batch_bytes"
                f" {self.batch_bytes}"
            )


class Outbox:
    """The records that were sent and are not settled. Thread-safe; no method waits."""

    def __init__(self, batching: Batching, clock: Callable[[], float]) -> None:
        self._lock = threading.Lock()
        self.state = State.OPEN
        self.error: SbpError | None = None
        self.failed: dict[int, SbpError] = {}
        """By stream id: the error of a stream that accepts nothing more."""
        self.room_bytes = batching.buffer_bytes
        """Free bytes of the buffer: while there are any, a record of any size is accepted."""
        self._clock = clock
        self._batch_bytes = batching.batch_bytes
        self._batch_records = batching.batch_records
        self._linger_seconds = batching.linger_ms / 1000
        self._open: dict[int, Collected] = {}
        """The open batches by stream id, the oldest first."""
        self._unsettled: dict[int, Outgoing] = {}
        """The sealed batches by their numbers."""
        self._next_number = 0
        self._ready: list[int] = []
        """The numbers of the sealed batches that are not taken."""
        self._taken: dict[int, int] = {}
        """The numbers of the taken batches, by the order in which they were taken."""
        self._taken_count = 0
        self._stored: set[int] = set()
        """The numbers of the appended batches: a failure no longer gives them up."""

    @property
    def unsettled_bytes(self) -> int:
        """Bytes of the records that are not settled."""
        with self._lock:
            return sum(each.size_bytes for each in self._everything())

    def unsettled_counts(self) -> Counter[int]:
        """Return how many records are not settled, by stream."""
        counts: Counter[int] = Counter()
        with self._lock:
            for each in self._everything():
                counts[each.stream_id] += each.record_count
        return counts

    def _everything(self) -> Iterator[Outgoing]:
        yield from self._open.values()
        yield from self._unsettled.values()

    @property
    def is_empty(self) -> bool:
        """Whether all records are settled."""
        return not self._open and not self._unsettled

    def check_open(self) -> None:
        """Raise the error that ended the producer, or ConfigurationError if it is closed."""
        if self.state is State.FAILED:
            assert self.error is not None
            raise self.error.with_traceback(None)  # it is raised again and again
        if self.state is not State.OPEN:
            raise ConfigurationError("this producer is closed; make another one")

    def check(self) -> None:
        """Raise the error that ended the producer, or the error of the first failed stream."""
        for error in (self.error, *self.failed.values()):
            if error is not None:
                raise error.with_traceback(None)

    def offer(
        self,
        target: Target,
        value: bytes | None,
        key: bytes | None,
        headers: Mapping[str, bytes | None] | None,
        timestamp_us: int | datetime | None,
    ) -> tuple[Receipt, int] | None:
        """Collect a record; return the receipt of its batch, and its index there.

        An index of 0 begins a batch, and the caller has to notify the worker. Returns None if the
        buffer is full, or if the record is larger than the target is known to accept. Raises what
        `send` raises.
        """
        # All in one method, because this is the hot path of `send`.
        if type(value) is bytes and key is None and not headers:
            size_bytes = defaults.RECORD_OVERHEAD_BYTES + len(value)
        else:
            headers = None if headers is None else dict(headers)
            size_bytes = record_bytes(value, key, headers)
        if size_bytes > target.plain_bytes_max:
            target.check_plain()
            return None
        if timestamp_us is None:
            time_us = time.time_ns() // 1000
        else:
            time_us = checked_timestamp_us(timestamp_us)
        stream_id = target.stream_id
        with self._lock:
            if self.room_bytes <= 0:
                self.check_open()
                return None
            batch = self._open.get(stream_id)
            if (
                batch is None
                or batch.size_bytes + size_bytes > self._batch_bytes
                or len(batch.values) >= self._batch_records
            ):
                self._check_stream(stream_id)
                self._seal(stream_id)
                batch = self._open[stream_id] = Collected(stream_id, self._clock())
            if headers:
                batch.headers[len(batch.values)] = headers
            batch.values.append(value)
            batch.keys.append(key)
            batch.times_us.append(time_us)
            batch.size_bytes += size_bytes
            self.room_bytes -= size_bytes
            return batch.receipt, len(batch.values) - 1

    def offer_encoded(self, batch: Encoded) -> bool:
        """Accept a batch, behind all records that were sent to its stream before.

        Returns False if the buffer is full. Raises what `send` raises.
        """
        with self._lock:
            if self.room_bytes <= 0:
                self.check_open()
                return False
            self._check_stream(batch.stream_id)
            self._seal(batch.stream_id)
            self.room_bytes -= batch.size_bytes
            self._number(batch)
            return True

    def _check_stream(self, stream_id: int) -> None:
        """Raise the error of a stream that failed. A failed stream has no open batch."""
        if stream_id in self.failed:
            raise self.failed[stream_id].with_traceback(None)

    def seal(self) -> int:
        """Seal the open batches; return the number of the next batch."""
        with self._lock:
            self._seal_all()
            return self._next_number

    def seal_if_idle(self) -> bool:
        """Seal the open batches if no batch is unsettled; return whether they were sealed."""
        with self._lock:
            is_idle = not self._unsettled
            if is_idle:
                self._seal_all()
            return is_idle

    def _seal_all(self) -> None:
        for stream_id in list(self._open):
            self._seal(stream_id)

    def _seal(self, stream_id: int) -> None:
        batch = self._open.pop(stream_id, None)
        if batch is not None:
            self._number(batch)

    def _number(self, batch: Outgoing) -> None:
        self._ready.append(self._next_number)
        self._unsettled[self._next_number] = batch
        self._next_number += 1

    def seconds_until_due(self) -> float | None:
        """Return the seconds until a batch is to be taken; None if there are no records."""
        with self._lock:
            if self._ready:
                return 0.0
            for oldest in self._open.values():
                return max(0.0, self._due_at(oldest) - self._clock())
            return None

    def _due_at(self, batch: Collected) -> float:
        return batch.opened_at + self._linger_seconds

    def take(self, bytes_max: int = defaults.TAKE_BYTES) -> list[Outgoing]:
        """Take the batches that are due, up to `bytes_max`, and at least one if there is any."""
        with self._lock:
            now = self._clock()
            for each in list(self._open.values()):
                if self._due_at(each) > now:
                    break
                self._seal(each.stream_id)
            taken: list[Outgoing] = []
            size_bytes = 0
            for number in self._ready:
                batch = self._unsettled[number]
                size_bytes += batch.size_bytes
                if taken and size_bytes > bytes_max:
                    break
                taken.append(batch)
                self._taken[self._taken_count] = number
                self._taken_count += 1
            del self._ready[: len(taken)]
            return taken

    def store(self, order: int) -> tuple[int, Outgoing]:
        """Record that a batch is appended; return its number, for `settle`, and the batch.

        `order` counts the batches as they were taken, from 0 on.
        """
        with self._lock:
            number = self._taken.pop(order)
            self._stored.add(number)
            return number, self._unsettled[number]

    def settle(self, number: int) -> None:
        """Forget an appended batch whose callbacks have run."""
        with self._lock:
            self._stored.remove(number)
            self._free(self._unsettled.pop(number))

    def _free(self, batch: Outgoing) -> None:
        if self.state is State.OPEN:
            self.room_bytes += batch.size_bytes
        elif self.state is State.CLOSING and self.is_empty:
            self.state = State.CLOSED

    def is_settled_before(self, number: int) -> bool:
        """Return whether all batches with smaller numbers are settled."""
        with self._lock:
            return next(iter(self._unsettled), number) >= number

    def close(self) -> None:
        """Accept nothing more, and seal the open batches."""
        with self._lock:
            if self.state is State.OPEN:
                self._seal_all()
                self.room_bytes = 0
                self.state = State.CLOSED if self.is_empty else State.CLOSING

    def fail_stream(self, stream_id: int, error: SbpError) -> Sequence[Outgoing]:
        """Accept nothing more for a stream; give up and return its unsettled batches."""
        with self._lock:
            self._seal(stream_id)
            self.failed[stream_id] = error
            lost = {
                number: each
                for number, each in self._unsettled.items()
                if each.stream_id == stream_id and number not in self._stored
            }
            self._ready = [number for number in self._ready if number not in lost]
            self._taken = {at: number for at, number in self._taken.items() if number not in lost}
            for number, each in lost.items():
                del self._unsettled[number]
                self._free(each)
            return list(lost.values())

    def fail(self, error: SbpError) -> Sequence[Outgoing]:
        """Accept nothing more; give up and return the unsettled batches."""
        with self._lock:
            self._seal_all()
            self.state, self.error = State.FAILED, error
            lost = [each for number, each in self._unsettled.items() if number not in self._stored]
            self._unsettled = {number: self._unsettled[number] for number in sorted(self._stored)}
            self._ready.clear()
            self._taken.clear()
            self.room_bytes = 0
            return lost

    def abandon(self, error: SbpError) -> None:
        """Give all batches up in the child of a fork, where nobody would release a held lock."""
        self._lock = threading.Lock()
        for batch in self._everything():
            batch.receipt.abandon(error)
        self.fail(error)
