"""Find the batches that answer a FETCH, item by item (SPEC "FETCH").

A search does not leave the event loop if the log has the rows in memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from sbp_core import limits
from sbp_core.errors import (
    LogError,
    NotFoundError,
    OffsetOutOfRangeError,
    SbpError,
    StatusCode,
    UnsupportedError,
    invalid,
)
from sbp_core.log.durable_log import Log
from sbp_core.log.segment_rows import Slot
from sbp_core.log.states.range_states import RangeKey
from sbp_core.log.states.staged_states import Staging
from sbp_core.rangeserver.hosted_ranges import HostedRange, RangeInput, RangeTable, first_offset
from sbp_core.records import NO_SELECTION, Selection, check_filters, check_projections
from sbp_core.wire.headers import FetchInfo, FetchResponse, FetchResult, Status
from sbp_core.wire.status import SUCCESS, shown, status_for
from sbp_core.wording import counted

_SELECTED_TIMES: Final = 4
"""How many times the bytes of an answer are looked at if most of them may be left out. A thread
needs some ms to read the fronts of 32 batches of 1 MiB."""
EARLIEST_OFFSET: Final = -2
LATEST_OFFSET: Final = -1


class Item(Struct, frozen=True):
    """One request of a frame: batches of a range from an offset on, up to `max_bytes`.

    With a `txn_id` the staged batches of that transaction, which `fetch_offset` counts. `selection`
    are the wanted columns and rows.
    """

    request_index: int
    stream_id: int
    range_index: int
    fetch_offset: int
    end_offset: int
    max_bytes: int
    txn_id: str | None
    batch_bytes_max: int
    selection: Selection = NO_SELECTION

    @property
    def is_selected(self) -> bool:
        """Whether columns or records are left out."""
        return self.selection != NO_SELECTION


class Answer(Struct, frozen=True):
    """The answer to a request: the slots of its batches, and the next offset.

    The batches are stored in `stored_bytes`. An answer that is not `is_ready` has less than the
    request waits for. `sent_bytes` is set after the read: the bytes that are sent, without columns
    or records that are left out.
    """

    item: Item
    slots: tuple[Slot, ...]
    next_offset: int
    range_index: int = -1
    status: Status = SUCCESS
    is_ready: bool = True
    stored_bytes: int = 0
    sent_bytes: int | None = None

    @property
    def length_bytes(self) -> int:
        """Bytes of the batches as they are sent if that is known, else the most that are sent."""
        if self.sent_bytes is not None:
            return self.sent_bytes
        if self.stored_bytes <= self.item.max_bytes:
            return self.stored_bytes
        return max(self.item.max_bytes, self.slots[0].body_length)

    def cut_short(self, slot_count: int, error: LogError | None) -> Answer:
        """Return the answer up to `slot_count` batches: the next is unreadable, or is not sent.

        If the first batch is unreadable, the status says why.
        """
        if error is not None and not slot_count:
            return failed(self.item, error)
        if slot_count == len(self.slots):
            return self
        slots = self.slots[:slot_count]
        next_offset = slots[-1].end_offset
        if self.item.txn_id is not None:
            next_offset = self.item.fetch_offset + slot_count
        return replace(self, slots=slots, next_offset=next_offset, stored_bytes=_bytes_of(slots))

    def result(self) -> FetchResult:
        """Return the result for the header of the response."""
        return FetchResult(
            stream_id=self.item.stream_id,
            request_index=self.item.request_index,
            batch_count=len(self.slots),
            status=self.status,
            batch_length=self.length_bytes,
            next_offset=self.next_offset,
        )


class Wanted(Struct, frozen=True):
    """Which batches of a range to find: from `offset` to `stop_offset`, at least one of them.

    `max_bytes` counts bodies. With `staging` the offsets count the batches of that transaction.
    If batches are large, `_SELECTED_TIMES` as many are found if most is left out of them.
    """

    key: RangeKey
    offset: int
    stop_offset: int
    max_bytes: int
    staging: Staging | None = None
    is_selected: bool = False

    def is_too_much(self, batch_count: int, size_bytes: int) -> bool:
        """Whether these are more batches than are wanted."""
        if size_bytes <= self.max_bytes:
            return False
        are_large = size_bytes >= batch_count * limits.CUT_BATCH_BYTES_MIN
        is_enough = size_bytes > _SELECTED_TIMES * self.max_bytes
        return is_enough or not (self.is_selected and are_large)


def item_of(info: FetchInfo, batch_bytes_max: int = limits.BATCH_BYTES_MAX) -> Item:
    """Return the request in a FetchInfo, with defaults and limits applied.

    The client reads batches of up to `batch_bytes_max`. Raises InvalidRequestError for filters and
    projections over the limits.
    """
    check_filters(info.filters)
    projections = info.projections[: limits.PROJECTIONS_PER_ITEM_MAX]
    check_projections(projections)
    stream_range = info.stream_range
    stream_id = info.stream_id
    if stream_id < 0 and stream_range is not None:
        stream_id = stream_range.stream_id
    max_bytes = (
        info.batch_max_bytes if info.batch_max_bytes > 0 else limits.FETCH_BATCH_BYTES_DEFAULT
    )
    return Item(
        info.request_index,
        stream_id,
        stream_range.range_index if stream_range is not None else -1,
        info.fetch_offset,
        info.end_offset,
        min(max_bytes, limits.BATCH_BYTES_MAX),
        info.txn_id,
        batch_bytes_max,
        Selection(projections, info.filters),
    )


def response_of(answers: Sequence[Answer]) -> FetchResponse:
    """Return the header of a frame with these answers."""
    return FetchResponse(
        fetch_responses=tuple([answer.result() for answer in answers]), status=SUCCESS
    )


class BatchFinder:
    """Finds batches in the ranges of `table`, in memory or on `threads`."""

    def __init__(self, table: RangeTable, log: Log, threads: ThreadPoolExecutor) -> None:
        self._table = table
        self._log = log
        self._threads = threads

    def at_tail(self, item: Item) -> Item:
        """Replace "the tail" by the offset that it is at now, so that waiting makes sense.

        An item whose stream cannot be read is returned as it is: its answer says why.
        """
        if item.fetch_offset != LATEST_OFFSET:
            return item
        try:
            tail = self._table.range_at(item.stream_id, -1)
        except SbpError:
            return item
        return replace(item, range_index=tail.range_index, fetch_offset=tail.next_offset)

    async def answer(self, item: Item, min_bytes: int) -> Answer:
        """Find the batches of a request, which waits for `min_bytes`; 0 does not wait.

        The request is evaluated again if the range was trimmed or deleted during the search.
        """
        try:
            hosted, offset = self._locate(item)
            while True:
                tail = hosted.next_offset
                stop_offset = tail if item.end_offset < 0 else min(item.end_offset, tail)
                try:
                    wanted = Wanted(
                        *(hosted.key, offset, stop_offset, item.max_bytes),
                        is_selected=item.is_selected,
                    )
                    slots = await self._find(wanted)
                    break
                except LogError:
                    place = self._locate(item)
                    if place == (hosted, offset):
                        raise
                    hosted, offset = place
            slots = _readable(item, slots)
        except SbpError as error:
            return failed(item, error)
        next_offset = slots[-1].end_offset if slots else offset
        stored_bytes = _bytes_of(slots)
        is_ready = (
            next_offset == hosted.end_offset
            or 0 <= item.end_offset <= next_offset
            or stored_bytes >= min(min_bytes, item.max_bytes)
            or next_offset < tail
        )
        return Answer(
            *(item, slots, next_offset, hosted.range_index),
            is_ready=is_ready,
            stored_bytes=stored_bytes,
        )

    async def staged_answer(self, item: Item) -> Answer:
        """Find staged batches. The answer at their end is empty: nothing waits for more."""
        key, offset = (item.stream_id, item.range_index), item.fetch_offset
        try:
            staging = self._staging_for(item)
            wanted = Wanted(key, offset, staging.batch_count, item.max_bytes, staging)
            slots = _readable(item, await self._find(wanted))
        except SbpError as error:
            return failed(item, error)
        next_offset = offset + len(slots)
        return Answer(item, slots, next_offset, item.range_index, stored_bytes=_bytes_of(slots))

    async def _find(self, wanted: Wanted) -> tuple[Slot, ...]:
        """Return the slots of batches. Raises LogError if the first cannot be found."""
        if wanted.offset >= wanted.stop_offset:
            return ()
        if wanted.staging is None and self._log.is_recent(wanted.key, wanted.offset):
            return _collect_slots(self._log, wanted)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, _collect_slots, self._log, wanted)

    def _locate(self, item: Item) -> tuple[HostedRange, int]:
        """Return the range that serves a request, and the first offset to read."""
        ranges = self._table.ranges_of(item.stream_id)
        ranges[0].receive(RangeInput.FETCH)
        offset = item.fetch_offset
        if item.range_index >= 0:
            ranges = [self._table.range_at(item.stream_id, item.range_index)]
        if offset == EARLIEST_OFFSET:
            offset = first_offset(ranges)
        for hosted in reversed(ranges):
            if hosted.start_offset <= offset <= hosted.next_offset:
                return hosted, offset
        start_offset, next_offset = self._table.bounds_of(item.stream_id)
        if offset > next_offset and ranges[-1].is_incomplete_copy:
            raise ranges[-1].unknown(f"what is behind offset {next_offset}")
        raise OffsetOutOfRangeError.of(
            f"offset {item.fetch_offset} of stream {item.stream_id} is outside"
            f" [{start_offset}, {next_offset}]",
            OffsetOutOfRangeError.encode_bounds(start_offset, next_offset),
        )

    def _staging_for(self, item: Item) -> Staging:
        """Return the staging that a request asks for.

        Raises NotFoundError if nothing is staged in the range, RangeNotFoundError if the range is
        not here.
        """
        if item.txn_id is None:
            raise invalid(
                "a FETCH must ask either for staged batches or for committed ones, not for both"
            )
        if item.range_index < 0:
            raise invalid("staged batches are read range by range: set range_index")
        hosted = self._table.range_at(item.stream_id, item.range_index)
        if hosted.is_incomplete_copy:
            raise hosted.unknown(f"what is staged under {shown(item.txn_id)}")
        staging = self._log.staged.maybe_staging(item.stream_id, item.range_index, item.txn_id)
        if staging is None:
            raise NotFoundError.of(
                f"nothing is staged under {shown(item.txn_id)} in range {item.range_index} of"
                f" stream {item.stream_id}"
            )
        if not 0 <= item.fetch_offset <= staging.batch_count:
            raise invalid(
                f"transaction {item.txn_id} has {counted(staging.batch_count, 'batch')} staged, and"
                f" batch {item.fetch_offset} is asked for"
            )
        return staging


def _collect_slots(log: Log, wanted: Wanted) -> tuple[Slot, ...]:
    slots: list[Slot] = []
    taken_bytes = 0
    staging = wanted.staging
    batches = (
        log.batches_from(wanted.key, wanted.offset)
        if staging is None
        else log.staged_from(staging, wanted.offset)
    )
    try:
        for slot in batches:
            taken_bytes += slot.body_length
            is_full = staging is not None and len(slots) >= limits.RESULTS_PER_FRAME
            is_too_much = slots and (wanted.is_too_much(len(slots) + 1, taken_bytes) or is_full)
            if is_too_much or slot.base_offset >= wanted.stop_offset:
                break
            slots.append(slot)
    except LogError:
        if not slots:
            raise
    return tuple(slots)


def _bytes_of(slots: Sequence[Slot]) -> int:
    return sum([slot.body_length for slot in slots])


def _readable(item: Item, slots: tuple[Slot, ...]) -> tuple[Slot, ...]:
    """Return the batches before the first one that is too large for the client.

    Raises UnsupportedError if there is none.
    """
    for at, slot in enumerate(slots):
        if slot.body_length > item.batch_bytes_max:
            if at:
                return slots[:at]
            raise UnsupportedError(
                StatusCode.UNSUPPORTED_OPERATION,
                f"the batch at offset {slot.base_offset} of stream {item.stream_id} has"
                f" {slot.body_length} bytes, and the client reads batches of"
                f" {item.batch_bytes_max} bytes at most: upgrade the client",
            )
    return slots


def failed(item: Item, error: SbpError) -> Answer:
    """Return the answer to a request that cannot be served."""
    return Answer(item, (), item.fetch_offset, status=status_for(error))
