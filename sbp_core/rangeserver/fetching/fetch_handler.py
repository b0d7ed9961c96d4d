"""FETCH: answer each stream when it has enough, the rest when the wait is over (SPEC "FETCH").

Every request of a frame is answered exactly once: when `min_bytes` of its stream are there, or its
end offset or the end of a sealed range is reached, or `max_wait_ms` has passed. A waiting request
holds memory. If other requests need the memory, it is answered at once, and the client may ask
again.

Requests that are ready together share response frames of about FETCH_FRAME_BYTES. The next frame is
read from the disk when the socket has taken the frame before it, so a slow reader holds little
memory, however much it asked for. A frame waits first for room at the peer, then for its turn among
all reads: no reader thread waits for a peer that does not read. Rights are judged again after each
wait, because a right may have been revoked.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from sbp_core import limits
from sbp_core.log.durable_log import Log
from sbp_core.rangeserver.bounds import DEFAULT_BOUNDS, Bounds
from sbp_core.rangeserver.fetching.batch_finder import (
    Answer,
    BatchFinder,
    Item,
    failed,
    item_of,
    response_of,
)
from sbp_core.rangeserver.fetching.payloads import SlotBodies, joined, read_slots
from sbp_core.rangeserver.fetching.read_scheduler import ReadClass, ReadJob, ReadScheduler
from sbp_core.rangeserver.hosting import RangeHost, StreamWaiters
from sbp_core.rangeserver.server_load import Metrics
from sbp_core.server.dispatch import Response, ServerCall
from sbp_core.server.runtime import Clock
from sbp_core.session.connection import Payload
from sbp_core.wire.headers import FetchRequest, FetchResponse
from sbp_core.wire.status import SUCCESS

_NOTHING: Final = Payload()


class _Collected(Struct, frozen=True):
    """The answers of a frame, the requests that wait on, and the requests not evaluated yet."""

    answers: list[Answer]
    unready: list[Item]
    rest: Sequence[Item] = ()


class _Frame(Struct, frozen=True):
    """A response frame that is ready to send."""

    answers: Sequence[Answer]
    header: FetchResponse
    payload: Payload

    def response(self, *, is_end: bool) -> Response:
        """Return the response for a peer that has reserved room for it."""
        return Response(self.header, self.payload, is_end, is_reserved=True)


class FetchHandler:
    """Serves FETCH. All fetches of a server share its attributes."""

    def __init__(
        self,
        host: RangeHost,
        log: Log,
        waiters: StreamWaiters,
        readers: ThreadPoolExecutor,
        *,
        clock: Clock,
        metrics: Metrics,
        bounds: Bounds = DEFAULT_BOUNDS,
    ) -> None:
        self.host = host
        self.log = log
        self.waiters = waiters
        self.clock = clock
        self.metrics = metrics
        self.bounds = bounds
        self.finder = BatchFinder(host.table, log, readers)
        self.reads = ReadScheduler(readers, at_work_max=bounds.reads_at_work_max)
        self.sending_count = 0
        """Fetches that are about to send a frame."""

    async def __call__(self, call: ServerCall) -> Response | AsyncGenerator[Response]:
        """Answer one FETCH frame. Raises InvalidRequestError for too many requests."""
        began_at = self.clock.monotonic()
        return await _Fetch(self, call, call.decode(FetchRequest), began_at).answer()


class _Fetch:
    """A FETCH frame in progress: collects answers that are ready, and sends them.

    A request for staged batches gets a frame of its own, and does not wait.
    """

    def __init__(
        self,
        shared: FetchHandler,
        call: ServerCall,
        request: FetchRequest,
        began_at: float,
    ) -> None:
        self._shared = shared
        self._call = call
        self._began_at = began_at
        batch_bytes_max = call.agreement.sizes.batch_bytes
        self._waiting: Sequence[Item] = [
            item_of(info, batch_bytes_max) for info in request.fetch_requests
        ]
        self._is_staged = any(item.txn_id is not None for item in self._waiting)
        self._min_bytes = max(request.min_bytes, 1)
        wait_ms = min(max(request.max_wait_ms, 0), limits.FETCH_WAIT_MS_MAX)
        identity = call.peer.standing.identity
        # A wait must not outlast the token that allowed it.
        if identity is not None and identity.expires_at_ms is not None:
            wait_ms = min(wait_ms, identity.expires_at_ms - shared.clock.wall_ms())
        self._give_up_at = shared.clock.monotonic() + wait_ms / 1000
        self._has_waited = False
        """Whether the call has waited since the rights of the client were judged."""

    async def answer(self) -> Response | AsyncGenerator[Response]:
        """Return a single frame if all is ready and in memory, else a generator of frames."""
        shared = self._shared
        await shared.host.learn([(item.stream_id, item.range_index) for item in self._waiting])
        if not self._is_staged:
            self._waiting = list(map(shared.finder.at_tail, self._waiting))
        found = await self._collect(self._min_bytes)
        if not found.unready and not found.rest:
            prompt = self._maybe_prompt(found.answers, is_end=True)
            if prompt is not None:
                return prompt
        return self._frames(found)

    async def _frames(self, found: _Collected) -> AsyncGenerator[Response]:
        """Yield frames with the first answers, and with later ones as they become ready."""
        changed: asyncio.Event | None = None
        unready: list[Item] = []
        is_last = False
        with ExitStack() as watching:
            while True:
                unready += found.unready
                self._waiting = found.rest
                is_end = not unready and not found.rest
                if found.answers or is_end:
                    answers = await self._allowed(found.answers)
                    prompt = self._maybe_prompt(answers, is_end=is_end)
                    if prompt is not None:
                        yield prompt
                    else:
                        async with self._read(answers, is_end=is_end) as frame:
                            yield frame
                    self._has_waited = True  # the peer may have read slowly
                if is_end:
                    return
                if not found.rest:
                    self._waiting, unready = unready, []
                    if changed is None:  # look once more: a commit may precede the watch
                        changed = watching.enter_context(self._watch())
                    else:
                        await self._wait(changed)
                    is_last = self._is_time_over
                found = await self._collect(0 if is_last else self._min_bytes)

    @property
    def _is_time_over(self) -> bool:
        shared = self._shared
        return self._give_up_at <= shared.clock.monotonic() or shared.waiters.is_closing

    @contextmanager
    def _watch(self) -> Iterator[asyncio.Event]:
        """Watch the waiting streams. The wait ends early if other calls need its memory."""
        shared = self._shared
        with shared.waiters.watch([item.stream_id for item in self._waiting]) as changed:

            def give_up() -> None:
                self._give_up_at = shared.clock.monotonic()
                changed.set()

            self._call.yield_for_others(give_up)
            yield changed

    async def _wait(self, changed: asyncio.Event) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(
                changed.wait(), self._give_up_at - self._shared.clock.monotonic()
            )
        changed.clear()
        self._has_waited = True

    async def _allowed(self, answers: list[Answer]) -> list[Answer]:
        """Return answers, with refusals for streams that the client may not read any longer."""
        judge_again = self._call.judge_again
        if not self._has_waited or judge_again is None:
            return answers
        judgement = await judge_again([answer.item.stream_id for answer in answers])
        return [
            answer if error is None else failed(answer.item, error)
            for answer, error in zip(answers, judgement, strict=True)
        ]

    async def _collect(self, min_bytes: int) -> _Collected:
        """Find the answers of the next frame. A request waits for `min_bytes`; 0 does not wait."""
        finder = self._shared.finder
        items_per_turn = self._shared.bounds.fetch_items_per_turn
        count_max = 1 if self._is_staged else limits.RESULTS_PER_FRAME
        answers: list[Answer] = []
        unready: list[Item] = []
        frame_bytes = 0
        for at, item in enumerate(self._waiting):
            if frame_bytes >= limits.FETCH_FRAME_BYTES or len(answers) >= count_max:
                return _Collected(answers, unready, self._waiting[at:])
            if at and not at % items_per_turn:
                await asyncio.sleep(0)
            if self._is_staged:
                answer = await finder.staged_answer(item)
            else:
                answer = await finder.answer(item, min_bytes)
            if not answer.is_ready:
                unready.append(item)
            else:
                answers.append(answer)
                frame_bytes += answer.length_bytes
        return _Collected(answers, unready)

    def _maybe_prompt(self, answers: list[Answer], *, is_end: bool) -> Response | None:
        """Return a frame that does not need the disk; None if the frame must wait for its turn."""
        if not any(answer.slots for answer in answers):
            self._count(answers)
            return Response(response_of(answers), is_end=is_end)
        is_long = any(
            answer.item.is_selected and answer.stored_bytes > answer.item.max_bytes
            for answer in answers
        )
        if is_long or not self._may_send_at_once():
            return None
        frame = self._maybe_read(answers, may_wait=False)
        if frame is None:
            return None
        self._count(frame.answers)
        return frame.response(is_end=is_end)

    @asynccontextmanager
    async def _read(self, answers: list[Answer], *, is_end: bool) -> AsyncIterator[Response]:
        """Read the batches of a frame. The block sends it, before the next read begins."""
        call, shared = self._call, self._shared
        shared.sending_count += 1
        try:
            async with call.peer.reserve(sum(answer.length_bytes for answer in answers)):
                read = partial(self._maybe_read, answers, may_wait=True)
                async with shared.reads.read(self._job(answers), read) as frame:
                    assert frame is not None  # it is None only without `may_wait`
                    shared.metrics.reads["thread"] += 1
                    self._count(frame.answers)
                    yield frame.response(is_end=is_end)
        finally:
            shared.sending_count -= 1

    def _may_send_at_once(self) -> bool:
        """Whether a frame in memory may be sent before its turn."""
        call = self._call
        shared = self._shared
        is_alone = shared.reads.is_idle and shared.sending_count < shared.bounds.reads_at_work_max
        has_room = call.peer.has_room_for(limits.FETCH_FRAME_BYTES)
        return is_alone and has_room and not call.agreement.has_compression

    def _maybe_read(self, answers: Sequence[Answer], *, may_wait: bool) -> _Frame | None:
        """Return the frame of answers; without `may_wait`, None if that needs the disk.

        An answer ends before an unreadable batch, or has its error. With `may_wait` this runs on a
        reader thread.
        """
        served: list[Answer] = []
        parts: list[SlotBodies] = []
        for answer in answers:
            if not answer.slots:
                served.append(answer)
                continue
            key = (answer.item.stream_id, answer.range_index)
            selection = answer.item.selection
            bodies = read_slots(
                *(self._shared.log, key, answer.slots, selection),
                bytes_max=answer.item.max_bytes,
                may_wait=may_wait,
            )
            if bodies.error is not None and not may_wait:
                return None
            parts.append(bodies)
            served.append(answer.cut_short(bodies.slot_count, bodies.error))
            if answer.item.is_selected:
                served[-1] = replace(served[-1], sent_bytes=sum(map(len, bodies.buffers)))
        if parts and not may_wait:
            self._shared.metrics.reads["memory"] += 1
        buffers, crc32 = joined(parts)
        payload = self._call.peer.pack(buffers, crc32) if buffers else _NOTHING
        return _Frame(served, response_of(served), payload)

    def _job(self, answers: Sequence[Answer]) -> ReadJob:
        """Return the job for the scheduler: a tail read if all batches are in the tail."""
        first_position = min(each.slots[0].location.position for each in answers if each.slots)
        shared = self._shared
        is_tail = first_position >= shared.log.end_position - shared.bounds.tail_window_bytes
        length_bytes = sum(answer.length_bytes for answer in answers)
        return ReadJob(ReadClass(self._call.agreement.isolation, is_tail), length_bytes)

    def _count(self, answers: Sequence[Answer]) -> None:
        metrics = self._shared.metrics
        length_bytes = failures = records = 0
        for answer in answers:
            failures += answer.status is not SUCCESS
            if answer.slots:
                count, length = sum([slot.count for slot in answer.slots]), answer.length_bytes
                records += count
                length_bytes += length
                traffic = metrics.streams.recent[answer.item.stream_id]
                traffic.fetched_records += count
                traffic.fetched_bytes += length
        seconds = self._shared.clock.monotonic() - self._began_at
        metrics.fetches.add(len(answers), failures, length_bytes, seconds, records)
        metrics.touch(
            [(answer.item.stream_id, answer.range_index) for answer in answers if answer.slots]
        )
