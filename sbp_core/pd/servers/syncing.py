"""Telling range servers of their new ranges (SPEC "SYNC_RANGES"), in the background.

Best effort: what is not told, a server looks up when a request names it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import Final

from sbp_core import limits
from sbp_core.client import AsyncClient
from sbp_core.errors import SbpError
from sbp_core.pd.metadata.tables import primary_address
from sbp_core.server.runtime import cancel_all
from sbp_core.wire.headers import StreamRange, StreamRanges, SyncRangesRequest
from sbp_core.wire.opcodes import Opcode

_LOG: Final = logging.getLogger(__name__)


class RangeAnnouncer:
    """Sends new ranges to the servers that host them. Never delays or fails its caller."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def announce(self, opened: Iterable[StreamRange]) -> None:
        """Tell the servers of these ranges soon, unless too much is under way already."""
        by_address: dict[str, list[StreamRange]] = {}
        for each in opened:
            by_address.setdefault(primary_address(each), []).append(each)
        for address, ranges in by_address.items():
            if address and len(self._tasks) < limits.SYNC_TASKS_MAX:
                task = asyncio.create_task(_send(address, ranges))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """Give up what is under way."""
        await cancel_all(self._tasks)


async def _send(address: str, ranges: Sequence[StreamRange]) -> None:
    try:
        async with AsyncClient(address) as client:
            for start in range(0, len(ranges), limits.STREAMS_PER_CALL):
                request = SyncRangesRequest(
                    limits.REQUEST_TIMEOUT_MS,
                    tuple(
                        StreamRanges(each.stream_id, (each,))
                        for each in ranges[start : start + limits.STREAMS_PER_CALL]
                    ),
                )
                await client.call(address, Opcode.SYNC_RANGES, request)
    except SbpError as error:
        _LOG.debug("%s was not told of %d new ranges: %s", address, len(ranges), error)
