"""The ranges of this server: looked up at the placement driver, stored in the log, then served.

A range that a request names and the table does not know is looked up at the placement driver
(LIST_RANGES for this server) and written to the log before it is used. All requests that wait for
the same stream share one look-up. An announcement (SYNC_RANGES) only starts such a
look-up early: any peer can send one, so its contents are not trusted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Final, Protocol

from sbp_core.errors import (
    LogCorruptionError,
    OffsetOutOfRangeError,
    SbpError,
)
from sbp_core.failpoints import failpoint
from sbp_core.log.entry import Entry
from sbp_core.log.states.range_states import LoggedRange, range_created
from sbp_core.log.states.writer_states import WriterStates, decode_writers, encode_writers
from sbp_core.rangeserver.appending.commit import GroupCommitter
from sbp_core.rangeserver.hosted_ranges import HostedRange, RangeInput, RangeTable
from sbp_core.rangeserver.housekeeping.retention import Retention
from sbp_core.segment_format import EntryKind
from sbp_core.wire.headers import StreamRange, TxnPart


class StreamWaiters:
    """Waiting FETCHes by stream: a commit to the stream wakes them."""

    def __init__(self) -> None:
        self._events: dict[int, set[asyncio.Event]] = {}
        self.is_closing = False
        """Whether the server drains, so that no call should wait any longer."""

    @contextmanager
    def watch(self, stream_ids: Iterable[int]) -> Iterator[asyncio.Event]:
        """Give an event that is set by each `notify` of these streams, and by `close`."""
        event = asyncio.Event()
        watched = set(stream_ids)
        for stream_id in watched:
            self._events.setdefault(stream_id, set()).add(event)
        try:
            yield event
        finally:
            for stream_id in watched:
                events = self._events[stream_id]
                events.discard(event)
                if not events:
                    del self._events[stream_id]

    def notify(self, stream_id: int) -> None:
        """Wake those that wait for the stream."""
        for event in self._events.get(stream_id, ()):
            event.set()

    def close(self) -> None:
        """Wake all: they are answered with what there is."""
        self.is_closing = True
        for event in chain.from_iterable(self._events.values()):
            event.set()


_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PlacedRange:
    """A range that is placed on this server, and the writers before it, empty if unknown."""

    stream_range: StreamRange
    writers: bytes = b""


class DriverPort(Protocol):
    """The requests of a range server to the placement driver. Everything raises SbpError."""

    async def list_hosted_ranges(self, stream_ids: Sequence[int]) -> list[PlacedRange]:
        """Return the ranges of these streams that are placed on this server."""

    async def find_retentions(self, stream_ids: Sequence[int]) -> dict[int, Retention]:
        """Return how long these streams are kept, those that are unknown left out."""

    async def report_trims(self, offsets: Mapping[int, int]) -> None:
        """Record that streams begin at these offsets."""

    async def find_dead(self, parts: Sequence[TxnPart]) -> list[TxnPart]:
        """Return the staged parts among these that will never be published."""


class RangeHost:
    """The ranges of this server."""

    def __init__(
        self,
        table: RangeTable,
        committer: GroupCommitter,
        waiters: StreamWaiters,
        placement: DriverPort,
        writers: WriterStates,
    ) -> None:
        self.table = table
        self.writers = writers
        self._committer = committer
        self._waiters = waiters
        self._placement = placement
        self._lookups: dict[int, asyncio.Task[None]] = {}
        self._known_before: dict[int, int] = {}
        """The last range of each stream whose writers were found to be known: they stay known."""

    def publish(self, ranges: Iterable[LoggedRange]) -> None:
        """Make visible what a committed group changed, and wake the FETCHes that wait for it."""
        for logged in ranges:
            self.table.publish(logged)
            self._waiters.notify(logged.stream_id)

    def lacking(
        self, wanted: Iterable[tuple[int, int]], *, is_append: bool = False
    ) -> list[tuple[int, int]]:
        """Return the (stream id, range index) pairs that are not known here.

        Index -1 means any range of the stream; `is_append` asks for an open one.
        """
        return [each for each in wanted if self.table.lacks(*each, is_append=is_append)]

    async def learn(self, wanted: Iterable[tuple[int, int]], *, is_append: bool = False) -> None:
        """Look up those that are `lacking`.

        Never raises for a single stream: a request for a range that stays unknown is refused.
        """
        lacking = self.lacking(wanted, is_append=is_append)
        if not lacking:
            return
        unknown = {stream_id for stream_id, _ in lacking}
        pending = self._lookups_of(unknown)
        with self._waiters.watch(unknown) as changed:
            while pending and self.lacking(lacking, is_append=is_append):
                changed.clear()
                announced = asyncio.create_task(changed.wait())
                try:
                    done, _ = await asyncio.wait(
                        {*pending, announced}, return_when=asyncio.FIRST_COMPLETED
                    )
                finally:
                    announced.cancel()
                pending = {task for task in pending if task not in done}

    def look_up_soon(self, stream_id: int) -> None:
        """Ask the placement driver for a stream, in the background."""
        self._lookups_of([stream_id])

    def knows_writers(self, stream_id: int, range_index: int) -> bool:
        """Whether the writers that appended to a stream before a range of it are known here.

        There are none before the first range. Otherwise the range before has to be here with its
        own writers known, or the placement driver has sent them.
        """
        first = max(self.writers.known_from(stream_id), self._known_before.get(stream_id, 0))
        is_known = self.table.has_ranges(stream_id, range(first, range_index))
        if is_known and range_index > first:
            self._known_before[stream_id] = range_index
        return is_known

    def writers_at_end(self, sealed: HostedRange) -> bytes:
        """Return the writers at the end of a sealed range as they go over the wire.

        Empty if no writer appended to it, or if it is not the last range here.
        """
        is_last = self.table.range_at(sealed.stream_id, -1) is sealed
        if not is_last or not self.knows_writers(*sealed.key):
            return b""
        return encode_writers(self.writers.writers_of(sealed.stream_id))

    async def seal(self, stream_id: int, range_index: int) -> HostedRange:
        """Seal a range that was learned; return it once that is durable. A seal is final.

        Raises RangeNotFoundError, NotFoundError, LogWriteError.
        """
        hosted = self.table.range_at(stream_id, range_index)
        self.table.move(hosted, RangeInput.SEAL)
        failpoint("range.before_seal")
        seal = Entry(EntryKind.SEAL, stream_id, hosted.range_index, hosted.assigned_offset, 0)
        await self._committer.submit([seal])
        failpoint("range.after_seal")
        return hosted

    async def delete(self, stream_id: int) -> None:
        """Refuse the stream from now on, durably. Raises RangeNotFoundError if it is not here."""
        for hosted in self.table.ranges_of(stream_id):
            self.table.move(hosted, RangeInput.DELETE)
        self._waiters.notify(stream_id)
        await self._committer.submit([Entry(EntryKind.STREAM_DELETED, stream_id, -1, 0, 0)])

    async def trim(self, stream_id: int, offset: int) -> HostedRange:
        """Refuse to serve records below `offset`, durably; return the first range with records.

        This is about all ranges of the stream that were learned; batches stay on the disk. Raises
        RangeNotFoundError, NotFoundError, LogWriteError, and OffsetOutOfRangeError for an offset
        beyond the tail of the open range.
        """
        ranges = self.table.ranges_of(stream_id)
        last = ranges[-1]
        last.receive(RangeInput.TRIM)
        if last.end_offset is None and offset > last.next_offset:
            start_offset, next_offset = self.table.bounds_of(stream_id)
            raise OffsetOutOfRangeError.of(
                f"trim_offset {offset} of stream {stream_id} is beyond its tail, {next_offset};"
                " nothing of this stream was trimmed",
                OffsetOutOfRangeError.encode_bounds(start_offset, next_offset),
            )
        if any(each.start_offset < min(offset, each.next_offset) for each in ranges):
            await self._committer.submit([Entry(EntryKind.TRIM, stream_id, -1, offset, 0)])
        return next((each for each in ranges if each.start_offset < each.next_offset), last)

    async def confirm(self, announced: Iterable[StreamRange]) -> None:
        """Look up streams at the placement driver that may not be those of their ids here."""
        doubtful = {
            each.stream_id
            for each in announced
            if self.table.may_be_another(each.stream_id, each.created_at_ms)
        }
        if doubtful:
            await asyncio.wait(self._lookups_of(doubtful))

    def _lookups_of(self, stream_ids: Collection[int]) -> set[asyncio.Task[None]]:
        """Return the look-ups of streams; one begins for all that are not looked up already."""
        fresh = [stream_id for stream_id in stream_ids if stream_id not in self._lookups]
        if fresh:
            task = asyncio.create_task(self._look_up(fresh))
            self._lookups.update(dict.fromkeys(fresh, task))
        return {self._lookups[stream_id] for stream_id in stream_ids}

    async def _look_up(self, stream_ids: Sequence[int]) -> None:
        try:
            found = await self._placement.list_hosted_ranges(stream_ids)
            ends = {
                (each.stream_id, each.range_index): each.end_offset
                for each in (placed.stream_range for placed in found)
            }
            entries = [
                entry
                for each in found
                if self._continues(each.stream_range, ends)
                for entry in self._news_of(each)
            ]
            if entries:
                await self._committer.submit(entries)
        except SbpError as error:
            _LOG.warning("range look-up failed: streams=%d error=%s", len(stream_ids), error)
        finally:
            for stream_id in stream_ids:
                self._lookups.pop(stream_id, None)

    def _continues(self, where: StreamRange, ends: Mapping[tuple[int, int], int]) -> bool:
        """Whether a new range starts where the one before ends, if that one is known.

        For that end the log here has precedence over `ends`, those listed. A range that starts
        elsewhere is not hosted: records would be lost, or offsets assigned twice.
        """
        if where.end_offset >= 0 or self.table.has_range(where.stream_id, where.range_index):
            return True
        before = (where.stream_id, where.range_index - 1)
        end_offset = ends.get(before, -1)
        if self.table.has_range(*before):
            known = self.table.range_at(*before).end_offset
            end_offset = end_offset if known is None else known
        if end_offset in {-1, where.start_offset}:
            return True
        _LOG.error(
            "range not hosted: stream=%d range=%d start=%d, but range %d ends at %d; the metadata"
            " of the placement driver and this server's log contradict each other",
            *(where.stream_id, where.range_index, where.start_offset, before[1], end_offset),
        )
        return False

    def _news_of(self, placed: PlacedRange) -> Iterator[Entry]:
        """Yield what the log lacks of an open range: that it is here, and the writers before it."""
        where = placed.stream_range
        if not self.table.is_own(where.stream_id, where.created_at_ms) or where.end_offset >= 0:
            return
        key = (where.stream_id, where.range_index)
        if not self.table.has_range(*key):
            yield range_created(*key, where.start_offset, where.created_at_ms)
        if placed.writers and not self.knows_writers(*key):
            try:
                count = len(decode_writers(placed.writers))
            except LogCorruptionError as error:
                _LOG.error(
                    "writers from the placement driver ignored: stream=%d error=%s", key[0], error
                )
                return
            yield Entry(EntryKind.RANGE_WRITERS, *key, where.start_offset, count, placed.writers)
