"""Sending records from threads."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime
from types import TracebackType
from typing import Self

from sbp_core.app.aio.committing import AsyncCommitter
from sbp_core.app.aio.producer import AsyncProducer
from sbp_core.app.aio.transaction import AsyncTransaction
from sbp_core.app.delivery import NOTHING, Delivery, check_may_wait, timeout_seconds
from sbp_core.app.encoding import record_bytes
from sbp_core.app.process import Unsendable
from sbp_core.app.rows import Rows, Target, encode_given
from sbp_core.client import Client
from sbp_core.client.facades import blocking, documented_as
from sbp_core.client.io.loop_thread import loop_thread


class Producer(Unsendable):
    """Sends records to streams, in order within each stream. Made by `Connection.producer`.

    Threads may share it. `send` collects records; a worker makes record batches of
    them, and appends each once: what is retried has the number of the first try. An error that
    retries do not cure ends the producer for the stream: its deliveries that are open get it, and
    the next `send` to it, `flush` and `close` raise it. Other streams go on, but while one is
    retried, they wait.

    With an `id` batches are committed one after the other, and counted under the id, so that a
    producer that is restarted knows how far it had come: see `position`.
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
        """How many records are committed under the id of the producer, by all that had it.

        With a source that can be read again, skip that many. Raises ConfigurationError without an
        id, and before the producer was entered with `with` or has sent something.
        """
        return self.on_loop.position

    @documented_as(AsyncProducer.flush)
    def flush(self, timeout: float | None = None, *, timeout_ms: float | None = None) -> None:
        """Return when all that was sent before is on disk, as its streams demand."""
        check_may_wait("flush()")
        loop_thread().run(self.on_loop.flush(timeout_seconds(timeout, timeout_ms)))

    @documented_as(AsyncProducer.close)
    def close(self) -> None:
        """Send what is there, wait until it is on disk, and end. Idempotent."""
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

    Made by `Connection.transaction`. As a context manager it commits at the end of the block,
    and aborts if that raises. Records are staged some MiB at a time: they are durable then, and no
    consumer reads them before the commit. Readers of two streams may see the records of one a
    moment before those of the other. For one thread.
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
