"""Records of several streams that become visible together, for asyncio."""

from __future__ import annotations

import asyncio
import logging
import math
import time
import uuid
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from datetime import datetime
from enum import Enum
from functools import partial
from hashlib import blake2b
from types import TracebackType
from typing import Any, Final, Self

from sbp_core.app import defaults
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
from sbp_core.app.outbox import Batching, Outbox
from sbp_core.app.process import OfProcess, use_here
from sbp_core.client import AppendItem, AsyncClient, one_shot_producer, txn_id_of
from sbp_core.client import Transaction as Staging
from sbp_core.client.facades import internal
from sbp_core.errors import ConfigurationError
from sbp_core.wording import listed

_LOG: Final = logging.getLogger("sbp_core.app")


class _State(Enum):
    """The first `commit` enters COMMITTING, `abort` ABORTING. Both may be repeated there."""

    OPEN = "open"
    COMMITTING = "being committed"
    COMMITTED = "committed"
    ABORTING = "being aborted"
    ABORTED = "aborted"


class AsyncTransaction(OfProcess):
    """Records of several streams that become visible together, or not at all.

    Made by `AsyncConnection.transaction`, for one task. As a context manager it commits at the end
    of the block, and aborts if the block raises. Records are staged some MiB at a time: staged
    records are durable, and no consumer reads them before the commit. A reader of two streams may
    see the records of one stream a moment before the records of the other. The work that a
    cancelled call has begun goes on: the next call, and the end of the block, wait for it.
    """

    def __init__(self, client: AsyncClient, streams: Iterable[str]) -> None:
        self._client = client
        self._names: Final = tuple(streams)
        self._targets: dict[str, Target] = {}
        batching = Batching(linger_ms=math.inf, buffer_bytes=defaults.TAKE_BYTES)
        self._outbox = Outbox(batching, time.monotonic)
        """The records that are not staged yet: the commit, or a full buffer, stages them."""
        self._stored_count = 0
        self._producer = one_shot_producer()
        self._staging = Staging(txn_id_of(self._producer, 0, uuid.uuid4().hex))
        self._hash = blake2b(digest_size=16)
        self._record_count = 0
        self._unstaged_count = 0
        """Batches that were taken from the outbox, and are not known to be staged."""
        self._work: asyncio.Task[None] | None = None
        """Stages or commits. The task outlives a caller that is cancelled: the next call waits for
        it, whichever that is."""
        self._state = _State.OPEN
        self._refusal: ConfigurationError | None = None
        """The error of every use in the child of a fork."""
        use_here(self)

    async def send(
        self,
        stream: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes | None] | None = None,
        timestamp_us: int | datetime | None = None,
    ) -> None:
        """Send a record to one of the streams.

        `timestamp_us` is in microseconds since the epoch (UTC), or a datetime; by default now.
        Raises ConfigurationError for another stream, or if the transaction is over;
        RecordBatchError for a record that is too large, SchemaError for a typed stream, TypeError
        and ValueError as `AsyncProducer.send`, SbpError.
        """
        while not self.offer(stream, value, key, headers, timestamp_us):
            await self.make_room(stream, record_bytes(value, key, headers))

    @internal
    def offer(
        self,
        stream: str,
        value: bytes | None,
        key: bytes | None,
        headers: Mapping[str, bytes | None] | None,
        timestamp_us: int | datetime | None,
    ) -> bool:
        """Collect a record; False if `make_room` has to come first. Raises what `send` does."""
        self._check_open(stream)
        target = self._targets.get(stream)
        if target is None:
            return False
        return self._outbox.offer(target, value, key, headers, timestamp_us) is not None

    @internal
    async def make_room(self, stream: str, size_bytes: int = 0) -> Target:
        """Stage the collected records; return the target of a stream.

        Raises RecordBatchError if the stream takes no record of `size_bytes`, SbpError.
        """
        self._check_open(stream)
        if stream not in self._targets:
            self._targets[stream] = await find_target(self._client, stream)
        target = self._targets[stream]
        if size_bytes > target.record_bytes_max:
            target = self._targets[stream] = await enlarged(self._client, target, size_bytes)
        await self._do(self._stage_collected)
        return target

    async def send_many(self, stream: str, rows: Rows) -> None:
        """Send rows to one of the streams; `rows` are as for the method of producers.

        Raises what `send` raises, and SchemaError for rows that do not fit.
        """
        target = await self.make_room(stream)
        for step in encode_given(rows, target, time.time_ns() // 1000):
            if not isinstance(step, int):
                await self.stage([step])
            elif step > target.record_bytes_max:
                target = await self.make_room(stream, step)

    async def commit(self) -> None:
        """Let all records become visible. Raises SbpError.

        After an error with the outcome UNKNOWN the records may become visible, now or later. Call
        `commit` again then, as after a cancellation. Raises ConfigurationError if the transaction
        is over, or if some records were not staged.
        """
        self._check_process()
        was_left = self._work is not None
        await self._finish_work()
        if was_left and self._state is _State.COMMITTED:
            return
        await self._do(self._commit, {_State.OPEN, _State.COMMITTING})

    async def _commit(self) -> None:
        await self._stage_collected()
        if self._unstaged_count:
            raise ConfigurationError(
                "some records were not staged: abort the transaction and begin another one"
            )
        self._state = _State.COMMITTING
        if self._record_count:
            await self._client.commit_txn(
                self._producer,
                0,
                self._staging.parts(),
                record_count=self._record_count,
                digest=self._hash.digest(),
            )
        self._state = _State.COMMITTED

    async def abort(self) -> None:
        """Drop all records. Raises SbpError; they never become visible in any case.

        Waits until cancelled calls have staged the records that they had begun to stage.
        After an error or a cancellation it may be called again. Raises ConfigurationError once
        `commit` was called.
        """
        self._check_process()
        await self._end_work()
        # No await between the end of the work and the new state: a call that waited for the same
        # work finds the transaction aborted, and stages nothing behind the abort.
        if self._state not in {_State.OPEN, _State.ABORTING}:
            raise self._over()
        self._state = _State.ABORTING
        parts = self._staging.parts()
        if parts:
            await self._client.abort_txns(parts)
        self._state = _State.ABORTED

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None and self._state is _State.OPEN:
            await self.commit()
            return
        # A commit that was cancelled in the block goes on: its client may be closed behind it.
        await self._end_work()
        if self._state is _State.OPEN:
            await self.abort()

    @internal
    def on_fork(self, error: ConfigurationError) -> None:
        """Refuse every use: this is the copy in the child of a fork."""
        self._refusal = error

    def _check_process(self) -> None:
        if self._refusal is not None:
            raise self._refusal

    def _check_open(self, stream: str) -> None:
        self._check_process()
        if self._state is not _State.OPEN:
            raise self._over()
        if stream not in self._names:
            raise ConfigurationError(
                f"the transaction is not for stream {stream!r}; it was begun for"
                f" {listed(self._names)}"
            )

    async def _stage_collected(self) -> None:
        self._outbox.seal()
        while batches := self._outbox.take():
            await self._stage(batches)
            for _ in batches:
                number, _ = self._outbox.store(self._stored_count)
                self._outbox.settle(number)
                self._stored_count += 1

    @internal
    async def stage(self, batches: Sequence[Outgoing]) -> None:
        """Stage batches. Raises SbpError."""
        await self._do(partial(self._stage, batches))

    async def _do(
        self,
        begin: Callable[[], Coroutine[Any, Any, None]],
        states: Collection[_State] = (_State.OPEN,),
    ) -> None:
        """Do work to its end even if the caller is cancelled: batches were taken for it.

        Raises ConfigurationError unless the transaction is in one of the states when it begins.
        """
        await self._finish_work()
        if self._state not in states:
            raise self._over()
        self._work = asyncio.create_task(begin())
        await self._finish_work()

    async def _finish_work(self) -> None:
        """Wait for the work of this call, or of a cancelled one. Raises the error of the work."""
        error = await self._maybe_error()
        if error is not None:
            raise error

    async def _end_work(self) -> None:
        """Wait for the work that a cancelled call left, and log its error."""
        error = await self._maybe_error()
        if error is not None:
            _LOG.warning("cancelled call failed txn=%s: %r", self._staging.txn_id, error)

    async def _maybe_error(self) -> BaseException | None:
        """Return the error of the work once there is none any more."""
        error: BaseException | None = None
        while (work := self._work) is not None:
            await asyncio.wait([work])
            if self._work is work:  # else another call has its error
                self._work = None
                error = asyncio.CancelledError() if work.cancelled() else work.exception()
        return error

    async def _stage(self, batches: Sequence[Outgoing]) -> None:
        self._unstaged_count += len(batches)
        items = []
        for each in batches:
            items.append(AppendItem(each.stream_id, encoded(each)))
            await asyncio.sleep(0)  # let others run
        await self._client.append(items, transaction=self._staging)
        for item, batch in zip(items, batches, strict=True):
            self._hash.update(item.batch)
            self._record_count += batch.record_count
        self._unstaged_count -= len(batches)

    def _over(self) -> ConfigurationError:
        return ConfigurationError(f"the transaction is {self._state.value}; begin another one")
