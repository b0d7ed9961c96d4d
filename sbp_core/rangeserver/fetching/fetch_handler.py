"""FETCH: answer each stream as soon as it has enough, the rest when the wait is over.

SPEC "FETCH".

A request that waits holds memory. Where others need that, it is answered at once with what there
is; its peer may ask again.

Every request of a frame is answered exactly once: as soon as `min_bytes` of its stream are there,
or its end offset or the end of a sealed range is reached, or `max_wait_ms` passed (then with what
there is, perhaps nothing). Requests that are ready together share response frames of about
FETCH_FRAME_BYTES; the next frame is read from disk when the socket has taken the one before it, so
a slow reader holds little memory, however much it asked for. First it waits for room at the peer,
then for its turn among all reads: no reader waits for a peer that does not read.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeVar

from sbp_core import limits
from sbp_core.errors import (
    InvalidRequestError,
    LogError,
    OffsetOutOfRangeError,
    SbpError,
    StatusCode,
)
from sbp_core.log.durable_log import Log
from sbp_core.rangeserver.fetching.fetch_items import (
    Answer,
    Found,
    Item,
    cut_short,
    item_of,
    response_of,
    wanted_for,
)
from sbp_core.rangeserver.fetching.further_batches import FurtherBatches
from sbp_core.rangeserver.fetching.local_reads import LocalReads, are_worth_places
from sbp_core.rangeserver.fetching.read_scheduler import ReadClass, ReadJob, ReadScheduler
from sbp_core.rangeserver.fetching.slot_reading import (
    PayloadParts,
    find_slots,
    maybe_cached_slots,
    maybe_recent_slots,
    read_slots,
)
from sbp_core.rangeserver.fetching.staged_reads import StagedReads, is_of_staged
from sbp_core.rangeserver.hosted_ranges import HostedRange, RangeInput, first_offset
from sbp_core.rangeserver.hosting import RangeHost, StreamWaiters
from sbp_core.rangeserver.metrics import Metrics
from sbp_core.server.dispatch import PromptHandler, Rest, ServerCall
from sbp_core.server.runtime import Clock
from sbp_core.session.connection import Payload
from sbp_core.wire.headers import FetchRequest
from sbp_core.wire.status import SUCCESS, status_for

T = TypeVar("T")

EARLIEST_OFFSET: Final = -2
LATEST_OFFSET: Final = -1
_NOTHING: Final = Payload()


@dataclass(frozen=True, slots=True)
class _Answering:
    """A frame being answered: when it came, and whether its wait is over.

    `maybe_local`: what says where the batches are, to who would read them by itself.
    """

    call: ServerCall
    began_at: float
    is_last: bool
    maybe_local: LocalReads | None


@dataclass(frozen=True, slots=True)
class _Fetching:
    """What a frame asks for. Who waits gives up at `give_up_at`, in seconds."""

    answering: _Answering
    items: Sequence[Item]
    min_bytes: int
    give_up_at: float

    @property
    def places(self) -> list[tuple[int, int]]:
        """The ranges to read, (stream id, range index)."""
        return [(item.stream_id, item.range_index) for item in self.items]


def _check_count(item_count: int) -> None:
    if item_count > limits.STREAMS_PER_REQUEST_MAX:
        raise InvalidRequestError(
            StatusCode.INVALID_REQUEST,
            f"a FETCH has {limits.STREAMS_PER_REQUEST_MAX} requests at most, got {item_count};"
            " send several",
        )


async def in_turns(items: Sequence[T]) -> AsyncIterator[T]:
    """Yield items, and let others go on now and then: what is in memory is found without a wait."""
    for index, item in enumerate(items):
        if index and not index % limits.FETCH_ITEMS_PER_TURN:
            await asyncio.sleep(0)
        yield item


class FetchHandler(PromptHandler):
    """Serves FETCH."""

    def __init__(
        self,
        host: RangeHost,
        log: Log,
        waiters: StreamWaiters,
        readers: ThreadPoolExecutor,
        *,
        clock: Clock,
        metrics: Metrics,
        maybe_local: LocalReads | None = None,
    ) -> None:
        self._host = host
        self._log = log
        self._maybe_local = maybe_local
        self._waiters = waiters
        self._readers = readers
        self._reads = ReadScheduler(readers)
        self._staged = StagedReads(host, log, self._reads, metrics)
        self._further = FurtherBatches(host, log, readers)
        self._sending_count = 0
        self._clock = clock
        self._metrics = metrics

    def begin(self, call: ServerCall) -> Rest | None:
        """Answer one FETCH frame at once if that needs no wait for anything."""
        began_at = self._metrics.now()
        request = call.decode(FetchRequest)
        if is_of_staged(request):
            return partial(self._staged.answer, call, request, began_at)
        _check_count(len(request.fetch_requests))
        items = [item_of(info) for info in request.fetch_requests]
        local = self._maybe_local
        if local is not None and not local.may_serve(call, request):
            local = None
        fetching = _Fetching(
            _Answering(call, began_at, is_last=False, maybe_local=local),
            items,
            max(request.min_bytes, 1),
            self._clock.monotonic()
            + min(max(request.max_wait_ms, 0), limits.FETCH_WAIT_MS_MAX) / 1000,
        )
        return None if self._has_answered_all(fetching) else partial(self._answer, fetching)

    def _has_answered_all(self, fetching: _Fetching) -> bool:
        """Answer all requests in one frame, if each is ready and its batches are in memory."""
        if len(fetching.items) > limits.RESULTS_PER_FRAME:
            return False
        call, local = fetching.answering.call, fetching.answering.maybe_local
        is_alone = self._may_send_at_once(call, others=self._sending_count)
        if not is_alone or self._host.lacking(fetching.places):
            return False
        answers: list[Answer] = []
        length_bytes = 0
        for item in map(self._resolve_tail, fetching.items):
            answer = self._maybe_answer_now(item, fetching.min_bytes)
            if answer is None or length_bytes >= limits.FETCH_FRAME_BYTES:
                return False
            answers.append(answer)
            length_bytes += answer.length_bytes
        if not answers:
            return False
        payload: Payload | None = _NOTHING
        if local is not None and are_worth_places(answers):
            answers = self._further.maybe_added(answers)
            response = local.response(answers)
        else:
            response = response_of(answers)
            payload = self._maybe_cached(call, answers) if length_bytes else _NOTHING
        if payload is None:
            return False
        self._count(fetching.answering.began_at, answers)
        call.respond_now(response, payload, is_end=True)
        return True

    async def _answer(self, fetching: _Fetching) -> None:
        """Answer the frame with as many response frames as it takes."""
        give_up_at, min_bytes = fetching.give_up_at, fetching.min_bytes
        await self._host.learn(fetching.places)
        waiting: Sequence[Item] = [self._resolve_tail(item) for item in fetching.items]

        async def answer_ready() -> Sequence[Item]:
            is_last = give_up_at <= self._clock.monotonic() or self._waiters.is_closing
            answering = replace(fetching.answering, is_last=is_last)
            return await self._answer_ready(answering, waiting, min_bytes)

        waiting = await answer_ready()
        if not waiting:
            return
        with self._waiters.watch(item.stream_id for item in waiting) as changed:

            def give_up() -> None:
                nonlocal give_up_at
                give_up_at = self._clock.monotonic()
                changed.set()

            fetching.answering.call.yield_for_others(give_up)
            while waiting := await answer_ready():  # what came before the watch as well
                await _wait(changed, give_up_at - self._clock.monotonic())
                changed.clear()

    async def _answer_ready(
        self, answering: _Answering, waiting: Sequence[Item], min_bytes: int
    ) -> Sequence[Item]:
        """Send what is ready; return the requests that go on waiting."""
        if answering.call.is_one_frame:
            return await self._answer_at_once(answering, waiting, min_bytes)
        is_last = answering.is_last
        unready: list[Item] = []
        frame: list[Answer] = []
        frame_bytes = 0
        async for item in in_turns(waiting):
            answer = await self._maybe_answer(item, 1 if is_last else min_bytes, is_last=is_last)
            if answer is None:
                unready.append(item)
                continue
            frame.append(answer)
            frame_bytes += answer.length_bytes
            if frame_bytes >= limits.FETCH_FRAME_BYTES or len(frame) >= limits.RESULTS_PER_FRAME:
                is_end = not unready and item is waiting[-1]
                await self._send(answering, frame, is_end=is_end)
                frame, frame_bytes = [], 0
        if frame or not waiting:
            await self._send(answering, frame, is_end=not unready)
        return unready

    async def _answer_at_once(
        self, answering: _Answering, waiting: Sequence[Item], min_bytes: int
    ) -> Sequence[Item]:
        """Answer all requests in one frame as soon as one is ready.

        What the frame has no room for is answered empty, and asked for again.
        """
        if not answering.is_last and waiting:
            async for item in in_turns(waiting):
                if await self._maybe_answer(item, min_bytes, is_last=False) is not None:
                    break
            else:
                return waiting
        frame: list[Answer] = []
        frame_bytes = 0
        async for item in in_turns(waiting):
            answer = None
            if frame_bytes < limits.FETCH_FRAME_BYTES:
                answer = await self._maybe_answer(item, 1, is_last=True)
            frame.append(answer or Answer(item, (), item.fetch_offset))
            frame_bytes += frame[-1].length_bytes
        await self._send(answering, frame, is_end=True)
        return ()

    async def _send(self, answering: _Answering, answers: list[Answer], *, is_end: bool) -> None:
        self._sending_count += 1
        try:
            await self._send_frame(answering, answers, is_end=is_end)
        finally:
            self._sending_count -= 1

    async def _send_frame(
        self, answering: _Answering, answers: list[Answer], *, is_end: bool
    ) -> None:
        call = answering.call
        if not any(answer.slots for answer in answers):
            self._count(answering.began_at, answers)
            await call.respond(response_of(answers), is_end=is_end)
            return
        local = answering.maybe_local
        if local is not None and are_worth_places(answers):
            answers = await self._further.added(answers)
            self._count(answering.began_at, answers)
            await call.respond(local.response(answers), is_end=is_end)
            return
        cached = None
        if self._may_send_at_once(call, others=self._sending_count - 1):
            cached = self._maybe_cached(call, answers)
        if cached is not None:
            self._count(answering.began_at, answers)
            call.respond_now(response_of(answers), cached, is_end=is_end)
            return
        async with call.reserve(sum(answer.length_bytes for answer in answers)):
            job = self._job(call.agreement.isolation, answers)
            async with self._reads.read(job, partial(_read, self._log, call, answers)) as (
                served,
                payload,
            ):
                self._count(answering.began_at, served)
                call.respond_now(response_of(served), payload, is_end=is_end)

    def _may_send_at_once(self, call: ServerCall, *, others: int) -> bool:
        """Whether what is in memory need not wait for a turn; `others` are sending meanwhile."""
        is_alone = self._reads.is_idle and others < limits.READS_AT_WORK_MAX
        has_room = call.has_room_for(limits.FETCH_FRAME_BYTES)
        return is_alone and has_room and not call.agreement.has_compression

    def _maybe_cached(self, call: ServerCall, answers: Sequence[Answer]) -> Payload | None:
        """Return the payload of the answers if it is there at once.

        What waits for neither the disk nor the peer nor a turn is faster without a thread.
        """
        parts = PayloadParts()
        for answer in answers:
            if answer.slots:
                key = (answer.item.stream_id, answer.range_index)
                bodies = maybe_cached_slots(self._log, key, answer.slots)
                if bodies is None:
                    return None
                parts.add(bodies)
        return call.pack(parts.buffers, parts.crc32)

    def _job(self, isolation: str, answers: Sequence[Answer]) -> ReadJob:
        """Return what the read is to the scheduler: of the tail only if all of it lies there."""
        first_position = min(each.slots[0].location.position for each in answers if each.slots)
        is_tail = first_position >= self._log.end_position - limits.TAIL_WINDOW_BYTES
        length_bytes = sum(answer.length_bytes for answer in answers)
        return ReadJob(ReadClass(isolation, is_tail), length_bytes)

    def _count(self, began_at: float, answers: Sequence[Answer]) -> None:
        octets = sum(answer.length_bytes for answer in answers)
        failures = sum(answer.status is not SUCCESS for answer in answers)
        seconds = self._metrics.now() - began_at
        self._metrics.fetches.add(len(answers), failures, octets, seconds)
        self._metrics.touch(
            (answer.item.stream_id, answer.range_index) for answer in answers if answer.slots
        )

    def _resolve_tail(self, item: Item) -> Item:
        """Replace "the tail" by the offset that it is at now, so that waiting makes sense."""
        if item.fetch_offset != LATEST_OFFSET or not self._host.table.has_stream(item.stream_id):
            return item
        tail = self._host.table.range_at(item.stream_id, -1)
        return Item(
            item.request_index,
            item.stream_id,
            tail.range_index,
            tail.next_offset,
            item.end_offset,
            item.max_bytes,
        )

    async def _maybe_answer(self, item: Item, min_bytes: int, *, is_last: bool) -> Answer | None:
        try:
            found = await self._find(item)
        except SbpError as error:
            return Answer(item, (), item.fetch_offset, status=status_for(error))
        answer = found.answer(item)
        return answer if is_last or found.is_enough(item, min_bytes) else None

    def _maybe_answer_now(self, item: Item, min_bytes: int) -> Answer | None:
        """Return what `_maybe_answer` would, if that needs no disk."""
        try:
            hosted, offset = self._locate(item)
            slots = maybe_recent_slots(self._log, wanted_for(hosted, offset, item))
        except LogError:
            return None
        except SbpError as error:
            return Answer(item, (), item.fetch_offset, status=status_for(error))
        if slots is None:
            return None
        found = Found(hosted, offset, hosted.next_offset, slots)
        return found.answer(item) if found.is_enough(item, min_bytes) else None

    async def _find(self, item: Item) -> Found:
        """Return the batches of a request.

        What was trimmed or deleted while it was looked for is not lost: the request is judged anew.
        """
        place = self._locate(item)
        while True:
            hosted, offset = place
            wanted = wanted_for(hosted, offset, item)
            try:
                slots = await find_slots(self._log, wanted, self._readers)
                return Found(hosted, offset, wanted.next_offset, slots)
            except LogError:
                place = self._locate(item)
                if place == (hosted, offset):
                    raise

    def _locate(self, item: Item) -> tuple[HostedRange, int]:
        """Return the range that serves the request, and its first offset."""
        ranges = self._host.table.ranges_of(item.stream_id)
        ranges[0].receive(RangeInput.FETCH)
        offset = item.fetch_offset
        if item.range_index >= 0:
            ranges = [self._host.table.range_at(item.stream_id, item.range_index)]
        if offset == EARLIEST_OFFSET:
            offset = first_offset(ranges)
        for hosted in reversed(ranges):
            if hosted.start_offset <= offset <= hosted.next_offset:
                return hosted, offset
        start_offset, next_offset = self._host.table.bounds_of(item.stream_id)
        raise OffsetOutOfRangeError(
            StatusCode.OFFSET_OUT_OF_RANGE,
            f"offset {item.fetch_offset} of stream {item.stream_id} is outside"
            f" [{start_offset}, {next_offset}]",
            OffsetOutOfRangeError.encode_bounds(start_offset, next_offset),
        )


def _read(log: Log, call: ServerCall, answers: Sequence[Answer]) -> tuple[list[Answer], Payload]:
    """Read the batches of the answers; return what becomes of these, and the payload.

    Runs on a reader thread. An answer ends before a batch that cannot be read, or says so.
    """
    served: list[Answer] = []
    parts = PayloadParts()
    for answer in answers:
        if answer.slots:
            key = (answer.item.stream_id, answer.range_index)
            read = read_slots(log, key, answer.slots)
            parts.add(read)
            served.append(cut_short(answer, read.slot_count, read.error) if read.error else answer)
        else:
            served.append(answer)
    return served, call.pack(parts.buffers, parts.crc32)


async def _wait(changed: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(changed.wait(), seconds)
    except TimeoutError:
        return
