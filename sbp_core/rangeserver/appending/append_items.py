"""The batches of an APPEND frame: split the payload, recognise repeats, check numbers.

A writer numbers its batches of a stream 0, 1, 2, ... The next number is appended, a repeat gets the
answer of the original, any other number is refused. InFlight has the numbered batches that were
accepted and are not committed yet, so a repeat is never answered before the original. Staged
batches are numbered in the same way by their transaction (staging.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Final, TypeVar

from msgspec import Struct

from sbp_core import limits
from sbp_core.errors import (
    ThrottledError,
    WriterGapError,
    WriterRepeatError,
    WriterUnknownError,
    invalid,
)
from sbp_core.log.states.writer_states import NumberedBatch, WriterStates
from sbp_core.rangeserver.appending.commit import Written
from sbp_core.records import are_same, digest_batch
from sbp_core.wire.headers import AppendInfo
from sbp_core.wire.status import shown
from sbp_core.wire.txn_id import is_writer_id
from sbp_core.wording import counted

_SEQUENCE_MAX: Final = 2**63 - 2

_Sent = TypeVar("_Sent")


class Item(Struct, frozen=True):
    """One batch to append."""

    info: AppendInfo
    stream_id: int
    range_index: int
    batch: memoryview


def split_payload(infos: Iterable[AppendInfo], payload: memoryview) -> Iterable[Item]:
    """Yield the items of an APPEND frame. Raises InvalidRequestError if the lengths are wrong."""
    for info, batch in cut_payload(infos, payload, lambda info: info.batch_length):
        stream_range = info.stream_range
        stream_id = info.stream_id
        if stream_id < 0 and stream_range is not None:
            stream_id = stream_range.stream_id
        range_index = stream_range.range_index if stream_range is not None else -1
        yield Item(info, stream_id, range_index, batch)


def cut_payload(
    items: Iterable[_Sent], payload: memoryview, length_of: Callable[[_Sent], int]
) -> Iterator[tuple[_Sent, memoryview]]:
    """Yield each item of a frame with its part of the payload.

    Raises InvalidRequestError unless the lengths add up to the payload.
    """
    position = 0
    for at, item in enumerate(items):
        length = length_of(item)
        end = position + length
        if length < 0 or end > len(payload):
            raise invalid(
                f"item {at} of the frame takes bytes {position}..{end} of a payload of"
                f" {len(payload)}; nothing of this frame was appended"
            )
        yield item, payload[position:end]
        position = end
    if position != len(payload):
        raise invalid(
            f"the items of the frame take {position} bytes, the payload has {len(payload)}; nothing"
            " of this frame was appended"
        )


Numberer = tuple[int, str] | tuple[int, int, str]
"""Numbers batches: a writer (stream id, writer id), or (stream id, range index, txn id)."""


@dataclass(slots=True, eq=False)
class PendingAppend:
    """A numbered batch that is not committed; `written` is done when it is, or was truncated.

    `base_offset` is -1 for a staged batch. A repeat is compared with the bytes of `batch`.
    """

    numberer: Numberer
    sequence: int
    base_offset: int
    record_count: int
    batch: memoryview
    range_index: int
    written: asyncio.Future[Written] | None = None

    def placed(self) -> NumberedBatch:
        """Return the offsets of the batch once `written` is done.

        Raises LogWriteError if the log failed, RangeSealedError if the range ended before the
        batch, RequestTimeoutError if too few other servers have it.
        """
        assert self.written is not None
        written = self.written.result()
        written.check((self.numberer[0], self.range_index))
        return NumberedBatch(self.base_offset, self.record_count, written.time_ms)


class InFlight:
    """The numbered batches that were accepted and are not committed yet.

    Batches of an ended range stay until the range is settled here. By then the writer may have
    appended the same sequences elsewhere, and go on in a later range of this server. So each range
    has sequences of its own.
    """

    def __init__(self) -> None:
        self._batches: dict[Numberer, dict[tuple[int, int], PendingAppend]] = {}
        """The batches of each numberer by range and sequence, in the order of acceptance."""

    def of(self, numberer: Numberer) -> Collection[PendingAppend]:
        """Return the batches of a writer or transaction, in order."""
        return self._batches.get(numberer, _NO_BATCHES).values()

    def maybe_batch(
        self, numberer: Numberer, range_index: int, sequence: int
    ) -> PendingAppend | None:
        """Return a batch that is in flight in a range."""
        return self._batches.get(numberer, _NO_BATCHES).get((range_index, sequence))

    def maybe_last(self, numberer: Numberer, range_index: int) -> int | None:
        """Return the last accepted sequence, if that batch is in flight in this range."""
        batches = self._batches.get(numberer)
        if not batches:
            return None
        last_range, last = next(reversed(batches))
        return last if last_range == range_index else None

    def begin(self, append: PendingAppend) -> None:
        """Add the next batch. The caller must call `follow` next."""
        batches = self._batches.setdefault(append.numberer, {})
        batches[append.range_index, append.sequence] = append

    def follow(self, appends: Iterable[PendingAppend], written: asyncio.Future[Written]) -> None:
        """Let new batches wait for `written`, which must not be cancelled.

        Repeats of earlier batches, which wait for their own future, are left as they are.
        """
        begun = []
        for append in appends:
            if append.written is None:
                append.written = written
                begun.append(append)
        written.add_done_callback(partial(self._on_written, begun))

    def _on_written(self, begun: Iterable[PendingAppend], written: asyncio.Future[Written]) -> None:
        """Forget committed batches. After a failure they stay: the log's content is unknown."""
        if written.exception() is not None:
            return
        for append in begun:
            batches = self._batches[append.numberer]
            del batches[append.range_index, append.sequence]
            if not batches:
                del self._batches[append.numberer]


_NO_BATCHES: Final[Mapping[tuple[int, int], PendingAppend]] = {}


@dataclass(frozen=True, slots=True)
class BatchNumber:
    """The number of a batch: stream, writer and sequence."""

    stream_id: int
    writer_id: str
    sequence: int

    def __str__(self) -> str:
        return f"batch {self.sequence} of writer {self.writer_id} in stream {self.stream_id}"

    @property
    def writer(self) -> tuple[int, str]:
        """The writer as a `Numberer`."""
        return self.stream_id, self.writer_id


def check_number(number: BatchNumber) -> None:
    """Raise InvalidRequestError for an invalid writer id or sequence."""
    if not is_writer_id(number.writer_id):
        raise invalid(
            f"{shown(number.writer_id)} cannot name a writer: use 1 to"
            f" {limits.WRITER_ID_LENGTH_MAX} of A-Z a-z 0-9 . _ -"
        )
    if not 0 <= number.sequence <= _SEQUENCE_MAX:
        raise invalid(
            f"writer {number.writer_id} gave sequence {number.sequence}: its first batch of a"
            " stream must have sequence 0, each next one 1 more"
        )


class Writers:
    """The writers of all streams, with their batches in the log and in flight."""

    def __init__(self, known: WriterStates, in_flight: InFlight) -> None:
        self._known = known
        self._in_flight = in_flight

    def maybe_repeat(
        self,
        number: BatchNumber,
        range_index: int,
        record_count: int,
        batch: memoryview,
        final_below: float = inf,
    ) -> PendingAppend | NumberedBatch | None:
        """Return the original of a repeat; None if the batch was not accepted before.

        `range_index` is the latest range of the stream here. A batch in the log that ends above
        `final_below` may still be truncated, and counts as not accepted. Raises WriterRepeatError
        if the offset of the original is not known any more, InvalidRequestError if the original has
        other content: to acknowledge this batch would lose it. Batches of old logs have no digest,
        and are compared by their record counts only.
        """
        if number.sequence > self._last_sequence(number, range_index):
            return None
        state = self._known.maybe_writer(*number.writer)
        logged = None if state is None else state.maybe_batch(number.sequence)
        found = self._maybe_in_flight(number, range_index, logged) or logged
        if found is None:
            raise WriterRepeatError.of(
                f"{number} was appended before, and its offset is no longer known: a server keeps"
                f" the last {limits.WRITER_BATCHES_KEPT} batches of a writer"
            )
        if isinstance(found, NumberedBatch) and found.end_offset > final_below:
            return None
        place = found.base_offset.to_bytes(8, "big")
        if found.record_count != record_count:
            raise invalid(
                f"{number} had {counted(found.record_count, 'record')}, this one has"
                f" {record_count}: two writers must not have the same id",
                place,
            )
        if not _is_repeat(found, batch):
            raise invalid(
                f"{number} was appended before with other content, so this one was not stored: a"
                " retry must send the same bytes, and two writers must not have the same id. See"
                " what is in the stream, and go on as a new writer",
                place,
            )
        return found

    def check_next(self, number: BatchNumber, range_index: int) -> None:
        """Raise unless a batch that is not a repeat is the next one of its writer.

        Raises WriterGapError, WriterUnknownError, ThrottledError if too many batches are in flight.
        """
        last = self._last_sequence(number, range_index)
        if number.sequence == last + 1:
            in_range = [
                each
                for each in self._in_flight.of(number.writer)
                if each.range_index == range_index
            ]
            if len(in_range) < limits.WRITER_BATCHES_KEPT:
                return
            raise ThrottledError.of(
                f"{number} was not appended: {limits.WRITER_BATCHES_KEPT} batches of its writer"
                " wait for the disk already; try again later"
            )
        if last < 0:
            raise WriterUnknownError.of(
                f"{number} is not a first batch, and the writer is unknown: a stream remembers the"
                f" {limits.WRITERS_PER_STREAM_MAX} writers that appended last. See what is in the"
                " stream, and go on as a new writer"
            )
        raise WriterGapError.of(
            f"{number} was not appended: batch {last + 1} comes next",
            WriterGapError.encode_expected(last + 1),
        )

    def _maybe_in_flight(
        self, number: BatchNumber, range_index: int, logged: NumberedBatch | None
    ) -> PendingAppend | None:
        """Return a batch in flight: in the latest range, or at the offset that the log has."""
        for each in self._in_flight.of(number.writer):
            is_it = each.range_index == range_index or (
                logged is not None and each.base_offset == logged.base_offset
            )
            if is_it and each.sequence == number.sequence:
                return each
        return None

    def _last_sequence(self, number: BatchNumber, range_index: int) -> int:
        """Return the last accepted sequence of the writer, -1 if the writer is unknown."""
        last = self._in_flight.maybe_last(number.writer, range_index)
        if last is not None:
            return last
        state = self._known.maybe_writer(*number.writer)
        return -1 if state is None else state.last_sequence


def _is_repeat(found: PendingAppend | NumberedBatch, batch: memoryview) -> bool:
    """Whether a batch has the content of `found`, as far as that is known."""
    if isinstance(found, PendingAppend):
        return are_same(found.batch, batch)
    return not found.digest or found.digest == digest_batch(batch)
