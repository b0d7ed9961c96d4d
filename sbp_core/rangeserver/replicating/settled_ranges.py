"""Find out which ended ranges are on enough disks to acknowledge a repeat.

The decided end of a range may be on one disk alone (replication.py). The primary of the range
acknowledges waiting entries when `ack_count` servers have them or have settled (primary.py). A
repeat may reach any server that knows the range: the primary of the next range, or a restarted one.
It is answered only when `ack_count` servers have settled the range, or as many as the fence needed:
otherwise no repeat could be answered while servers are down that appends go on without.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Protocol

from sbp_core.client.connecting import Connecting
from sbp_core.errors import SbpError
from sbp_core.log.states.range_states import RangeKey
from sbp_core.peers.driver_calls import server_addresses
from sbp_core.peers.links import Links
from sbp_core.peers.replica_calls import ASK_TIMEOUT_MS, is_settled_at
from sbp_core.replication import answers_needed
from sbp_core.server.runtime import cancel_all
from sbp_core.tls import Tls
from sbp_core.wire.headers import StreamRange

_LOG: Final = logging.getLogger(__name__)
_STREAMS_MAX: Final = 10_000
"""Maximum number of streams in the cache."""
_Bounds = dict[int, tuple[int, int]]
"""Bounds [start, end) by range index."""


class RangeLists(Protocol):
    """The ranges of streams, as the placement driver lists them."""

    async def list_ranges(self, stream_id: int) -> list[StreamRange]:
        """Return all ranges of a stream, in order. Raises SbpError."""


class SettledRanges:
    """Asks servers whether they have settled ranges; `placement` lists the servers."""

    def __init__(self, placement: RangeLists, tls: Tls | None) -> None:
        self._placement = placement
        self._links = Links(Connecting(timeout_ms=ASK_TIMEOUT_MS, tls=tls))
        self._known: dict[int, _Bounds] = {}
        """The ranges that enough servers have settled, by stream. This is final."""
        self._asking: dict[int, asyncio.Task[None]] = {}

    async def stop(self) -> None:
        """Close the connections."""
        await cancel_all(self._asking.values())
        await self._links.close()

    def has(self, stream_id: int, *, range_index: int | None = None, offset: int = -1) -> bool:
        """Whether enough servers have settled the range with this index, or with this offset.

        If that is unknown, they are asked in the background.
        """
        for index, (start, end) in self._known.get(stream_id, {}).items():
            if index == range_index or start <= offset < end:
                return True
        if stream_id not in self._asking:
            task = asyncio.create_task(self._ask(stream_id, range_index, offset))
            self._asking[stream_id] = task
            task.add_done_callback(lambda _: self._asking.pop(stream_id))
        return False

    async def is_settled_at(self, address: str, key: RangeKey, end_offset: int) -> bool:
        """Whether a server has settled a range with this end. Raises SbpError."""
        return await is_settled_at(self._links, address, key, end_offset)

    async def _ask(self, stream_id: int, range_index: int | None, offset: int) -> None:
        try:
            listed = await self._placement.list_ranges(stream_id)
        except SbpError as error:
            _LOG.debug("ranges not listed stream=%d: %s", stream_id, error)
            return
        for where in listed:
            bounds = where.start_offset, where.end_offset
            is_it = where.range_index == range_index or bounds[0] <= offset < bounds[1]
            if is_it and await self._is_settled(where):
                self._note(stream_id, where.range_index, bounds)
        if listed and offset < listed[0].start_offset and range_index is None:  # trimmed
            self._note(stream_id, -1, (0, listed[0].start_offset))
        if listed and range_index is not None and range_index < listed[0].range_index:
            self._note(stream_id, range_index, (0, listed[0].start_offset))

    async def _is_settled(self, where: StreamRange) -> bool:
        """Whether enough servers have settled a range. A range without replicas needs none."""
        if where.end_offset < 0:
            return False
        addresses = server_addresses(where)
        needed = min(where.ack_count, answers_needed(len(addresses), where.ack_count))
        if where.end_seq < 0:
            return True
        key = where.stream_id, where.range_index
        answers = await asyncio.gather(
            *(self.is_settled_at(each, key, where.end_offset) for each in addresses),
            return_exceptions=True,
        )
        count = sum(each is True for each in answers)
        if count < needed:
            _LOG.info(
                "repeats wait stream=%d range=%d settled=%d needed=%d: of the servers %s too few"
                " have settled the range",
                *(*key, count, needed, ", ".join(addresses)),
            )
        return count >= needed

    def _note(self, stream_id: int, range_index: int, bounds: tuple[int, int]) -> None:
        if len(self._known) >= _STREAMS_MAX:
            self._known.clear()
        self._known.setdefault(stream_id, {})[range_index] = bounds
