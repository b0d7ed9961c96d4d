"""Sending records, for asyncio."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from hashlib import blake2b
from typing import Final, Self, get_args

from sbp_core.app.delivery import NOTHING, AsyncDelivery, Delivered, call_back, timeout_seconds
from sbp_core.app.encoding import (
    Outgoing,
    Rows,
    Target,
    encode_given,
    encoded,
    enlarged,
    find_target,
    record_bytes,
)
from sbp_core.app.gates import Gate, OnLoop
from sbp_core.app.outbox import Batching, Outbox, State
from sbp_core.app.process import OfProcess, flush_at_exit, report_lost, use_here, warn_unclosed
from sbp_core.client import (
    AppendItem,
    AppendOutcome,
    AsyncClient,
    Transaction,
    Writer,
    is_producer,
    txn_id_of,
)
from sbp_core.client.facades import internal
from sbp_core.errors import ConfigurationError, DeadlineExceededError, SbpError
from sbp_core.records import Compression
from sbp_core.wire.status import with_message

_POSITION_BYTES: Final = 8
_HASH_BYTES: Final = 16


class AsyncCommitter:
    """Commits batches of one stream under the id of a producer, each in a transaction of its own.

    The placement driver keeps the first decision about each batch number for good. The digest of a
    decision has the number of records that the producer has committed by then, in 8 bytes, and a
    hash of the batches. So a restarted producer knows how far it had come, and a second producer
    with the same id notices that the first one has decided its batch number.
    """

    def __init__(self, client: AsyncClient, producer_id: str, stream_id: int) -> None:
        self.producer: Final = f"{producer_id}.{stream_id}"
        if not is_producer(self.producer):
            raise ConfigurationError(
                f"{producer_id!a} cannot be the id of a producer: use up to some 40 letters,"
                " digits, '.', '_' and '-'"
            )
        self.position = 0
        self._client = client
        self._stream_id = stream_id
        self._next_number = 0

    async def begin(self) -> None:
        """Learn how many records are committed under the id. Raises SbpError."""
        # No range server is asked: records that are staged and not decided do not count.
        known = await self._client.describe_txns(self.producer, spared=None)
        decided = [each for each in known if each.batch_number is not None and each.digest]
        if decided:
            last = max(decided, key=lambda each: each.batch_number or 0)
            self.position = int.from_bytes(last.digest[:_POSITION_BYTES], "big")
            self._next_number = 1 + (last.batch_number or 0)

    async def commit(self, batches: Sequence[bytes], record_count: int) -> None:
        """Commit batches, all or none. Raises SbpError; the committer cannot be used after that."""
        number = self._next_number
        items = [AppendItem(self._stream_id, batch) for batch in batches]
        position = self.position + record_count
        content = blake2b(b"".join(batches), digest_size=_HASH_BYTES).digest()
        digest = position.to_bytes(_POSITION_BYTES, "big") + content
        transaction = Transaction(txn_id_of(self.producer, number, uuid.uuid4().hex))
        try:
            await self._client.append(items, transaction=transaction)
        except BaseException:
            with suppress(SbpError):
                await self._client.abort_txns(transaction.parts())
            raise
        decision = await self._client.commit_txn(
            self.producer, number, transaction.parts(), record_count=record_count, digest=digest
        )
        if decision.digest != digest:
            raise ConfigurationError(
                f"another producer has the same id, and has committed batch {number} of"
                f" {self.producer}; run one at a time, and start this one again to go on"
            )
        self.position, self._next_number = position, number + 1


OnDelivery = Callable[[Delivered], None]


class AsyncProducer(OfProcess):
    """Sends records to streams, in order within each stream. Made by `AsyncConnection.producer`.

    The tasks of one loop may share a producer. `send` collects records. A worker makes record
    batches of them, and appends each batch once: a retry has the number of the first try. An error
    that retries do not cure ends the producer for its stream: the open deliveries of the stream get
    the error, and the next `send` to the stream, `flush` and `close` raise it. Other streams go on,
    but wait while a batch of one stream is retried.

    A producer with a `producer_id` commits batches one after the other, and counts their records
    under the id, so that a restarted producer knows how far it had come: see `position`.
    """

    def __init__(
        self,
        client: AsyncClient,
        stream: str | None,
        *,
        producer_id: str | None = None,
        batching: Batching | None = None,
        compression: Compression = "none",
        timestamp_column: str | None = None,
        on_delivery: OnDelivery | None = None,
        on_close: Callable[[AsyncProducer], None] | None = None,
        callers: OnLoop | None = None,
    ) -> None:
        if compression not in get_args(Compression):
            raise ConfigurationError(
                f"compression {compression!r} is not one of {', '.join(get_args(Compression))}"
            )
        if producer_id is not None and stream is None:
            raise ConfigurationError(
                "a producer with an id counts the records of one stream: producer(stream, id=...)"
            )
        self._client = client
        self._stream = stream
        self._compression: Compression = compression
        self._timestamp_column = timestamp_column
        self._producer_id = producer_id
        self._on_delivery = on_delivery
        self._on_close = on_close
        self._callers = callers or OnLoop()
        self._gate = Gate()
        self.outbox = Outbox(batching or Batching(), time.monotonic)
        """Where any thread offers records."""
        self._is_begun = False
        self._is_copy = False
        """Whether this is the copy in the child of a fork."""
        self.targets: dict[str | None, Target] = {}
        """The streams that were asked for, by name; None stands for the stream of the producer."""
        self._names: dict[int, str] = {}
        self._committer: AsyncCommitter | None = None

    async def send(
        self,
        value: bytes | None,
        *,
        stream: str | None = None,
        key: bytes | None = None,
        headers: Mapping[str, bytes | None] | None = None,
        timestamp_us: int | datetime | None = None,
    ) -> AsyncDelivery:
        """Send a record; return the future of its offset. Waits while the buffer is full.

        The record goes to `stream`, by default the producer's. `timestamp_us` is in microseconds
        since the epoch (UTC), or a datetime; by default now. Raises the error that ended the
        producer, for all streams or this one; ConfigurationError if the producer is closed,
        RecordBatchError for a record that is too large, SchemaError for a typed stream (use
        `send_many`), TypeError for a value that is not bytes, ValueError for a time outside the
        years 1 to 9999.
        """
        target = self.targets.get(stream)
        while (
            target is None
            or (taken := self.outbox.offer(target, value, key, headers, timestamp_us)) is None
        ):
            target = await self.make_room(stream, record_bytes(value, key, headers))
        if not taken[1]:
            self._gate.notify()
            await asyncio.sleep(0)  # others may run
        return AsyncDelivery(*taken)

    async def send_many(self, rows: Rows, *, stream: str | None = None) -> AsyncDelivery:
        """Send rows; return the future of the last one: when it is done, all are.

        The rows go to `stream`, by default the producer's.

        `rows` is an Arrow table or batch, a data frame of pandas or polars, another object that
        gives an Arrow stream, or an iterable of mappings. Rows for a typed stream have the columns
        of its schema. Rows for other streams have the column `value`, and may have `key`, `headers`
        and `timestamp`. Waits while the buffer is full. Raises what `send` raises, and SchemaError
        for rows that do not fit.
        """
        target = self.targets.get(stream) or await self.make_room(stream)
        last = None
        for step in encode_given(rows, target, time.time_ns() // 1000):
            await asyncio.sleep(0)  # others may run
            if isinstance(step, int):
                if step > target.record_bytes_max:
                    target = await self.make_room(stream, step)
                continue
            while not self.outbox.offer_encoded(step):
                await self.make_room(stream)
            self._gate.notify()
            last = step
        return AsyncDelivery(*NOTHING if last is None else (last.receipt, last.record_count - 1))

    @property
    def position(self) -> int:
        """How many records all producers with this id have committed.

        Skip this many records of a source that is read again. Raises ConfigurationError without an
        id, and before the producer was entered with `with` or has sent something.
        """
        if self._committer is None:
            raise ConfigurationError(
                "only a producer with an id has a position, once it has begun: pass id=..., and"
                " enter the producer"
            )
        return self._committer.position

    async def flush(
        self,
        timeout: float | None = None,  # noqa: ASYNC109 - as futures have
        *,
        timeout_ms: float | None = None,
    ) -> None:
        """Return when all records sent so far are on disk, as their streams demand.

        Raises the error that ended the producer or one of its streams; DeadlineExceededError after
        `timeout` seconds, while the producer goes on; ConfigurationError in a callback, which the
        call would wait for. `timeout_ms` is the old name, in ms.
        """
        seconds = timeout_seconds(timeout, timeout_ms)
        until = None if seconds is None else time.monotonic() + seconds
        outbox = self.outbox
        number = outbox.seal()
        self._gate.notify()
        while outbox.state is not State.FAILED and not outbox.is_settled_before(number):
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                raise DeadlineExceededError(
                    f"{outbox.unsettled_bytes} bytes for {self._called()} are not acknowledged"
                    f" after {seconds:g} s; the producer goes on with them"
                )
            await self._gate.wait(left)
        await self._settled()
        outbox.check()

    async def close(self) -> None:
        """Send all collected records, wait until they are on disk, and end. Idempotent.

        Raises the error that ended the producer or one of its streams; ConfigurationError in a
        callback, which the call would wait for. If this is cancelled the producer goes on to send.
        """
        self.outbox.close()
        self._gate.notify()
        await self._gate.join()
        await self._settled()
        self._callers.close()
        if self._on_close is not None:
            self._on_close(self)
        if not self._is_copy:
            self.outbox.check()

    async def _settled(self) -> None:
        """Return when the callbacks of all batches whose outcome is known have run."""
        if self._is_begun and not self._is_copy:
            await self._callers.drain()

    @internal
    def on_fork(self, error: ConfigurationError) -> None:
        """Refuse every use: this is the copy in the child of a fork, which has no worker."""
        self._is_copy = True
        self._gate.leave()
        self.outbox.abandon(error)

    @internal
    def on_exit(self, deadline: float) -> None:
        """Send records until a time of the monotonic clock; report the others as lost."""
        self._warn_unclosed()
        self.outbox.close()
        self._callers.finish(self._gate, deadline - time.monotonic())
        error = SbpError("the process ends before they are sent")
        for stream_id, left_count in self.outbox.unsettled_counts().items():
            report_lost(self._names[stream_id], left_count, error)

    async def __aenter__(self) -> Self:
        if self._stream is not None:
            await self.make_room(None)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _find(self, stream: str | None) -> Target:
        """Return the target of a stream; start the worker with the first one. Raises SbpError."""
        name = self._stream if stream is None else stream
        if name is None:
            raise ConfigurationError("say which stream: send(..., stream=...), or producer(stream)")
        if self._producer_id is not None and name != self._stream:
            raise ConfigurationError(
                f"the producer has an id, and counts the records of stream {self._stream} only:"
                f" make another one for stream {name}"
            )
        if self._is_begun:
            self.outbox.check_open()
        target = await find_target(
            self._client,
            name,
            compression=self._compression,
            timestamp_column=self._timestamp_column,
        )
        if not self._is_begun:
            await self._begin(target)
        self._names[target.stream_id] = name
        self.targets[stream] = target
        return target

    async def _begin(self, target: Target) -> None:
        """Start the worker."""
        committer = None
        if self._producer_id is not None:
            committer = AsyncCommitter(self._client, self._producer_id, target.stream_id)
            await committer.begin()
        if self._is_begun:  # by another caller, since
            return
        self._committer = committer
        self._is_begun = True
        self.outbox.check_open()
        use_here(self)
        flush_at_exit(self)
        self._callers.begin()
        self._gate.start(self._run)

    @internal
    def notify(self) -> None:
        """Tell the worker of a batch that was offered on another thread."""
        self._callers.notify(self._gate)

    @internal
    async def make_room(self, stream: str | None, size_bytes: int = 0) -> Target:
        """Return the target of a stream once a record of this size can be sent to it.

        Asks the servers about a stream that is new, and waits while the buffer is full. Raises what
        `send` raises.
        """
        target = self.targets.get(stream) or await self._find(stream)
        if size_bytes > target.record_bytes_max:
            target = self.targets[stream] = await enlarged(self._client, target, size_bytes)
        outbox = self.outbox
        while outbox.room_bytes <= 0:
            outbox.check_open()
            if outbox.seal_if_idle():  # else nothing makes room before the linger time
                self._gate.notify()
            await self._gate.wait(None)
        return target

    async def _run(self) -> None:
        """Append the batches of the outbox until the producer is closed or fails."""
        try:
            await self._deliver()
        except SbpError as error:
            self._fail(with_message(error, f"{self._called()}: "))
        except BaseException as error:
            self._warn_unclosed()
            self._fail(SbpError(f"the producer of {self._called()} was ended by {error!r}"))
            raise

    async def _deliver(self) -> None:
        if self._committer is not None:
            await self._deliver_committed(self._committer)
            return
        async with self._client.appender(
            writer=Writer(), on_appended=self._on_appended, on_failed=self._on_failed
        ) as appender:
            is_answered = True
            while (batches := await self._next_batches(may_wait=is_answered)) is not None:
                if batches:
                    await appender.append(
                        [AppendItem(each.stream_id, await self._encode(each)) for each in batches]
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
        """Return the batches to send now, none if it may not wait for some; None at the end."""
        while True:
            batches = self.outbox.take()
            if batches or not may_wait:
                return batches
            if self.outbox.state is State.CLOSED:
                return None
            await self._gate.wait(self.outbox.seconds_until_due())

    async def _encode(self, batch: Outgoing) -> bytes:
        await asyncio.sleep(0)  # others may run
        return encoded(batch, self._compression)

    def _on_appended(self, order: int, outcome: AppendOutcome) -> None:
        self._on_stored(order, outcome.base_offset)

    def _on_stored(self, order: int, base_offset: int) -> None:
        number, batch = self.outbox.store(order)

        def settle() -> None:
            try:
                self._settle(batch, base_offset)
            finally:
                self.outbox.settle(number)
                self._callers.notify(self._gate)

        self._callers.settle(settle)

    def _on_failed(self, stream_id: int, error: SbpError) -> None:
        error = with_message(error, f"stream {self._names[stream_id]}: ")
        self._give_up(self.outbox.fail_stream(stream_id, error), error)

    def _fail(self, error: SbpError) -> None:
        self._give_up(self.outbox.fail(error), error)

    def _give_up(self, lost: Sequence[Outgoing], error: SbpError) -> None:
        counts: Counter[int] = Counter()
        for batch in lost:
            counts[batch.stream_id] += batch.record_count
        for stream_id, record_count in counts.items():
            report_lost(self._names[stream_id], record_count, error)

        def settle() -> None:
            for batch in lost:
                self._settle(batch, -1, error)
            self._callers.notify(self._gate)

        self._callers.settle(settle)

    def _settle(self, batch: Outgoing, base_offset: int, error: SbpError | None = None) -> None:
        """Complete the futures of a batch, and call the callback of the producer."""
        batch.receipt.settle(base_offset, error)
        if self._on_delivery is not None:
            name = self._names[batch.stream_id]
            delivered = Delivered(name, base_offset, batch.record_count, error)
            call_back(self._on_delivery, delivered)

    def _warn_unclosed(self) -> None:
        """Warn if records are left that nobody waited for."""
        record_count = self.outbox.unsettled_counts().total()
        if record_count:
            warn_unclosed(self._called(), record_count, self)

    def _called(self) -> str:
        """Return the streams, as messages name them."""
        names = sorted(set(self._names.values())) or [self._stream or "none"]
        return f"stream {names[0]}" if len(names) == 1 else f"{len(names)} streams"
