"""Taking samples of a cluster: where the streams end that the identity of a client sees.

Every HISTORY_SECONDS a sample has how far groups are behind, and now and then how many bytes
streams take, which servers have to add up. While all servers answer, a sample costs a short call to
each (`watch_bounds`), however many streams there are; else `reach` reports what can be known
without those that are down.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from sbp_core.client import AsyncClient, BoundsView, StreamBounds
from sbp_core.client.group_lag import measure
from sbp_core.errors import (
    DeadlineExceededError,
    PermissionDeniedError,
    SbpError,
    UnsupportedError,
)
from sbp_core.operating.samples import HISTORY_SECONDS, Ends, Lags, Samples

_LOG: Final = logging.getLogger(__name__)

GROUPS_MAX: Final = 100
"""Groups whose lag is sampled, a call for each."""
_WATCH_SECONDS: Final = 3.0
_REACH_MS: Final = 1_000


class Sampling:
    """Samples with one client: `sample` adds to `samples`.

    Bytes are asked for when the last ones are older than `sizes_seconds`. The second time comes
    after HISTORY_SECONDS at most, so that bytes per second are soon known.
    """

    def __init__(
        self,
        client: AsyncClient,
        *,
        sizes_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.samples = Samples()
        self._client = client
        self._sizes_seconds = sizes_seconds
        self._clock = clock
        self._revision: int | None = None
        self._view: BoundsView | None = None
        self._lags_at = self._sizes_at = -float("inf")

    async def sample(self) -> None:
        """Ask the cluster once more. Raises SbpError."""
        try:
            await self._ask()
        except TimeoutError as error:
            raise DeadlineExceededError("the cluster does not answer in time") from error

    async def try_sample(self) -> None:
        """Ask the cluster once more. `samples.error` is why that failed, None if it did not."""
        try:
            await self.sample()
            self.samples.error = None
        except SbpError as error:
            self.samples.error = str(error)
            _LOG.debug("sampling failed: %s", self.samples.error)

    async def _ask(self) -> None:
        async with asyncio.timeout(_WATCH_SECONDS):
            await self._find_streams()
        stream_ids = [each.stream_id for each in self.samples.streams]
        starts, ends = await self._find_bounds(stream_ids)
        self.samples.starts = starts
        self.samples.note(Ends.of(time.time_ns() / 1_000_000, ends))
        if self._clock() - self._lags_at >= HISTORY_SECONDS:
            self._lags_at = self._clock()
            self._revision = None  # rights may have changed, which it does not count
            with contextlib.suppress(PermissionDeniedError):
                await self._find_lags(starts, ends)
            self.samples.stuck_txns = await self._count_stuck()
        is_rate_known = len(self.samples.sized) > 1
        period = self._sizes_seconds if is_rate_known else min(self._sizes_seconds, HISTORY_SECONDS)
        if self._clock() - self._sizes_at >= period:
            self._sizes_at = self._clock()
            sizes = await self._client.stored_bytes([*starts], timeout_ms=_REACH_MS)
            self.samples.note_sizes(time.time_ns() / 1_000_000, sizes)

    async def _find_streams(self) -> None:
        """List the streams again if something changed."""
        changes = await self._client.metadata_changes()
        if changes is None or changes.revision != self._revision:
            self.samples.streams = await self._client.list_streams()
            self._revision = changes and changes.revision

    async def _find_bounds(
        self, stream_ids: Sequence[int]
    ) -> tuple[dict[int, int], dict[int, int | None]]:
        try:
            async with asyncio.timeout(_WATCH_SECONDS):
                self._view = await self._client.watch_bounds(stream_ids, self._view)
            found = self._view.bounds.values()
            starts = {each.stream_id: each.start_offset for each in found}
            return starts, {each.stream_id: each.next_offset for each in found}
        except (SbpError, TimeoutError):  # a server is down, or a stream was just deleted
            self._view = self._revision = None
            infos = await self._client.find_streams(stream_ids)
            positions = dict.fromkeys(each.stream_id for each in infos)
            reach = await self._client.reach(positions, timeout_ms=_REACH_MS, spared={})
            starts = {each: at.start_offset for each, at in reach.items()}
            return starts, {each: at.next_offset for each, at in reach.items()}

    async def _find_lags(self, starts: Mapping[int, int], ends: Mapping[int, int | None]) -> None:
        infos = {each.stream_id: each for each in self.samples.streams}
        groups = await self._client.list_groups()
        records: dict[tuple[str, int], int] = {}
        lost: dict[tuple[str, int], int] = {}
        for each in groups[:GROUPS_MAX]:
            for cursor in await self._client.describe_cursors(each.group):
                stream_id = cursor.stream_id
                end = ends.get(stream_id)
                if end is None:
                    continue
                held = StreamBounds(stream_id, starts[stream_id], end)
                found = measure(cursor, infos.get(stream_id), held, None)
                records[each.group, stream_id] = found.lag_records or 0
                if found.lost_records:
                    lost[each.group, stream_id] = found.lost_records
        self.samples.unsampled_groups = max(len(groups) - GROUPS_MAX, 0)
        self.samples.note_lags(Lags.of(time.time_ns() / 1_000_000, records, lost))

    async def _count_stuck(self) -> int | None:
        """Return how many transactions are stuck, which the placement driver alone knows."""
        try:
            servers = await self._client.range_servers()
            found = await self._client.describe_txns(spared={each.endpoint for each in servers})
        except (PermissionDeniedError, UnsupportedError):
            return None
        return sum(each.state == "stuck" for each in found)
