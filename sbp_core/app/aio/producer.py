"""Sending records, for asyncio."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Self, get_args

from sbp_core.app import defaults
from sbp_core.app.aio.committing import AsyncCommitter
from sbp_core.app.aio.targets import find_target
from sbp_core.app.delivery import (
    NOTHING,
    AsyncDelivery,
    Delivered,
    call_back,
    check_may_wait,
)
from sbp_core.app.encoding import encode_collected, record_bytes
from sbp_core.app.gates import AsyncGate
from sbp_core.app.outbox import Batching, Encoded, Outbox, Outgoing, State
from sbp_core.app.process import (
    OfProcess,
    flush_at_exit,
    report_lost,
    use_here,
    warn_unclosed,
)
from sbp_core.app.record import checked_timestamp_us
from sbp_core.app.rows import Rows, Target, encode_given
from sbp_core.client import AppendItem, AppendOutcome, AsyncClient, Writer
from sbp_core.errors import ConfigurationError, DeadlineExceededError, SbpError
from sbp_core.records import Compression

OnDelivery = Callable[[Delivered], None]


class AsyncProducer(OfProcess):
    """Sends records to one stream, in order. Made by `AsyncConnection.producer`.

    The tasks of one loop may share it. `send` collects records; a worker makes record batches of
    them, and appends each once: what is retried has the number of the first try. An error that
    retries do not cure ends the producer: deliveries that are open get it, and the next `send`,
    `flush` or `close` raises it.

    With a `producer_id` batches are committed one after the other, and counted under the id, so
    that a producer that is restarted knows how far it had come: see `position`.
    """

    def __init__(
        self,
        client: AsyncClient,
        stream: str,
        *,
        producer_id: str | None = None,
        batching: Batching | None = None,
        compression: Compression = "none",
        timestamp_column: str | None = None,
        on_delivery: OnDelivery | None = None,
        on_close: Callable[[AsyncProducer], None] | None = None,
    ) -> None:
        if compression not in get_args(Compression):
            raise ConfigurationError(
                f"compression {compression!r} is not one of {', '.join(get_args(Compression))}"
            )
        self._client = client
        self._stream = stream
        self._compression: Compression = compression
        self._timestamp_column = timestamp_column
        self._producer_id = producer_id
        self._on_delivery = on_delivery
        self._on_close = on_close
        self._gate = AsyncGate()
        self._lock = self._gate.lock
        self._outbox = Outbox(batching or Batching(), time.monotonic)
        self._is_begun = False
        self._is_copy = False
        """Whether this is the copy in the child of a fork."""
        self._plain_bytes_max = 0
        """Bytes of the largest record that `send` accepts: none of a typed stream."""
        self._target = Target(stream, -1, None, 0)
        self._committer: AsyncCommitter | None = None

    async def send(
        self,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes | None] | None = None,
        timestamp_us: int | datetime | None = None,
    ) -> AsyncDelivery:
        """Send a record; return the future of its offset. Waits while the buffer is full.

        `timestamp_us` is in microseconds since the epoch (UTC), or a datetime; by default now.
        Raises the error that ended the producer, ConfigurationError if it is closed,
        RecordBatchError for a record that is too large, SchemaError for a typed stream, which
        `send_many` is for, TypeError for what is not bytes, and ValueError for a time outside the
        years 1 to 9999.
        """
        if not self._is_begun:
            await self._begin()
        if type(value) is bytes and key is None and not headers:  # without a call
            size_bytes = defaults.RECORD_OVERHEAD_BYTES + len(value)
        else:
            headers = None if headers is None else dict(headers)
            size_bytes = record_bytes(value, key, headers)
        if size_bytes > self._plain_bytes_max:
            self._target.check_plain(size_bytes)
        if timestamp_us is None:
            time_us = time.time_ns() // 1000
        else:
            time_us = checked_timestamp_us(timestamp_us)
        outbox = self._outbox
        with self._lock:
            if outbox.room_bytes <= 0:
                await self._wait_for_room()
            batch, is_new = outbox.add(value, key, headers, time_us, size_bytes)
            index = len(batch.values) - 1
            if is_new:
                self._gate.notify()
        if is_new:
            await self._gate.breathe()
        return AsyncDelivery(batch.receipt, index)

    async def send_many(self, rows: Rows) -> AsyncDelivery:
        """Send rows; return the future of the last one: when it is done, all are.

        `rows` is an Arrow table or batch, a data frame of pandas or polars, or anything that gives
        an Arrow stream, or an iterable of mappings. For a typed stream it has the columns of its
        schema; for any other `value`, and if need be `key`, `headers` and `timestamp`. Waits while
        the buffer is full. Raises what `send` raises, and SchemaError for rows that do not fit.
        """
        if not self._is_begun:
            await self._begin()
        last = None
        for encoded in encode_given(rows, self._target, time.time_ns() // 1000):
            await self._gate.breathe()
            if encoded is None:
                continue
            with self._lock:
                await self._wait_for_room()
                self._outbox.add_encoded(encoded)
                self._gate.notify()
            last = encoded
        return AsyncDelivery(*NOTHING if last is None else (last.receipt, last.record_count - 1))

    @property
    def position(self) -> int:
        """How many records are committed under the id of the producer, by all that had it.

        With a source that can be read again, skip that many. Raises ConfigurationError without an
        id, and before the producer was entered with `with` or has sent something.
        """
        if self._committer is None:
            raise ConfigurationError(
                "only a producer with an id has a position, once it has begun: pass id=..., and"
                " enter the producer"
            )
        return self._committer.position

    async def flush(self, timeout_ms: float | None = None) -> None:
        """Return when all that was sent before is on disk, as its stream demands.

        Raises the error that ended the producer, DeadlineExceededError after `timeout_ms`; the
        producer goes on then. ConfigurationError in a callback, which it would wait for.
        """
        check_may_wait("flush()")
        until = None if timeout_ms is None else time.monotonic() + timeout_ms / 1000
        outbox = self._outbox
        with self._lock:
            number = outbox.seal()
            self._gate.notify()
            while outbox.state is not State.FAILED and not outbox.is_settled_before(number):
                seconds = None if until is None else until - time.monotonic()
                if seconds is not None and seconds <= 0:
                    raise DeadlineExceededError(
                        f"{outbox.unsettled_bytes} bytes for stream {self._stream} are not"
                        f" acknowledged after {timeout_ms} ms; the producer goes on with them"
                    )
                await self._gate.wait(seconds)
            if outbox.state is State.FAILED:
                outbox.check_open()

    async def close(self) -> None:
        """Send what is there, wait until it is on disk, and end. Idempotent.

        Raises the error that ended the producer, ConfigurationError in a callback, which it would
        wait for.
        """
        check_may_wait("close()")
        with self._lock:
            self._outbox.close()
            self._gate.notify()
        await self._gate.join()
        if self._on_close is not None:
            self._on_close(self)
        if self._outbox.error is not None and not self._is_copy:
            raise self._outbox.error

    def on_fork(self, error: ConfigurationError) -> None:
        """Refuse every use: this is the copy in the child of a fork, which has no worker."""
        self._is_copy = True
        self._gate = AsyncGate()
        self._lock = self._gate.lock
        for batch in self._outbox.fail(error):
            batch.receipt.abandon(error)

    def on_exit(self, deadline: float) -> None:
        """Send what is there until a time of the monotonic clock, and report what is left."""
        record_count = self._outbox.unsettled_count
        if not record_count:
            return
        warn_unclosed(self._stream, record_count, self)
        with self._lock:
            self._outbox.close()
        self._gate.finish(deadline - time.monotonic())
        left_count = self._outbox.unsettled_count
        if left_count:
            report_lost(self._stream, left_count, SbpError("the process ends before they are sent"))

    async def __aenter__(self) -> Self:
        await self._begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _begin(self) -> None:
        """Look the stream up, and start the worker."""
        target = await find_target(
            self._client,
            self._stream,
            compression=self._compression,
            timestamp_column=self._timestamp_column,
        )
        committer = None
        if self._producer_id is not None:
            committer = AsyncCommitter(self._client, self._producer_id, target.stream_id)
            await committer.begin()
        with self._lock:
            if self._is_begun:
                return
            self._target, self._committer = target, committer
            self._plain_bytes_max = 0 if target.schema is not None else target.record_bytes_max
            self._is_begun = True
            self._outbox.check_open()
            use_here(self)
            flush_at_exit(self)
            self._gate.start(self._run)

    async def _wait_for_room(self) -> None:
        """Return once a record can be added, with the lock. Raises what ended the producer."""
        while self._outbox.state is State.OPEN and self._outbox.room_bytes <= 0:
            check_may_wait("send() with a full buffer")
            await self._gate.wait(None)
        self._outbox.check_open()

    async def _run(self) -> None:
        """Append what is sent, until the producer is closed or fails."""
        try:
            await self._deliver()
        except SbpError as error:
            self._fail(error)
        except BaseException as error:
            record_count = self._outbox.unsettled_count
            if record_count:
                warn_unclosed(self._stream, record_count, self)
            self._fail(SbpError(f"the producer of stream {self._stream} was ended by {error!r}"))
            raise

    async def _deliver(self) -> None:
        if self._committer is not None:
            await self._deliver_committed(self._committer)
            return
        async with self._client.appender(
            writer=Writer(), on_appended=self._on_appended
        ) as appender:
            is_answered = True
            while (batches := await self._next_batches(may_wait=is_answered)) is not None:
                if batches:
                    await appender.append(
                        [
                            AppendItem(self._target.stream_id, await self._encode(each))
                            for each in batches
                        ]
                    )
                else:
                    await appender.flush()
                is_answered = not batches

    async def _deliver_committed(self, committer: AsyncCommitter) -> None:
        number = 0
        while (batches := await self._next_batches(may_wait=True)) is not None:
            record_count = sum(each.record_count for each in batches)
            await committer.commit([await self._encode(each) for each in batches], record_count)
            for _ in batches:
                self._on_stored(number, -1)
                number += 1

    async def _next_batches(self, *, may_wait: bool) -> list[Outgoing] | None:
        """Return what is to be sent now; None at the end. It is empty only if it may not wait."""
        with self._lock:
            while True:
                batches = self._outbox.take()
                if batches or not may_wait:
                    return batches
                if self._outbox.state is State.CLOSED:
                    return None
                await self._gate.wait(self._outbox.seconds_until_due())

    async def _encode(self, batch: Outgoing) -> bytes:
        await self._gate.breathe()
        if isinstance(batch, Encoded):
            return batch.batch
        return encode_collected(batch, self._target.stream_id, self._target.compression)

    def _on_appended(self, number: int, outcome: AppendOutcome) -> None:
        self._on_stored(number, outcome.base_offset)

    def _on_stored(self, number: int, base_offset: int) -> None:
        with self._lock:
            batch = self._outbox.unsettled(number)
        self._settle(batch, base_offset)
        with self._lock:
            self._outbox.settle(number)
            self._gate.notify()

    def _fail(self, error: SbpError) -> None:
        with self._lock:
            record_count = self._outbox.unsettled_count
            lost = self._outbox.fail(error)
            self._gate.notify()
        if record_count:
            report_lost(self._stream, record_count, error)
        for batch in lost:
            self._settle(batch, -1, error)

    def _settle(self, batch: Outgoing, base_offset: int, error: SbpError | None = None) -> None:
        """Let the futures of a batch be done, and call the callback of the producer."""
        batch.receipt.settle(base_offset, error)
        if self._on_delivery is not None:
            delivered = Delivered(self._stream, base_offset, batch.record_count, error)
            call_back(self._on_delivery, delivered)
