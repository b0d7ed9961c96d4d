"""Samples of a cluster over time: where streams end, their sizes, how far groups are behind.

A sample covers the streams that the identity of the client sees. Every HISTORY_SECONDS a sample
includes the lag of groups, and now and then the bytes of streams, which servers have to add up.
While all servers answer, a sample costs a short call to each server (`watch_bounds`), however many
streams there are; otherwise `reach` finds what can be known without the servers that are down.

Samples are kept for SPAN_SECONDS, the further apart the older they are (STEPS): about 460 of them,
which take 40 MB for 10 000 streams, and as much for 10 000 cursors.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final, TypeVar

import numpy as np

from sbp_core.client import AsyncClient, BoundsView, StreamBounds, StreamInfo
from sbp_core.errors import DeadlineExceededError, PermissionDeniedError, SbpError, UnsupportedError
from sbp_core.operating.cursor_lag import measure

_LOG: Final = logging.getLogger(__name__)
GROUPS_MAX: Final = 100
"""Groups whose lag is sampled, a call for each."""
_WATCH_SECONDS: Final = 3.0
_REACH_MS: Final = 1_000

PERIOD_SECONDS: Final = 2.0
"""How often a cluster is sampled."""
HISTORY_SECONDS: Final = 10.0
STEPS: Final = ((900.0, HISTORY_SECONDS), (7_200.0, 60.0), (86_400.0, 300.0))
"""Up to which age, in seconds, samples are how many seconds apart. Each step divides the next."""
SPAN_SECONDS: Final = STEPS[-1][0]

Array = np.ndarray[tuple[int], np.dtype[np.int64]]
Flags = np.ndarray[tuple[int], np.dtype[np.bool_]]


@dataclass(frozen=True, slots=True, eq=False)
class Ends:
    """The end offsets of streams at a time, sorted by stream id; -1 stands for an unknown end.

    The class holds bytes of streams as well.
    """

    at_ms: float
    stream_ids: Array
    offsets: Array

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

    def ends_of(self, stream_ids: Array) -> Array:
        """Return where these streams ended, -1 where that is not known."""
        if not len(self.stream_ids):
            return np.full(len(stream_ids), -1, np.int64)
        at = np.minimum(np.searchsorted(self.stream_ids, stream_ids), len(self.stream_ids) - 1)
        return np.where(self.stream_ids[at] == stream_ids, self.offsets[at], -1)

    def since(self, earlier: Ends) -> dict[int, float]:
        """Return the records per second since an earlier time, of the streams known at both."""
        grown, is_known = self._grown_since(earlier)
        rates = grown[is_known] / ((self.at_ms - earlier.at_ms) / 1000)
        return dict(zip(self.stream_ids[is_known].tolist(), rates.tolist(), strict=True))

    def sum_since(self, earlier: Ends) -> float:
        """Return the records per second since an earlier time, of all streams together."""
        grown, is_known = self._grown_since(earlier)
        return float(grown[is_known].sum()) / ((self.at_ms - earlier.at_ms) / 1000)

    def _grown_since(self, earlier: Ends) -> tuple[Array, Flags]:
        """Return by how much each stream grew, and whether its end is known at both times."""
        # Samples share the array of ids while no stream comes or goes: then none is searched for.
        is_shared = earlier.stream_ids is self.stream_ids
        before = earlier.offsets if is_shared else earlier.ends_of(self.stream_ids)
        is_known = (self.offsets >= 0) & (before >= 0)
        return np.maximum(self.offsets - before, 0), is_known


@dataclass(frozen=True, slots=True, eq=False)
class Lags:
    """By how many records groups were behind their streams at a time.

    `cursors` are pairs of a group and a stream id, sorted; `counts` are their lags. `by_group` has
    the sum of each group. `lost` are the records that were trimmed before a group read them.
    """

    at_ms: float
    cursors: Sequence[tuple[str, int]]
    counts: Array
    by_group: Mapping[str, int]
    lost: Mapping[tuple[str, int], int]

    @classmethod
    def of(
        cls,
        at_ms: float,
        records: Mapping[tuple[str, int], int],
        lost: Mapping[tuple[str, int], int] | None = None,
    ) -> Lags:
        """Return these lags at a time."""
        cursors = tuple(sorted(records))
        sums: dict[str, int] = {}
        for cursor in cursors:
            sums[cursor[0]] = sums.get(cursor[0], 0) + records[cursor]
        counts = np.array([records[each] for each in cursors], np.int64)
        return cls(at_ms, cursors, counts, sums, lost or {})

    @property
    def records(self) -> dict[tuple[str, int], int]:
        """The lag of each cursor, by group and stream id."""
        return dict(zip(self.cursors, self.counts.tolist(), strict=True))

    def maybe_lag(self, group: str, stream_id: int) -> int | None:
        """Return how far a group was behind a stream."""
        at = bisect_left(self.cursors, (group, stream_id))
        is_there = at < len(self.cursors) and self.cursors[at] == (group, stream_id)
        return int(self.counts[at]) if is_there else None

    def by_stream(self) -> dict[int, int]:
        """Return the lag of the group that is most behind, for each stream."""
        most: dict[int, int] = {}
        for (_, stream_id), count in self.records.items():
            most[stream_id] = max(most.get(stream_id, 0), count)
        return most


Sample = TypeVar("Sample", Ends, Lags)


def step_seconds(age_seconds: float) -> float:
    """Return how far apart samples of an age are."""
    return next((step for age, step in STEPS if age_seconds <= age), STEPS[-1][1])


def thin(kept: Sequence[Sample], now_ms: float) -> list[Sample]:
    """Return the samples to keep: the first in each step of its age, and the newest one.

    Steps begin at the same times whenever they are counted, so a sample that is the first in a
    long step was the first in the shorter ones too, and is still there.
    """
    found: list[Sample] = []
    last: tuple[float, float] | None = None
    for each in kept:
        age_seconds = (now_ms - each.at_ms) / 1000
        step = step_seconds(age_seconds)
        place = (step, each.at_ms // (step * 1000))
        if age_seconds <= SPAN_SECONDS and (place != last or each is kept[-1]):
            found.append(each)
            last = place
    return found


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
    history: Sequence[Ends] = ()
    sized: deque[Ends] = field(default_factory=lambda: deque(maxlen=2))
    lags: Sequence[Lags] = ()
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

    def sum_over_time(self) -> list[tuple[float, float]]:
        """Return the records per second of all streams together, over time (ms since 1970)."""
        return [
            (after.at_ms, after.sum_since(before)) for before, after in pairwise(self._ends_kept())
        ]

    def rates_over_time(
        self, stream_ids: Sequence[int], since_ms: float = 0.0
    ) -> dict[int, list[tuple[float, float]]]:
        """Return the records per second of streams over time (ms since 1970), by stream id."""
        wanted = np.array(stream_ids, np.int64)
        kept = [(each.at_ms, each.ends_of(wanted)) for each in self._ends_kept(since_ms)]
        found: dict[int, list[tuple[float, float]]] = {each: [] for each in stream_ids}
        for (before_ms, before), (at_ms, now) in pairwise(kept):
            rates = np.maximum(now - before, 0) / ((at_ms - before_ms) / 1000)
            for index in np.flatnonzero((now >= 0) & (before >= 0)).tolist():
                found[stream_ids[index]].append((at_ms, float(rates[index])))
        return found

    def _ends_kept(self, since_ms: float = 0.0) -> list[Ends]:
        ends = [each for each in self.history if each.at_ms >= since_ms]
        if self.newest is not None and (not ends or self.newest.at_ms - ends[-1].at_ms > 1000):
            ends.append(self.newest)
        return ends

    def note(self, ends: Ends) -> None:
        """Add ends, to the history too if its last entry is HISTORY_SECONDS old."""
        before = self.newest
        if before is not None and np.array_equal(before.stream_ids, ends.stream_ids):
            ends = replace(ends, stream_ids=before.stream_ids)  # one array for all
        self.recent.append(ends)
        if not self.history or ends.at_ms - self.history[-1].at_ms >= HISTORY_SECONDS * 1000:
            self.history = thin([*self.history, ends], ends.at_ms)

    def note_lags(self, lags: Lags) -> None:
        """Add lags. The newest ones alone keep `lost`."""
        before = [*self.lags]
        if before:
            before[-1] = replace(before[-1], lost={})
            if before[-1].cursors == lags.cursors:
                lags = replace(lags, cursors=before[-1].cursors)  # one tuple for all
        self.lags = thin([*before, lags], lags.at_ms)

    def note_sizes(self, at_ms: float, sizes: Mapping[int, int]) -> None:
        """Add the bytes of streams at a time."""
        self.sizes = sizes
        self.sized.append(Ends.of(at_ms, sizes))


class Sampling:
    """Takes samples with one client, and adds them to `samples`.

    Bytes are asked for when the last sizes are older than `sizes_seconds`. The second time comes
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
        """Return the number of stuck transactions, which only the placement driver knows."""
        try:
            servers = await self._client.range_servers()
            found = await self._client.describe_txns(spared={each.endpoint for each in servers})
        except (PermissionDeniedError, UnsupportedError):
            return None
        return sum(each.state == "stuck" for each in found)
