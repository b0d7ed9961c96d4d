"""Which ranges live here: the table, what the placement driver says, and what the log keeps.

A range that a request names and the table does not know is looked up at the placement driver
(LIST_RANGES for this server) and written to the log before it is used. All requests that wait for
the same stream share one look-up. A range that the placement driver announces (SYNC_RANGES) needs
none.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from sbp_core.errors import (
    LogWriteError,
    OffsetOutOfRangeError,
    SbpError,
    StatusCode,
    StatusError,
)
from sbp_core.failpoints import failpoint
from sbp_core.log.entry import Entry, EntryKind
from sbp_core.log.range_states import LoggedRange
from sbp_core.rangeserver.commit import GroupCommitter
from sbp_core.rangeserver.ranges import HostedRange, RangeInput, RangeTable
from sbp_core.rangeserver.waiters import StreamWaiters
from sbp_core.wire.headers import StreamRange

_LOG: Final = logging.getLogger(__name__)


class PlacementSource(Protocol):
    """Who says which ranges this server hosts."""

    async def list_hosted_ranges(self, stream_ids: Sequence[int]) -> list[StreamRange]:
        """Return the ranges of these streams that are placed on this server."""


class RangeHost:
    """The ranges of this server."""

    def __init__(
        self,
        table: RangeTable,
        committer: GroupCommitter,
        waiters: StreamWaiters,
        placement: PlacementSource,
    ) -> None:
        self.table = table
        self._committer = committer
        self._waiters = waiters
        self._placement = placement
        self._lookups: dict[int, asyncio.Task[None]] = {}

    def on_commit(self, ranges: Iterable[LoggedRange]) -> None:
        """Make visible what a group commit changed."""
        for logged in ranges:
            self.table.publish(logged)
            self._waiters.notify(logged.stream_id)

    def lacking(
        self, wanted: Iterable[tuple[int, int]], *, is_append: bool = False
    ) -> list[tuple[int, int]]:
        """Return the (stream id, range index) pairs that are not known here.

        Index -1 means whichever range the stream has; `is_append` asks for an open one.
        """
        return [each for each in wanted if self.table.lacks(*each, is_append=is_append)]

    async def learn(self, wanted: Iterable[tuple[int, int]], *, is_append: bool = False) -> None:
        """Look up those that are `lacking`.

        An announcement ends the wait as well, so requests go on in the order they came. Never
        raises for a single stream: what stays unknown is refused later, by whoever needs it.
        """
        lacking = self.lacking(wanted, is_append=is_append)
        if not lacking:
            return
        unknown = {stream_id for stream_id, _ in lacking}
        fresh = [stream_id for stream_id in unknown if stream_id not in self._lookups]
        if fresh:
            task = asyncio.create_task(self._look_up(fresh))
            self._lookups.update(dict.fromkeys(fresh, task))
        pending = {self._lookups[stream_id] for stream_id in unknown}
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

    async def seal(self, stream_id: int, range_index: int) -> HostedRange:
        """Seal a range that was learned for ever; return it once that is durable.

        Raises RangeNotFoundError, NotFoundError, StatusError when the log cannot be written.
        """
        hosted = self.table.range_at(stream_id, range_index)
        hosted.receive(RangeInput.SEAL)
        failpoint("range.before_seal")
        await self._write(
            Entry(EntryKind.SEAL, stream_id, hosted.range_index, hosted.assigned_offset, 0)
        )
        failpoint("range.after_seal")
        return hosted

    async def delete(self, stream_id: int) -> None:
        """Refuse the stream from now on, durably. Raises RangeNotFoundError if it is not here."""
        for hosted in self.table.ranges_of(stream_id):
            hosted.receive(RangeInput.DELETE)
        self._waiters.notify(stream_id)
        await self._write(Entry(EntryKind.STREAM_DELETED, stream_id, -1, 0, 0))

    async def trim(self, stream_id: int, offset: int) -> HostedRange:
        """Refuse to serve what lies below `offset`, durably; return the smallest range with data.

        Of all ranges of the stream that were learned; batches stay where they are. Raises
        RangeNotFoundError, NotFoundError, OffsetOutOfRangeError for an offset beyond the tail of
        the open range, and StatusError when the log cannot be written.
        """
        ranges = self.table.ranges_of(stream_id)
        last = ranges[-1]
        last.receive(RangeInput.TRIM)
        if last.maybe_end_offset is None and offset > last.next_offset:
            start_offset, next_offset = self.table.bounds_of(stream_id)
            raise OffsetOutOfRangeError(
                StatusCode.OFFSET_OUT_OF_RANGE,
                f"trim_offset {offset} of stream {stream_id} is beyond its tail, {next_offset};"
                " nothing of this stream was trimmed",
                OffsetOutOfRangeError.encode_bounds(start_offset, next_offset),
            )
        if any(each.start_offset < min(offset, each.next_offset) for each in ranges):
            await self._write(Entry(EntryKind.TRIM, stream_id, -1, offset, 0))
        return next((each for each in ranges if each.start_offset < each.next_offset), last)

    async def adopt(self, placed: StreamRange) -> None:
        """Host an open range that the placement driver announces; a known one stays as it is.

        Durable when this returns. Raises NotFoundError for a stream that was deleted here,
        StatusError when the log cannot be written.
        """
        if self.table.has_stream(placed.stream_id):
            self.table.range_at(placed.stream_id, -1).receive(RangeInput.FETCH)
        if not self.table.has_range(placed.stream_id, placed.range_index):
            await self._write(_created(placed))

    async def _write(self, *entries: Entry) -> None:
        try:
            await self._committer.submit(entries)
        except LogWriteError as error:
            raise StatusError(StatusCode.RS_INTERNAL, str(error)) from error

    async def _look_up(self, stream_ids: Sequence[int]) -> None:
        try:
            placed = await self._placement.list_hosted_ranges(stream_ids)
            entries = [
                _created(placed_range)
                for placed_range in placed
                if placed_range.end_offset < 0
                and not self.table.has_range(placed_range.stream_id, placed_range.range_index)
            ]
            if entries:
                await self._write(*entries)
        except SbpError as error:
            _LOG.warning("%d streams could not be looked up: %s", len(stream_ids), error)
        finally:
            for stream_id in stream_ids:
                self._lookups.pop(stream_id, None)


def _created(placed: StreamRange) -> Entry:
    return Entry(
        EntryKind.RANGE_CREATED, placed.stream_id, placed.range_index, placed.start_offset, 0
    )
