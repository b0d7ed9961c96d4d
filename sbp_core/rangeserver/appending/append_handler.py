"""APPEND: check each batch, assign its offsets, answer when it is committed (SPEC "APPEND").

Read append_items.py first (items of a frame, numbers of batches), then this module, staging.py
(batches of transactions), and commit.py (the way of entries into the log).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from itertools import repeat
from typing import Final

from msgspec import Struct

from sbp_core import limits
from sbp_core.errors import (
    DiskFullError,
    RangeSealedError,
    RequestTimeoutError,
    SbpError,
    ThrottledError,
    WritersNotThereError,
    invalid,
)
from sbp_core.log.durable_log import Log
from sbp_core.log.entry import BATCH_KINDS, Entry
from sbp_core.log.states.writer_states import NumberedBatch, mark_of
from sbp_core.rangeserver.appending.append_items import (
    BatchNumber,
    InFlight,
    Item,
    PendingAppend,
    Writers,
    check_number,
    split_payload,
)
from sbp_core.rangeserver.appending.commit import GroupCommitter, Written
from sbp_core.rangeserver.appending.staging import StagedRepeat, Stagings, compare
from sbp_core.rangeserver.hosted_ranges import HostedRange, RangeInput, check_latest, unsettled
from sbp_core.rangeserver.hosting import RangeHost
from sbp_core.rangeserver.housekeeping.disk_space import DiskSpace
from sbp_core.rangeserver.server_load import Metrics
from sbp_core.records import accept_batch, digest_batch, write_base_offset
from sbp_core.segment_format import EntryKind
from sbp_core.server.answers import in_frames
from sbp_core.server.dispatch import Answer, ServerCall
from sbp_core.server.runtime import Clock, LogTally
from sbp_core.server.trust import Standing
from sbp_core.wire.headers import AppendRequest, AppendResponse, AppendResult, Status
from sbp_core.wire.status import SUCCESS, status_for
from sbp_core.wire.txn_id import is_copy

_LOG: Final = logging.getLogger(__name__)
_THROTTLED_LOG_INTERVAL_MS: Final = 600_000
"""Pause between two log lines about throttled appends."""

_Outcome = Entry | PendingAppend | NumberedBatch | StagedRepeat | Status
"""The outcome of an item: a batch to append, without or with a number; the location of a batch that
was appended before; a repeat to compare with the staged batch; or the status of a refusal."""


class _Frame(Struct):
    """An APPEND frame in progress; `began_at` is the time of its arrival.

    `outcomes` are final when all `awaited` futures are done, and `repeats` are compared with the
    staged batches. `written` is done when the frame's `entries` are committed, or never will be.
    """

    call: ServerCall
    began_at: float
    items: Sequence[Item] = ()
    outcomes: Sequence[_Outcome] = ()
    entries: list[Entry] = []
    numbered: list[PendingAppend] = []
    """Numbered batches that are not committed yet, of this frame and of earlier frames."""
    repeats: list[StagedRepeat] = []
    written: asyncio.Future[Written] | None = None
    awaited: Collection[asyncio.Future[Written]] = ()
    throttle_time_ms: int = 0


class AppendHandler:
    """Serves APPEND. Each batch of a frame succeeds or fails by itself."""

    def __init__(
        self,
        host: RangeHost,
        log: Log,
        committer: GroupCommitter,
        stagings: Stagings,
        in_flight: InFlight,
        *,
        disk_space: DiskSpace,
        readers: ThreadPoolExecutor,
        clock: Clock,
        metrics: Metrics,
        check_driver: Callable[[Standing, str], None],
        batch_bytes_max: int = limits.BATCH_BYTES_MAX,
    ) -> None:
        self._host = host
        self._log = log
        self._committer = committer
        self._stagings = stagings
        self._in_flight = in_flight
        self._writers = Writers(log.writers, in_flight)
        self._disk_space = disk_space
        self._readers = readers
        self._clock = clock
        self._metrics = metrics
        self._check_driver = check_driver
        self._batch_bytes_max = batch_bytes_max
        self._throttled = LogTally(clock, _THROTTLED_LOG_INTERVAL_MS)

    async def __call__(self, call: ServerCall) -> Answer:
        """Accept one APPEND frame, and answer when its batches are committed.

        The frames of a connection are accepted in their order, up to the first `await` that waits.
        """
        frame = _Frame(call, self._clock.monotonic())
        request = call.decode(AppendRequest)
        frame.items = list(split_payload(request.append_requests, call.payload))
        if any(each.info.txn_id is not None and is_copy(each.info.txn_id) for each in frame.items):
            self._check_driver(call.peer.standing, "APPEND of a copy of a transaction")
        places = [(item.stream_id, item.range_index) for item in frame.items]
        await self._host.learn(places, is_append=True)
        self._submit(frame)
        try:
            await self._wait(frame)
        except asyncio.CancelledError:  # the client has disconnected, and the entries are written
            if frame.written is not None:
                frame.written.add_done_callback(partial(self._count, frame))
            raise
        self._count(frame, frame.written)
        results = self._results(frame)
        return in_frames(
            results, lambda part: AppendResponse(frame.throttle_time_ms, part, SUCCESS)
        )

    def _submit(self, frame: _Frame) -> None:
        """Queue the entries of a frame, and note the futures that its answer waits for."""
        try:
            # The frame is admitted as a whole: a small batch must not overtake a larger one.
            self._committer.check_room(frame.call.memory_bytes)
            self._disk_space.admit(len(frame.call.payload))
        except (ThrottledError, DiskFullError) as error:
            reason = "memory" if isinstance(error, ThrottledError) else "disk"
            self._metrics.throttled[reason] += len(frame.items)
            frame.outcomes = [self._refuse(item, error) for item in frame.items]
            frame.throttle_time_ms = limits.THROTTLE_MS
            if isinstance(error, ThrottledError) and (counts := self._throttled.add(1)):
                _LOG.warning(
                    "appends throttled count=%d peer=%s: %s", *counts, frame.call.peer.name, error
                )
            return
        frame.outcomes = [self._accept(item, frame) for item in frame.items]
        if frame.entries:
            frame.written = self._committer.submit(frame.entries, frame.call.memory_bytes)
            if frame.numbered:
                self._in_flight.follow(frame.numbered, frame.written)
        awaited = {each.written for each in frame.numbered if each.written is not None}
        if frame.written is not None:
            awaited.add(frame.written)
        frame.awaited = awaited

    def _refuse(self, item: Item, error: SbpError) -> Status:
        """Return the refusal of a batch for lack of room.

        A stream that goes on elsewhere gets the refusal of its sealed range. Otherwise its writer
        would retry here, and never look for the next range.
        """
        try:
            hosted = self._host.table.range_at(item.stream_id, -1)
            check_latest(hosted, item.range_index)
            hosted.receive(RangeInput.APPEND)
        except SbpError as refusal:
            return status_for(refusal)
        return status_for(error)

    async def _wait(self, frame: _Frame) -> None:
        """Wait until all batches of a frame are committed, also those of earlier frames.

        Several frames may wait for the same future, so no future is cancelled with this call.
        """
        if not frame.awaited and not frame.repeats:
            return
        # The committer counts the memory of a frame with entries. A frame without entries, which
        # waits for earlier frames only, counts here.
        is_counted = frame.written is not None
        with nullcontext() if is_counted else self._committer.hold(frame.call.memory_bytes):
            if frame.repeats:
                loop = asyncio.get_running_loop()
                await loop.run_in_executor(self._readers, compare, self._log, frame.repeats)
            for each in frame.awaited:
                await _end_of(each)

    def _results(self, frame: _Frame) -> list[AppendResult]:
        """Return the result of each batch after the wait. Raises LogWriteError."""
        written = frame.written
        own = Written(self._clock.wall_ms()) if written is None else written.result()
        outcomes = [_outcome_now(each, own) for each in frame.outcomes]
        return list(map(_result_of, frame.items, outcomes, repeat(own.time_ms)))

    def _count(self, frame: _Frame, written: asyncio.Future[Written] | None) -> None:
        """Count a frame in the metrics when `written` is done."""
        entries: Sequence[Entry] = frame.entries
        failed_count = sum(isinstance(each, Status) for each in frame.outcomes)
        if written is not None:
            if written.cancelled() or written.exception() is not None:
                entries, failed_count = (), len(frame.items)
            elif failed := {*written.result().truncated, *written.result().unsettled}:
                failed_count += sum(
                    each.kind in BATCH_KINDS and (each.stream_id, each.range_index) in failed
                    for each in entries
                )
        length_bytes = records = 0
        streams = self._metrics.streams.recent
        for entry in entries:
            count = entry.count if entry.kind in BATCH_KINDS else 0
            length_bytes += entry.length
            records += count
            traffic = streams[entry.stream_id]
            traffic.appended_bytes += entry.length
            traffic.appended_records += count
        self._metrics.appends.add(
            len(frame.items),
            failed_count,
            length_bytes,
            self._clock.monotonic() - frame.began_at,
            records,
        )
        self._metrics.touch({(entry.stream_id, entry.range_index) for entry in entries})

    def _accept(self, item: Item, frame: _Frame) -> _Outcome:
        """Assign the offsets of a batch and add it to the frame, or return its refusal."""
        info = item.info
        try:
            if info.sequence >= 0 and info.writer_id is None and info.txn_id is None:
                raise invalid(
                    f"sequence {info.sequence} belongs to no writer: append with a writer_id, or"
                    " without sequence"
                )
            record_count = accept_batch(item.batch, self._batch_bytes_max).record_count
            hosted = self._host.table.range_at(item.stream_id, -1)
            if info.txn_id is not None:
                return self._accept_staged(item, hosted, record_count, frame)
            if info.writer_id is not None:
                return self._accept_numbered(item, hosted, record_count, frame)
            check_latest(hosted, item.range_index)
            return _append(item, hosted, record_count, frame)
        except SbpError as error:
            return status_for(error)

    def _accept_staged(
        self, item: Item, hosted: HostedRange, record_count: int, frame: _Frame
    ) -> PendingAppend | StagedRepeat:
        named = self._host.table.maybe_range((item.stream_id, item.range_index))
        if named is None and hosted.is_replicated:  # raises: another server may have the batch
            self._host.table.range_at(item.stream_id, item.range_index)
        incomplete = named if named is not None and named.is_incomplete_copy else None
        accepted, staged = self._stagings.accept(item, hosted, record_count, incomplete)
        frame.entries += staged
        if isinstance(accepted, PendingAppend):
            frame.numbered.append(accepted)
        elif not self._host.may_acknowledge(item.stream_id, range_index=item.range_index):
            raise unsettled(item.stream_id, item.range_index)
        else:
            frame.repeats.append(accepted)
        return accepted

    def _accept_numbered(
        self, item: Item, hosted: HostedRange, record_count: int, frame: _Frame
    ) -> PendingAppend | NumberedBatch:
        """Accept a batch with a number as `_accept` does. Raises SbpError when it is refused.

        Repeats are looked for first, because a batch stays appended when its range is sealed. A
        batch that may still be truncated is not known to be a repeat. Only the open range knows
        whether a batch is the next one.
        """
        number = BatchNumber(item.stream_id, item.info.writer_id or "", item.info.sequence)
        check_number(number)
        has_writers = self._host.knows_writers(
            *hosted.key
        )  # first: writers may arrive during the next step
        final_below = self._host.final_below(hosted, has_writers=has_writers)
        repeated = self._writers.maybe_repeat(
            number, hosted.range_index, record_count, item.batch, final_below
        )
        if repeated is not None:
            if isinstance(repeated, PendingAppend):
                frame.numbered.append(repeated)
            elif not self._host.may_acknowledge(item.stream_id, offset=repeated.base_offset):
                raise WritersNotThereError.of(
                    f"{number} was appended before, in a range that has ended, and too few servers"
                    " are known to have settled that range; try again"
                )
            return repeated
        check_latest(hosted, item.range_index)
        hosted.receive(RangeInput.APPEND)
        if not has_writers:
            self._host.look_up_soon(hosted.stream_id)
            raise WritersNotThereError.of(
                f"range {hosted.range_index} of stream {hosted.stream_id} came from another server,"
                " and the placement driver has not sent its writers yet; try again"
            )
        self._writers.check_next(number, hosted.range_index)
        entry = _append(item, hosted, record_count, frame)
        mark = mark_of(entry, number.writer_id, number.sequence, digest_batch(item.batch))
        frame.entries.insert(-1, mark)  # right in front of its batch: elsewhere it means nothing
        pending = PendingAppend(
            number.writer,
            number.sequence,
            entry.base_offset,
            record_count,
            item.batch,
            hosted.range_index,
        )
        self._in_flight.begin(pending)
        frame.numbered.append(pending)
        return pending


def _append(item: Item, hosted: HostedRange, record_count: int, frame: _Frame) -> Entry:
    base_offset = hosted.assign(record_count)
    write_base_offset(item.batch, base_offset)
    entry = Entry(EntryKind.BATCH, *hosted.key, base_offset, record_count, item.batch)
    frame.entries.append(entry)
    return entry


async def _end_of(written: asyncio.Future[Written]) -> None:
    """Wait until a future is done, without cancelling it (`shield` costs a task)."""
    if not written.done():
        ended: asyncio.Future[None] = written.get_loop().create_future()
        written.add_done_callback(partial(_wake, ended))
        await ended


def _wake(ended: asyncio.Future[None], _: object) -> None:
    if not ended.done():
        ended.set_result(None)


def _result_of(item: Item, outcome: _Outcome, time_ms: int) -> AppendResult:
    """Return the result of an item; `time_ms` is the time when the frame was written."""
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


def _outcome_now(outcome: _Outcome, own: Written) -> _Outcome:
    """Return the final outcome of a batch; `own` is that of the frame's entries.

    Raises LogWriteError.
    """
    try:
        if isinstance(outcome, Entry) and (own.truncated or own.unsettled):
            own.check((outcome.stream_id, outcome.range_index))
        if isinstance(outcome, PendingAppend):
            return outcome.placed()
    except (RangeSealedError, RequestTimeoutError) as error:
        return status_for(error)
    if isinstance(outcome, StagedRepeat):
        return status_for(outcome.refusal) if outcome.refusal else outcome.placed()
    return outcome
