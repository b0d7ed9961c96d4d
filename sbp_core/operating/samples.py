"""Samples of a cluster over time: where streams end, their sizes, how far groups are behind.

Ends are kept for SPAN_SECONDS, for 10 000 streams about 8 MB.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final

import numpy as np

from sbp_core.client import StreamInfo

PERIOD_SECONDS: Final = 2.0
"""How often a cluster is sampled."""
HISTORY_SECONDS: Final = 10.0
SPAN_SECONDS: Final = 900.0


@dataclass(frozen=True, slots=True, eq=False)
class Ends:
    """Where streams end at a time, by id; -1 where that is not known. Both arrays are sorted.

    Bytes of streams are kept so, too: they grow as well.
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
        """Add ends, which are kept for long if the last ones that are were long ago."""
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
