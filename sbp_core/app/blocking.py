"""Producers, consumers and transactions for threads: facades of the classes for asyncio.

A call is one hop to the event loop of the blocking clients. Calls that need no server do not hop:
`send` collects a record on the caller's thread, and an iterator hands out the records of a batch
there.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Final, Protocol, Self, cast

from sbp_core import group_limits, limits
from sbp_core.app import defaults
from sbp_core.app.aio import cluster_connection as aio
from sbp_core.app.aio.assignment import AsyncAssignment
from sbp_core.app.aio.cluster_connection import AsyncConnection, client_for
from sbp_core.app.aio.consumer import AsyncConsumer
from sbp_core.app.aio.fetched import Hand, OnTrimmed
from sbp_core.app.aio.producer import AsyncCommitter, AsyncProducer
from sbp_core.app.aio.transaction import AsyncTransaction
from sbp_core.app.delivery import NOTHING, Delivery, check_may_wait, timeout_seconds
from sbp_core.app.encoding import Rows, Target, encode_given, record_bytes
from sbp_core.app.gates import OnThreads
from sbp_core.app.positions import Start
from sbp_core.app.process import Unsendable
from sbp_core.app.record import Batch, Record
from sbp_core.client import Client, Credentials, Tls
from sbp_core.client.facades import blocking, documented_as, loop_thread, making


class Consumer(Unsendable):
    """Reads streams, record by record or in batches. Made by `Connection.consumer`.

    For one thread. Records of a stream come in the order of their offsets, each once. With a group
    the consumer begins at the group's cursors, and commits how far it has come: every
    `commit_interval_ms` and at the end, or, if the interval is None, when `commit` is called.
    Records that were not committed when a process was killed are read again: at least once.

    Consumers that share a group divide its streams: one of them reads a stream at a time. If its
    caller works on a record for longer than `max_poll_interval_ms`, a consumer loses its streams.
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
    """Which of the selected streams a consumer reads, and where its positions are kept.

    The methods are called on a thread for blocking calls, one at a time.
    """

    @property
    def own_interval_ms(self) -> int | None:
        """The longest time between two calls of `own`; None: one before each fetch is enough."""

    @property
    def has_cursors(self) -> bool:
        """Whether positions are kept."""

    def own(self, selected: frozenset[int]) -> frozenset[int]:
        """Return the ids of the selected streams that the consumer reads now. Raises SbpError.

        The consumer calls it before each fetch. Before the next call it commits and forgets its
        positions in the streams that are no longer in the result.
        """

    def cursors(self, stream_ids: Sequence[int]) -> Mapping[int, int]:
        """Return the kept offsets by stream id, without streams that have none. Raises SbpError."""

    def commit(self, offsets: Mapping[int, int], expected: Mapping[int, int] | None = None) -> None:
        """Keep the offset of the next record to read of each stream, by id. Raises SbpError.

        `expected` has the offsets that are kept now (NO_CURSOR: none). Raises ConditionFailedError
        for a stream with another offset, which is not changed.
        """

    def close(self) -> None:
        """Give all streams up, after the last commit of the consumer. Raises SbpError."""


class _OnOtherThread:
    """Calls the blocking methods of an assignment on other threads."""

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


class Producer(Unsendable):
    """Sends records to streams, in order within each stream. Made by `Connection.producer`.

    Threads may share a producer. `send` collects records. A worker makes record batches of them,
    and appends each batch once: a retry has the number of the first try. An error that retries do
    not cure ends the producer for its stream: the open deliveries of the stream get the error, and
    the next `send` to the stream, `flush` and `close` raise it. Other streams go on, but wait while
    a batch of one stream is retried.

    A producer with an `id` commits batches one after the other, and counts their records under the
    id, so that a restarted producer knows how far it had come: see `position`.
    """

    def __init__(self, producer: AsyncProducer) -> None:
        self.on_loop = producer
        self._outbox, self._targets = producer.outbox, producer.targets

    @documented_as(AsyncProducer.send)
    def send(
        self,
        value: bytes | None,
        *,
        stream: str | None = None,
        key: bytes | None = None,
        headers: Mapping[str, bytes | None] | None = None,
        timestamp_us: int | datetime | None = None,
    ) -> Delivery:
        """Send a record; return the future of its offset. Waits while the buffer is full."""
        target = self._targets.get(stream)
        while (
            target is None
            or (taken := self._outbox.offer(target, value, key, headers, timestamp_us)) is None
        ):
            target = self._make_room(stream, record_bytes(value, key, headers))
        if not taken[1]:
            self.on_loop.notify()
        return Delivery(*taken)

    @documented_as(AsyncProducer.send_many)
    def send_many(self, rows: Rows, *, stream: str | None = None) -> Delivery:
        """Send rows; return the future of the last one: when it is done, all are."""
        target = self._targets.get(stream) or self._make_room(stream)
        last = None
        for step in encode_given(rows, target, time.time_ns() // 1000):
            if isinstance(step, int):
                if step > target.record_bytes_max:
                    target = self._make_room(stream, step)
                continue
            while not self._outbox.offer_encoded(step):
                self._make_room(stream)
            self.on_loop.notify()
            last = step
        return Delivery(*NOTHING if last is None else (last.receipt, last.record_count - 1))

    @property
    def position(self) -> int:
        """How many records all producers with this id have committed.

        Skip this many records of a source that is read again. Raises ConfigurationError without an
        id, and before the producer was entered with `with` or has sent something.
        """
        return self.on_loop.position

    @documented_as(AsyncProducer.flush)
    def flush(self, timeout: float | None = None, *, timeout_ms: float | None = None) -> None:
        """Return when all records sent so far are on disk, as their streams demand."""
        check_may_wait("flush()")
        loop_thread().run(self.on_loop.flush(timeout_seconds(timeout, timeout_ms)))

    @documented_as(AsyncProducer.close)
    def close(self) -> None:
        """Send all collected records, wait until they are on disk, and end. Idempotent."""
        check_may_wait("close()")
        loop_thread().run(self.on_loop.close())

    def __enter__(self) -> Self:
        loop_thread().run(self.on_loop.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _make_room(self, stream: str | None, size_bytes: int = 0) -> Target:
        if self._outbox.room_bytes <= 0:
            check_may_wait("send() with a full buffer")
        return loop_thread().run(self.on_loop.make_room(stream, size_bytes))


class Transaction(Unsendable):
    """Records of several streams that become visible together, or not at all.

    Made by `Connection.transaction`, for one thread. As a context manager it commits at the end of
    the block, and aborts if the block raises. Records are staged some MiB at a time: staged records
    are durable, and no consumer reads them before the commit. A reader of two streams may see the
    records of one stream a moment before the records of the other.
    """

    def __init__(self, transaction: AsyncTransaction) -> None:
        self.on_loop = transaction

    @documented_as(AsyncTransaction.send)
    def send(
        self,
        stream: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes | None] | None = None,
        timestamp_us: int | datetime | None = None,
    ) -> None:
        """Send a record to one of the streams."""
        while not self.on_loop.offer(stream, value, key, headers, timestamp_us):
            size_bytes = record_bytes(value, key, headers)
            loop_thread().run(self.on_loop.make_room(stream, size_bytes))

    @documented_as(AsyncTransaction.send_many)
    def send_many(self, stream: str, rows: Rows) -> None:
        """Send rows to one of the streams; `rows` are as for the method of producers."""
        target = loop_thread().run(self.on_loop.make_room(stream))
        for step in encode_given(rows, target, time.time_ns() // 1000):
            if not isinstance(step, int):
                loop_thread().run(self.on_loop.stage([step]))
            elif step > target.record_bytes_max:
                target = loop_thread().run(self.on_loop.make_room(stream, step))

    commit = blocking(AsyncTransaction.commit)
    abort = blocking(AsyncTransaction.abort)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        loop_thread().run(self.on_loop.__aexit__(kind, error, traceback))


class Committer:
    """Appends batches as decided batches of a named producer; see AsyncCommitter."""

    def __init__(self, client: Client, producer_id: str, stream_id: int) -> None:
        self.on_loop = AsyncCommitter(client.on_loop, producer_id, stream_id)

    @property
    def position(self) -> int:
        """How many records are committed under the id."""
        return self.on_loop.position

    @position.setter
    def position(self, position: int) -> None:
        self.on_loop.position = position

    begin = blocking(AsyncCommitter.begin)
    commit = blocking(AsyncCommitter.commit)


@documented_as(aio.connect)
def connect(
    endpoint: str,
    *,
    timeout_ms: int = limits.REQUEST_TIMEOUT_MS,
    retry_ms: float = limits.OUTAGE_MS,
    tls: Tls | None = None,
    credentials: Credentials | None = None,
) -> Connection:
    """Return a connection to the cluster at `endpoint`, a context manager that closes it."""
    client = client_for(endpoint, timeout_ms, retry_ms, tls, credentials)
    return Connection(Client.over(client))


class Connection(Unsendable):
    """Producers, consumers and transactions over one client. Made by `connect`.

    Threads may share a connection and its producers; each consumer is for one thread.
    `client` has the operations that a connection lacks.
    """

    def __init__(self, client: Client) -> None:
        self.client: Final = client
        self.on_loop = AsyncConnection(client.on_loop, hand=RecordIterator, callers=OnThreads)

    create_stream = blocking(AsyncConnection.create_stream)
    delete_stream = blocking(AsyncConnection.delete_stream)
    properties = blocking(AsyncConnection.properties)
    update_properties = blocking(AsyncConnection.update_properties)
    streams = blocking(AsyncConnection.streams)
    producer = making(AsyncConnection.producer, Producer)
    transaction = making(AsyncConnection.transaction, Transaction)

    @documented_as(AsyncConnection.consumer)
    def consumer(
        self,
        *streams: str,
        group: str | None = None,
        shared: bool = False,
        session_timeout_ms: int = group_limits.GROUP_SESSION_MS,
        max_poll_interval_ms: int = defaults.MAX_POLL_INTERVAL_MS,
        start: Start = "earliest",
        follow: bool = False,
        commit_interval_ms: int | None = defaults.COMMIT_INTERVAL_MS,
        refresh_interval_ms: int = defaults.REFRESH_INTERVAL_MS,
        fetch_bytes: int = defaults.FETCH_BYTES,
        on_trimmed: OnTrimmed = "error",
        assignment: Assignment | None = None,
    ) -> Consumer:
        """Return a consumer of streams, given by names and patterns of names such as `audit-*`."""
        return Consumer(
            self.on_loop.consumer(
                *streams,
                group=group,
                shared=shared,
                session_timeout_ms=session_timeout_ms,
                max_poll_interval_ms=max_poll_interval_ms,
                start=start,
                follow=follow,
                commit_interval_ms=commit_interval_ms,
                refresh_interval_ms=refresh_interval_ms,
                fetch_bytes=fetch_bytes,
                on_trimmed=on_trimmed,
                assignment=None if assignment is None else on_other_threads(assignment),
            )
        )

    @documented_as(AsyncConnection.close)
    def close(self) -> None:
        """Close all producers and consumers, the newest first, and the sockets. Idempotent."""
        check_may_wait("close()")
        loop_thread().run(self.on_loop.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
