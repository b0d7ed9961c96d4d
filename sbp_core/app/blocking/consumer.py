"""Reading records on a thread."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Protocol, Self, cast

from sbp_core.app.aio.assignment import AsyncAssignment
from sbp_core.app.aio.consumer import AsyncConsumer
from sbp_core.app.aio.iterating import Hand
from sbp_core.app.process import Unsendable
from sbp_core.app.record import Batch, Record
from sbp_core.client.facades import blocking, documented_as
from sbp_core.client.io.loop_thread import loop_thread


class Consumer(Unsendable):
    """Reads streams, record by record or in batches. Made by `Connection.consumer`.

    For one thread. Records of a stream come in the order of their offsets, each once. With a group
    the consumer begins where the group's cursors are, and commits how far it has come: every
    `commit_interval_ms` and at the end, or, if that is None, when `commit` is called. Records that
    were not committed when a process was killed are read again: at least once.

    Consumers that share a group divide its streams: each stream is read by one of them at a time.
    A consumer whose caller works on a record for longer than `max_poll_interval_ms` loses its own.
    """

    def __init__(self, consumer: AsyncConsumer) -> None:
        self.on_loop = consumer

    def __iter__(self) -> RecordIterator:
        """Return an iterator over records, each done when the next one is asked for.

        A consumer has one iterator at a time: an older one raises ConfigurationError. Raises
        ConfigurationError if the consumer is closed.
        """
        return cast("RecordIterator", self.on_loop.begin_iteration())

    def batches(self) -> BatchIterator:
        """Return an iterator over Arrow batches, in place of one over records."""
        return BatchIterator(self.on_loop, self.on_loop.begin_iteration())

    @documented_as(AsyncConsumer.poll)
    def poll(self, timeout: float | None = None) -> Record | None:
        """Return the next record, None if there is none within `timeout` seconds, or at the end."""
        record = self.on_loop.maybe_ready()
        return loop_thread().run(self.on_loop.poll(timeout)) if record is None else record

    @documented_as(AsyncConsumer.getone)
    def getone(self, timeout: float | None = None) -> Record:
        """Return the next record, as `poll` does. Raises DeadlineExceededError if there is none."""
        record = self.on_loop.maybe_ready()
        return loop_thread().run(self.on_loop.getone(timeout)) if record is None else record

    @property
    def is_waiting(self) -> bool:
        """Whether the caller waits for a record now, and does not work on one."""
        return self.on_loop.is_waiting

    getmany = blocking(AsyncConsumer.getmany)
    commit = blocking(AsyncConsumer.commit)
    positions = blocking(AsyncConsumer.positions)
    lag = blocking(AsyncConsumer.lag)
    seek = blocking(AsyncConsumer.seek)
    close = blocking(AsyncConsumer.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class RecordIterator(Hand):
    """The records of a consumer, each done when the next one is asked for."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Record:
        at = self._at  # as `maybe_next` does, without a call: this is the hot path of loops
        if at.seek_count == self._seek_count and time.monotonic() < self.duty_at:
            record = next(self._records, None)
            if record is not None:
                at.next_offset = record.offset + 1
                return record
        record = loop_thread().run(self._consumer.take_record(self))
        if record is None:
            raise StopIteration
        return record


class BatchIterator:
    """The batches of a consumer, each done when the next one is asked for."""

    def __init__(self, consumer: AsyncConsumer, hand: Hand) -> None:
        self._consumer = consumer
        self._hand = hand

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Batch:
        batch = self._consumer.maybe_batch(self._hand)  # decoded on this thread
        if batch is None:
            batch = loop_thread().run(self._consumer.take_batch(self._hand))
        if batch is None:
            raise StopIteration
        return batch


class Assignment(Protocol):
    """Which of the selected streams a consumer reads, and where it commits how far it has come.

    Its methods are called on a thread for calls that block, one at a time.
    """

    @property
    def own_interval_ms(self) -> int | None:
        """How often `own` has to be called at least; None if before each fetch is enough."""

    @property
    def has_cursors(self) -> bool:
        """Whether positions are kept."""

    def own(self, selected: frozenset[int]) -> frozenset[int]:
        """Return those of the selected streams, by id, that are the consumer's now.

        It is called before each fetch. The consumer commits the positions of those that are no
        longer its own, and forgets them, before it calls again. Raises SbpError.
        """

    def cursors(self, stream_ids: Sequence[int]) -> Mapping[int, int]:
        """Return the offsets at which to go on, of those streams that have one. Raises SbpError."""

    def commit(self, offsets: Mapping[int, int], expected: Mapping[int, int] | None = None) -> None:
        """Keep the offsets at which to go on, by stream id. Raises SbpError.

        With `expected`, the offset of a stream is kept only if the earlier offset is the expected
        one (NO_CURSOR: there is none); otherwise ConditionFailedError is raised.
        """

    def close(self) -> None:
        """Give all streams up; the consumer has committed. Raises SbpError."""


class _OnOtherThread:
    """Calls an assignment that may block."""

    def __init__(self, assignment: Assignment) -> None:
        self._assignment = assignment

    @property
    def own_interval_ms(self) -> int | None:
        return self._assignment.own_interval_ms

    @property
    def has_cursors(self) -> bool:
        return self._assignment.has_cursors

    async def own(self, selected: frozenset[int]) -> frozenset[int]:
        return await asyncio.to_thread(self._assignment.own, selected)

    async def cursors(self, stream_ids: Sequence[int]) -> Mapping[int, int]:
        return await asyncio.to_thread(self._assignment.cursors, stream_ids)

    async def commit(
        self, offsets: Mapping[int, int], expected: Mapping[int, int] | None = None
    ) -> None:
        expecting = () if expected is None else (expected,)
        await asyncio.to_thread(self._assignment.commit, offsets, *expecting)

    async def close(self) -> None:
        await asyncio.to_thread(self._assignment.close)


def on_other_threads(assignment: Assignment) -> AsyncAssignment:
    """Adapt a blocking assignment to a consumer on the event loop."""
    return _OnOtherThread(assignment)
