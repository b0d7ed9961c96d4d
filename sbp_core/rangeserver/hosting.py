"""Which ranges live here: the table, what the placement driver says, and what the log keeps.

A range that a request names and the table does not know is looked up at the placement driver
(LIST_RANGES for this server) and written to the log before it is used. All requests that wait for
the same stream share one look-up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from sbp_core.errors import LogWriteError, SbpError, StatusCode, StatusError
from sbp_core.log.entry import Entry, EntryKind, Location
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

    def on_durable(self, entry: Entry, location: Location) -> None:
        """Make a durable entry visible."""
        self.table.apply(entry, location)
        self._waiters.notify(entry.stream_id)

    async def learn(self, wanted: Iterable[tuple[int, int]], *, is_append: bool = False) -> None:
        """Look up the (stream id, range index) pairs that are not known here.

        Index -1 means whichever range the stream has; `is_append` asks for an open one. Never
        raises for a single stream: what stays unknown is refused later, by whoever needs it.
        """
        unknown = {
            stream_id
            for stream_id, range_index in wanted
            if self.table.lacks(stream_id, range_index, is_append=is_append)
        }
        fresh = [stream_id for stream_id in unknown if stream_id not in self._lookups]
        if fresh:
            task = asyncio.create_task(self._look_up(fresh))
            self._lookups.update(dict.fromkeys(fresh, task))
        pending = {self._lookups[stream_id] for stream_id in unknown}
        if pending:
            await asyncio.wait(pending)

    async def seal(self, stream_id: int, range_index: int) -> HostedRange:
        """Seal a range for ever; return it once that is durable.

        Raises RangeNotFoundError, NotFoundError, StatusError when the log cannot be written.
        """
        await self.learn([(stream_id, range_index)])
        hosted = self.table.range_at(stream_id, range_index)
        hosted.receive(RangeInput.SEAL)
        await self._write(
            Entry(EntryKind.SEAL, stream_id, hosted.range_index, hosted.assigned_offset, 0)
        )
        return hosted

    async def delete(self, stream_id: int) -> None:
        """Refuse the stream from now on, durably. Raises RangeNotFoundError if it is not here."""
        for hosted in self.table.ranges_of(stream_id):
            hosted.receive(RangeInput.DELETE)
        self._waiters.notify(stream_id)
        await self._write(Entry(EntryKind.STREAM_DELETED, stream_id, -1, 0, 0))

    async def _write(self, *entries: Entry) -> None:
        try:
            await asyncio.shield(self._committer.submit(entries))
        except LogWriteError as error:
            raise StatusError(StatusCode.RS_INTERNAL, str(error)) from error

    async def _look_up(self, stream_ids: Sequence[int]) -> None:
        try:
            placed = await self._placement.list_hosted_ranges(stream_ids)
            entries = [
                Entry(
                    EntryKind.RANGE_CREATED,
                    placed_range.stream_id,
                    placed_range.range_index,
                    placed_range.start_offset,
                    0,
                )
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
