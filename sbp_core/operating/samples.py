"""Samples of a cluster over time: where streams end, their sizes, how far groups are behind.

A sample covers the streams that the identity of the client sees. Every HISTORY_SECONDS a sample
includes the lag of groups, and now and then the bytes of streams, which servers have to add up.
While all servers answer, a sample costs a short call to each server (`watch_bounds`), however many
streams there are; otherwise `reach` finds what can be known without the servers that are down.

Ends are kept for SPAN_SECONDS, which is about 8 MB for 10 000 streams.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final

import numpy as np

from sbp_core.client import AsyncClient, BoundsView, StreamBounds, StreamInfo
from sbp_core.errors import (
    DeadlineExceededError,
    PermissionDeniedError,
    SbpError,
    UnsupportedError,
)
from sbp_core.operating.cursor_lag import measure

_LOG: Final = logging.getLogger(__name__)
GROUPS_MAX: Final = 100
"""Groups whose lag is sampled, a call for each."""
_WATCH_SECONDS: Final = 3.0
_REACH_MS: Final = 1_000

PERIOD_SECONDS: Final = 2.0
"""How often a cluster is sampled."""
HISTORY_SECONDS: Final = 10.0
SPAN_SECONDS: Final = 900.0


@dataclass(frozen=True, slots=True, eq=False)
class Ends:
    """The end offsets of streams at a time, sorted by stream id; -1 stands for an unknown end.

    The class holds bytes of streams as well.
    """

    at_ms: float
    stream_ids: np.ndarray[tuple[int], np.dtype[np.int64]]
    offsets: np.ndarray[tuple[int], np.dtype[np.int64]]

    @classmethod
    def of(cls, at_ms: float, ends: Mapping[int, int | None]) -> Ends:
        """Return these ends at a time."""
        ids = sorted(ends)
        offsets = [-1 if (end := ends[each]) is None else end for each in ids]
        return cls(at_ms, np.array(ids, np.int64), np.array(offsets, np.int64))

    def maybe_end(self, stream_id: int) -> int | None:
        """Return the end of a stream, None if it is unknown."""
        index = int(np.searchsorted(self.stream_ids, stream_id))
        if index == len(self.stream_ids) or self.stream_ids[index] != stream_id:
            return None
        end = int(self.offsets[index])
        return None if end < 0 else end

    def since(self, earlier: Ends) -> dict[int, float]:
        """Return the records per second since an earlier time, of the streams known at both."""
        seconds = (self.at_ms - earlier.at_ms) / 1000
        _, now, before = np.intersect1d(
            self.stream_ids, earlier.stream_ids, assume_unique=True, return_indices=True
        )
        is_known = (self.offsets[now] >= 0) & (earlier.offsets[before] >= 0)
        grown = np.maximum(self.offsets[now] - earlier.offsets[before], 0)[is_known]
        ids = self.stream_ids[now][is_known]
        return dict(zip(ids.tolist(), (grown / seconds).tolist(), strict=True))


@dataclass(frozen=True, slots=True)
class Lags:
    """By how many records groups were behind their streams at a time, by (group, stream id).

    `lost` are the records that were trimmed before a group read them.
    """

    at_ms: float
    records: Mapping[tuple[str, int], int]
    lost: Mapping[tuple[str, int], int]

    def by_group(self) -> dict[str, int]:
        """Return the sum of each group."""
        sums: dict[str, int] = {}
        for (group, _), count in self.records.items():
            sums[group] = sums.get(group, 0) + count
        return sums

    def by_stream(self) -> dict[int, int]:
        """Return the lag of the group that is most behind, for each stream."""
        most: dict[int, int] = {}
        for (_, stream_id), count in self.records.items():
            most[stream_id] = max(most.get(stream_id, 0), count)
        return most


@dataclass(slots=True)
class Samples:
    """The samples of one client, for reading only.

    `streams` and `starts` are of the newest sample. `sizes` are the known bytes of streams in one
    replica. `error` is why the newest sample is old, None if it is current. `unsampled_groups`
    counts the groups beyond GROUPS_MAX. `stuck_txns` is None if the caller may not see it.
    """

    streams: Sequence[StreamInfo] = ()
    starts: Mapping[int, int] = field(default_factory=dict)
    sizes: Mapping[int, int] = field(default_factory=dict)
    recent: deque[Ends] = field(
        default_factory=lambda: deque(maxlen=int(HISTORY_SECONDS / PERIOD_SECONDS) + 1)
    )
    history: deque[Ends] = field(
        default_factory=lambda: deque(maxlen=int(SPAN_SECONDS / HISTORY_SECONDS) + 1)
    )
    sized: deque[Ends] = field(default_factory=lambda: deque(maxlen=2))
    lags: deque[Lags] = field(
        default_factory=lambda: deque(maxlen=int(SPAN_SECONDS / HISTORY_SECONDS) + 1)
    )
    unsampled_groups: int = 0
    stuck_txns: int | None = None
    error: str | None = None

    @property
    def newest(self) -> Ends | None:
        """The newest ends, None before the first sample."""
        return self.recent[-1] if self.recent else None

    def rates(self) -> dict[int, float]:
        """Return the records per second of each stream over the last seconds."""
        if len(self.recent) < 2:
            return {}
        return self.recent[-1].since(self.recent[0])

    def byte_rates(self) -> dict[int, float]:
        """Return by how many bytes per second each stream grew between the last two sizes."""
        if len(self.sized) < 2:
            return {}
        return self.sized[-1].since(self.sized[0])

    def rates_over_time(self, stream_id: int | None = None) -> list[tuple[float, float]]:
        """Return records per second over time, of one stream or all together."""
        ends = [*self.history]
        if self.newest is not None and (not ends or self.newest.at_ms - ends[-1].at_ms > 1000):
            ends.append(self.newest)
        found = []
        for before, after in pairwise(ends):
            rates = after.since(before)
            if stream_id is None:
                found.append((after.at_ms, sum(rates.values())))
            elif stream_id in rates:
                found.append((after.at_ms, rates[stream_id]))
        return found

    def note(self, ends: Ends) -> None:
        """Add ends, to the history too if its last entry is HISTORY_SECONDS old."""
        before = self.newest
        if before is not None and np.array_equal(before.stream_ids, ends.stream_ids):
            ends = replace(ends, stream_ids=before.stream_ids)  # one array for all
        self.recent.append(ends)
        if not self.history or ends.at_ms - self.history[-1].at_ms >= HISTORY_SECONDS * 1000:
            self.history.append(ends)

    def note_sizes(self, at_ms: float, sizes: Mapping[int, int]) -> None:
        """Add the bytes of streams at a time."""
        self.sizes = sizes
        self.sized.append(Ends.of(at_ms, sizes))


class Sampling:
    """Takes samples with one client, and adds them to `samples`.

    Bytes are asked for when the last sizes are older than `sizes_seconds`.
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
        """Take a sample. Raises SbpError."""
        try:
            await self._ask()
        except TimeoutError as error:
            raise DeadlineExceededError("the cluster does not answer in time") from error

    async def try_sample(self) -> None:
        """Take a sample, and set `samples.error` to the error or None."""
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
        if self._clock() - self._sizes_at >= self._sizes_seconds:
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
        self.samples.lags.append(Lags(time.time_ns() / 1_000_000, records, lost))

    async def _count_stuck(self) -> int | None:
        """Return the number of stuck transactions, which only the placement driver knows."""
        try:
            servers = await self._client.range_servers()
            found = await self._client.describe_txns(spared={each.endpoint for each in servers})
        except (PermissionDeniedError, UnsupportedError):
            return None
        return sum(each.state == "stuck" for each in found)
