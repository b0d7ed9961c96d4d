"""Rates and lags over time: the console asks the cluster while somebody looks, and remembers.

Each client that a page was shown with in the last LOOKED_SECONDS is sampled every PERIOD_SECONDS:
where the streams that its identity sees end, every HISTORY_SECONDS how far groups are behind, and
every SIZES_SECONDS how many bytes streams take, which servers have to add up.
While all servers answer, that costs a short call to each (`watch_bounds`), however many streams
there are; else `reach` reports what can be known without those that are down.

Ends are kept for SPAN_SECONDS, for 10 000 streams about 8 MB for each client, of SAMPLED_MAX at
most.
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
from sbp_core.client.group_lag import measure
from sbp_core.errors import PermissionDeniedError, SbpError, UnsupportedError

_LOG: Final = logging.getLogger(__name__)

PERIOD_SECONDS: Final = 2.0
HISTORY_SECONDS: Final = 10.0
SIZES_SECONDS: Final = 60.0
SPAN_SECONDS: Final = 900.0
LOOKED_SECONDS: Final = 30.0
SAMPLED_MAX: Final = 16
"""Clients that are sampled at a time."""
GROUPS_MAX: Final = 100
"""Groups whose lag is sampled, a call for each."""
STALE_SECONDS: Final = 15.0
"""Samples older than this are said to be old."""
_WATCH_SECONDS: Final = 3.0
_REACH_MS: Final = 1_000


@dataclass(frozen=True, slots=True, eq=False)
class Ends:
    """Where streams end at a time, by id; -1 where that is not known. Both arrays are sorted."""

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
        """Return where a stream ended."""
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
    """All that was seen with one client; read it, do not change it.

    `streams` and `starts` are of the newest sample; `sizes` are the bytes that streams take in one
    replica, of those that are known. `error` is why that is old, None if it is not.
    `unsampled_groups` are those beyond GROUPS_MAX. `stuck_txns` is None if the caller may not know.
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
        """Add ends, which are kept for long if the last ones that are were long ago."""
        before = self.newest
        if before is not None and np.array_equal(before.stream_ids, ends.stream_ids):
            ends = replace(ends, stream_ids=before.stream_ids)  # one array for all
        self.recent.append(ends)
        if not self.history or ends.at_ms - self.history[-1].at_ms >= HISTORY_SECONDS * 1000:
            self.history.append(ends)


class _Sampling:
    """Samples with one client, as long as somebody looks."""

    def __init__(self, client: AsyncClient, clock: Callable[[], float]) -> None:
        self.samples = Samples()
        self.looked_at = clock()
        self._client = client
        self._clock = clock
        self._revision: int | None = None
        self._view: BoundsView | None = None
        self._lags_at = self._sizes_at = -float("inf")
        self.task: asyncio.Task[None] | None = None

    def look(self) -> Samples:
        """Return what was seen, and go on."""
        self.looked_at = self._clock()
        if self.task is None or self.task.done():
            self.task = asyncio.create_task(self._run())
        return self.samples

    async def _run(self) -> None:
        while self._clock() - self.looked_at <= LOOKED_SECONDS:
            began = self._clock()
            try:
                await self._sample()
                self.samples.error = None
            except (SbpError, TimeoutError) as error:
                self.samples.error = str(error) or "the cluster does not answer in time"
                _LOG.debug("sampling failed: %s", self.samples.error)
            await asyncio.sleep(max(PERIOD_SECONDS - (self._clock() - began), 0.1))

    async def _sample(self) -> None:
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
        if self._clock() - self._sizes_at >= SIZES_SECONDS:
            self._sizes_at = self._clock()
            self.samples.sizes = await self._client.stored_bytes([*starts], timeout_ms=_REACH_MS)

    async def _find_streams(self) -> None:
        """List the streams again if something changed."""
        revision = await self._client.maybe_revision()
        if revision is None or revision != self._revision:
            self.samples.streams = await self._client.list_streams()
            self._revision = revision

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
        """Return how many transactions are stuck, which the placement driver alone knows."""
        try:
            servers = await self._client.range_servers()
            found = await self._client.describe_txns(spared={each.endpoint for each in servers})
        except (PermissionDeniedError, UnsupportedError):
            return None
        return sum(each.state == "stuck" for each in found)


class Sampler:
    """Samples the cluster with the clients of those who look, until `stopping` is set."""

    def __init__(
        self, stopping: asyncio.Event, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stopping = stopping
        self._clock = clock
        self._samplings: dict[AsyncClient, _Sampling] = {}
        self._ending: asyncio.Task[None] | None = None

    def look(self, client: AsyncClient) -> Samples:
        """Return what was seen with a client, and go on with it for a while."""
        if self._ending is None:
            self._ending = asyncio.create_task(self._end())
        self._forget_old()
        found = self._samplings.pop(client, None) or _Sampling(client, self._clock)
        while len(self._samplings) >= SAMPLED_MAX:
            self._forget(next(iter(self._samplings)))
        self._samplings[client] = found  # behind all others: it was looked at last
        return found.look()

    async def _end(self) -> None:
        """End all sampling before the clients are closed."""
        await self._stopping.wait()
        for client in [*self._samplings]:
            self._forget(client)

    def _forget_old(self) -> None:
        now = self._clock()
        for client, each in [*self._samplings.items()]:
            if now - each.looked_at > SPAN_SECONDS:
                self._forget(client)

    def _forget(self, client: AsyncClient) -> None:
        task = self._samplings.pop(client).task
        if task is not None:
            task.cancel()
