"""What a FETCH asks for, item by item, and how each is answered (SPEC "FETCH")."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sbp_core import limits
from sbp_core.errors import LogError
from sbp_core.log.segment_rows import Slot
from sbp_core.rangeserver.fetching.slot_reading import Wanted
from sbp_core.rangeserver.hosted_ranges import HostedRange
from sbp_core.wire.headers import FetchInfo, FetchResponse, FetchResult, Status
from sbp_core.wire.status import SUCCESS, status_for


@dataclass(frozen=True, slots=True)
class Item:
    """One request of a frame: batches of a stream from an offset on, `max_bytes` octets of them."""

    request_index: int
    stream_id: int
    range_index: int
    fetch_offset: int
    end_offset: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request: where its batches are, and where the next ones begin."""

    item: Item
    slots: tuple[Slot, ...]
    next_offset: int
    range_index: int = -1
    status: Status = SUCCESS

    @property
    def length_bytes(self) -> int:
        """Octets of the batches."""
        return sum(slot.body_length for slot in self.slots)

    def with_more(self, slots: tuple[Slot, ...]) -> Answer:
        """Return the answer with further batches, which follow on its own."""
        if not slots:
            return self
        return replace(self, slots=self.slots + slots, next_offset=slots[-1].end_offset)

    def result(self) -> FetchResult:
        """Return what the header says of it."""
        return FetchResult(
            stream_id=self.item.stream_id,
            request_index=self.item.request_index,
            batch_count=len(self.slots),
            status=self.status,
            batch_length=self.length_bytes,
            next_offset=self.next_offset,
        )


@dataclass(frozen=True, slots=True)
class Found:
    """The batches for a request in the range that serves it, whose tail was at `tail` then."""

    hosted: HostedRange
    offset: int
    tail: int
    slots: tuple[Slot, ...]

    @property
    def next_offset(self) -> int:
        """Offset after the batches."""
        return self.slots[-1].end_offset if self.slots else self.offset

    def answer(self, item: Item) -> Answer:
        """Return the answer that they make."""
        return Answer(item, self.slots, self.next_offset, self.hosted.range_index)

    def is_enough(self, item: Item, min_bytes: int) -> bool:
        """Whether the answer need not wait for more."""
        next_offset = self.next_offset
        return (
            next_offset == self.hosted.maybe_end_offset
            or 0 <= item.end_offset <= next_offset
            or sum([slot.body_length for slot in self.slots]) >= min(min_bytes, item.max_bytes)
            or next_offset < self.tail
        )


def wanted_for(hosted: HostedRange, offset: int, item: Item) -> Wanted:
    """Return what to look for in the log: the durable batches of a range from `offset` on."""
    return Wanted(hosted.key, offset, hosted.next_offset, item.end_offset, item.max_bytes)


def wanted_behind(hosted: HostedRange, answer: Answer, max_bytes: int) -> Wanted:
    """Return what to look for behind the batches of an answer: others that are large."""
    return Wanted(
        hosted.key,
        answer.next_offset,
        hosted.next_offset,
        answer.item.end_offset,
        max_bytes,
        limits.LOCAL_READ_BATCH_BYTES_MIN,
    )


def item_of(info: FetchInfo) -> Item:
    """Return what a FetchInfo asks for, with the defaults and within the limits."""
    stream_range = info.stream_range
    stream_id = info.stream_id
    if stream_id < 0 and stream_range is not None:
        stream_id = stream_range.stream_id
    max_bytes = (
        info.batch_max_bytes if info.batch_max_bytes > 0 else limits.FETCH_BATCH_BYTES_DEFAULT
    )
    return Item(
        request_index=info.request_index,
        stream_id=stream_id,
        range_index=stream_range.range_index if stream_range is not None else -1,
        fetch_offset=info.fetch_offset,
        end_offset=info.end_offset,
        max_bytes=min(max_bytes, limits.BATCH_BYTES_MAX),
    )


def response_of(answers: Sequence[Answer]) -> FetchResponse:
    """Return the header of a frame that holds these answers."""
    return FetchResponse(
        fetch_responses=tuple(answer.result() for answer in answers), status=SUCCESS
    )


def cut_short(answer: Answer, slot_count: int, error: LogError) -> Answer:
    """Return the answer that ends after `slot_count` batches, the next of which cannot be read.

    If that is the first one, it says so.
    """
    slots = answer.slots[:slot_count]
    if slots:
        return replace(answer, slots=slots, next_offset=slots[-1].end_offset)
    next_offset = answer.item.fetch_offset
    return replace(answer, slots=(), next_offset=next_offset, status=status_for(error))
