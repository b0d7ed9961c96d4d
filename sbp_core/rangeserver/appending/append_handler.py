"""APPEND: check each batch, give it its offsets, answer when it is on disk (SPEC "APPEND")."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import repeat

from msgspec import Struct

from sbp_core import limits
from sbp_core.errors import (
    DiskFullError,
    LogWriteError,
    SbpError,
    StatusCode,
    StatusError,
    ThrottledError,
    WritersNotThereError,
)
from sbp_core.log.entry import Entry
from sbp_core.log.states.writer_states import NumberedBatch, mark_of
from sbp_core.rangeserver.appending.append_items import (
    InFlight,
    Item,
    PendingAppend,
    check_extensions,
    split_payload,
)
from sbp_core.rangeserver.appending.commit import GroupCommitter
from sbp_core.rangeserver.appending.writers import BatchNumber, Writers, check_number
from sbp_core.rangeserver.hosted_ranges import HostedRange, RangeInput, check_latest
from sbp_core.rangeserver.hosting import RangeHost
from sbp_core.rangeserver.housekeeping.disk_space import DiskSpace
from sbp_core.rangeserver.metrics import Metrics
from sbp_core.rangeserver.transactions.staging import StagedContents, StagedRepeat, Stagings
from sbp_core.records import accept_batch, digest_batch, write_base_offset
from sbp_core.segment_format import EntryKind
from sbp_core.server.answers import respond_all
from sbp_core.server.dispatch import Later, PromptHandler, Rest, ServerCall
from sbp_core.server.runtime import Clock
from sbp_core.server.trust import Standing
from sbp_core.wire.headers import (
    AppendRequest,
    AppendResponse,
    AppendResult,
    Status,
)
from sbp_core.wire.status import SUCCESS, status_for
from sbp_core.wire.txn_id import is_copy

_Outcome = Entry | PendingAppend | NumberedBatch | StagedRepeat | Status
"""Of an item: a batch to append, without and with a number; one that was; one that is still to be
compared with what is staged; or why it is refused."""


class _AppendFrame(Struct, frozen=True):
    """A frame that is being served; `began_at` is when it came."""

    call: ServerCall
    items: Sequence[Item]
    began_at: float

    @property
    def places(self) -> list[tuple[int, int]]:
        """The ranges to append to, (stream id, range index)."""
        return [(item.stream_id, item.range_index) for item in self.items]


class _Taken(Struct, frozen=True):
    """A frame whose batches were taken or refused: its `outcomes`, once `awaited` is over.

    `written` ends when its own `entries` are written, in ms since the epoch. `repeats` are still to
    be compared with what is staged.
    """

    frame: _AppendFrame
    outcomes: Sequence[_Outcome]
    entries: Sequence[Entry] = ()
    written: asyncio.Future[int] | None = None
    awaited: Collection[asyncio.Future[int]] = ()
    repeats: Sequence[StagedRepeat] = ()
    throttle_time_ms: int = 0

    @property
    def is_short(self) -> bool:
        """Whether one frame answers it."""
        return len(self.outcomes) <= limits.RESULTS_PER_FRAME


class AppendHandler(PromptHandler):
    """Serves APPEND. Every batch of a frame succeeds or fails by itself."""

    def __init__(
        self,
        host: RangeHost,
        committer: GroupCommitter,
        disk_space: DiskSpace,
        stagings: Stagings,
        in_flight: InFlight,
        *,
        staged: StagedContents,
        clock: Clock,
        metrics: Metrics,
        check_driver: Callable[[Standing, str], None],
    ) -> None:
        self._host = host
        self._committer = committer
        self._in_flight = in_flight
        self._writers = Writers(host.writers, in_flight)
        self._stagings = stagings
        self._staged = staged
        self._disk_space = disk_space
        self._clock = clock
        self._metrics = metrics
        self._check_driver = check_driver

    def begin(self, call: ServerCall) -> Rest | Later:
        """Take one APPEND frame; the rest is to wait until its batches are durable, or refused."""
        began_at = self._metrics.now()
        request = call.decode(AppendRequest)
        items = list(split_payload(request.append_requests, call.payload))
        if any(each.info.txn_id is not None and is_copy(each.info.txn_id) for each in items):
            self._check_driver(call.standing, "APPEND of a copy of a transaction")
        frame = _AppendFrame(call, items, began_at)
        lacking = self._host.lacking(frame.places, is_append=True)
        if lacking:
            return partial(self._learn, frame, lacking)
        taken = self._take(frame)
        is_simple = taken.is_short and not taken.repeats
        if taken.written is not None and len(taken.awaited) == 1 and is_simple:
            return Later(taken.written, partial(self._make_answer, taken))
        return partial(self._finish, taken)

    async def _learn(self, frame: _AppendFrame, lacking: Sequence[tuple[int, int]]) -> None:
        await self._host.learn(lacking, is_append=True)
        await self._finish(self._take(frame))

    def _take(self, frame: _AppendFrame) -> _Taken:
        """Queue what is to be appended, and say what the rest waits for."""
        try:
            # For the frame as a whole: a small batch must not overtake an earlier, larger one.
            self._committer.check_room(frame.call.memory_bytes)
            self._disk_space.let_in(len(frame.call.payload))
        except (ThrottledError, DiskFullError) as error:
            refusals = [status_for(error)] * len(frame.items)
            return _Taken(frame, refusals, throttle_time_ms=limits.THROTTLE_MS)
        entries: list[Entry] = []
        numbered: list[PendingAppend] = []
        accepted = [self._accept(item, entries, numbered) for item in frame.items]
        written = None
        if entries:
            written = self._committer.submit(entries, frame.call.memory_bytes)
            if numbered:
                self._in_flight.follow(numbered, written)
        awaited = {each.written for each in numbered if each.written is not None}
        if written is not None:
            awaited.add(written)
        repeats = [each for each in accepted if isinstance(each, StagedRepeat)]
        return _Taken(frame, accepted, entries, written, awaited, repeats)

    async def _finish(self, taken: _Taken) -> None:
        """Wait for what is appended, by this frame or by others, and answer.

        Others may wait for the same: so nothing is cancelled when nobody waits for this answer any
        longer. A frame that only waits for others takes its memory meanwhile, as those do.
        """
        held_bytes = taken.frame.call.memory_bytes if taken.written is None else 0
        if taken.awaited or taken.repeats:
            with self._committer.hold(held_bytes):
                await self._staged.compare(taken.repeats)
                if taken.awaited:
                    await asyncio.wait(taken.awaited)
        await respond_all(
            taken.frame.call,
            self._results(taken),
            lambda part: AppendResponse(taken.throttle_time_ms, part, SUCCESS),
        )

    def _make_answer(self, taken: _Taken) -> AppendResponse:
        return AppendResponse(taken.throttle_time_ms, tuple(self._results(taken)), SUCCESS)

    def _results(self, taken: _Taken) -> list[AppendResult]:
        """Return what became of each batch, now that nothing is waited for.

        Raises StatusError when the log cannot be written any more.
        """
        frame, written = taken.frame, taken.written
        try:
            time_ms = self._clock.wall_ms() if written is None else written.result()
            outcomes = list(map(_outcome_now, taken.outcomes))
        except LogWriteError as error:
            self._count(frame, (), ())
            raise StatusError(StatusCode.RS_INTERNAL, str(error)) from error
        self._count(frame, outcomes, taken.entries)
        return list(map(_result_of, frame.items, outcomes, repeat(time_ms)))

    def _count(
        self, frame: _AppendFrame, outcomes: Sequence[_Outcome], entries: Sequence[Entry]
    ) -> None:
        item_count = failed_count = len(frame.items)
        if outcomes:
            failed_count = sum(isinstance(each, Status) for each in outcomes)
        self._metrics.appends.add(
            item_count,
            failed_count,
            sum([entry.length for entry in entries]),
            self._metrics.now() - frame.began_at,
        )
        self._metrics.touch({(entry.stream_id, entry.range_index) for entry in entries})

    def _accept(self, item: Item, entries: list[Entry], numbered: list[PendingAppend]) -> _Outcome:
        """Give one batch its offsets and put it to the `entries`, or say why not.

        One that has a number and waits for the disk, now or since before, is put to `numbered`.
        """
        try:
            check_extensions(item.info)
            record_count = accept_batch(item.batch).record_count
            hosted = self._host.table.range_at(item.stream_id, -1)
            if item.info.txn_id is not None:
                taken, staged = self._stagings.take(item, hosted, record_count)
                entries += staged
                numbered += [taken] if isinstance(taken, PendingAppend) else []
                return taken
            if item.info.writer_id is not None:
                return self._accept_numbered(item, hosted, record_count, entries, numbered)
            check_latest(hosted, item.range_index)
            base_offset = hosted.assign(record_count)
        except SbpError as error:
            return status_for(error)
        write_base_offset(item.batch, base_offset)
        entry = Entry(
            EntryKind.BATCH,
            item.stream_id,
            hosted.range_index,
            base_offset,
            record_count,
            item.batch,
        )
        entries.append(entry)
        return entry

    def _accept_numbered(
        self,
        item: Item,
        hosted: HostedRange,
        record_count: int,
        entries: list[Entry],
        numbered: list[PendingAppend],
    ) -> PendingAppend | NumberedBatch:
        """Do the same for a batch with a number. Raises SbpError when it is refused.

        What was appended once stays so, whatever became of its range: so a repeat is looked for
        first. Whether a batch is the next one, only the open range can tell.
        """
        number = BatchNumber(item.stream_id, item.info.writer_id or "", item.info.sequence)
        check_number(number)
        is_told = self._host.knows_writers(*hosted.key)  # before the look: it may come meanwhile
        repeated = self._writers.maybe_repeat(number, record_count, item.batch)
        if repeated is not None:
            if isinstance(repeated, PendingAppend):
                numbered.append(repeated)
            return repeated
        check_latest(hosted, item.range_index)
        hosted.receive(RangeInput.APPEND)
        if not is_told:
            self._host.look_up_soon(hosted.stream_id)
            raise _not_told(hosted)
        self._writers.check_next(number)
        base_offset = hosted.assign(record_count)
        write_base_offset(item.batch, base_offset)
        batch = Entry(EntryKind.BATCH, *hosted.key, base_offset, record_count, item.batch)
        digest = digest_batch(item.batch)
        entries += (mark_of(batch, number.writer_id, number.sequence, digest), batch)
        numbered.append(self._writers.begin(number, base_offset, record_count, item.batch))
        return numbered[-1]


def _result_of(item: Item, outcome: _Outcome, time_ms: int) -> AppendResult:
    """Return the answer to an item; `time_ms` is when the frame was written."""
    base_offset, status = -1, SUCCESS
    if isinstance(outcome, Entry):
        base_offset = outcome.base_offset
    elif isinstance(outcome, Status):
        status = outcome
    elif isinstance(outcome, NumberedBatch):
        base_offset, time_ms = outcome.base_offset, outcome.time_ms
    return AppendResult(
        stream_id=item.stream_id,
        request_index=item.info.request_index,
        base_offset=base_offset,
        stream_append_time_ms=time_ms,
        status=status,
    )


def _outcome_now(outcome: _Outcome) -> _Outcome:
    """Return what became of a batch, now that nothing is waited for. Raises LogWriteError."""
    if isinstance(outcome, PendingAppend):
        return outcome.placed()
    if isinstance(outcome, StagedRepeat):
        return status_for(outcome.refusal) if outcome.refusal else outcome.placed()
    return outcome


def _not_told(hosted: HostedRange) -> WritersNotThereError:
    return WritersNotThereError(
        StatusCode.WRITERS_NOT_THERE,
        f"range {hosted.range_index} of stream {hosted.stream_id} came from another server,"
        " and the placement driver did not say yet who appended there; try again",
    )
