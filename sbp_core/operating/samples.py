"""Samples of a cluster over time: where streams end, their sizes, how far groups are behind.

Samples are kept for SPAN_SECONDS, the further apart the older they are (STEPS): about 460 of them,
which take 40 MB for 10 000 streams, and as much for 10 000 cursors.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final, TypeVar

import numpy as np

from sbp_core.client import StreamInfo

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
    """Where streams end at a time, by id; -1 where that is not known. Both arrays are sorted.

    Bytes of streams are kept so, too: they grow as well.
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
        """Return where a stream ended."""
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
        """Add ends, which are kept for long if the last ones that are were long ago."""
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
