"""Traffic by stream for `/metrics`, in a bounded number of series.

A request adds to the counts of its stream, which costs one look-up in a dictionary. When metrics
are read, these counts go to the series of the stream, or to the rest. A series counts the traffic
of its stream while the stream has the series. The rest counts all other traffic, so that no counter
ever goes backwards.

NAMED_MAX streams have a series. A stream keeps its series until it is deleted, or another stream
carries more bytes between two readings than this stream in about ten. A stream that gets a series
again begins with 0, which Prometheus takes for a restart of the counter.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

NAMED_MAX: Final = 200
"""Maximum number of streams with a series."""
REST: Final = "*"
"""The label of all other streams. No stream of a client has a name with this prefix."""
_KEPT_SHARE: Final = 0.9
"""Weight of earlier readings in the bytes by which streams keep their series."""


@dataclass(slots=True)
class Traffic:
    """Bytes and records that were appended and fetched."""

    appended_bytes: int = 0
    appended_records: int = 0
    fetched_bytes: int = 0
    fetched_records: int = 0

    @property
    def byte_count(self) -> int:
        """Bytes in both directions."""
        return self.appended_bytes + self.fetched_bytes

    def add(self, other: Traffic) -> None:
        """Add other counts."""
        self.appended_bytes += other.appended_bytes
        self.appended_records += other.appended_records
        self.fetched_bytes += other.fetched_bytes
        self.fetched_records += other.fetched_records


@dataclass(slots=True)
class _Series:
    name: str
    traffic: Traffic = field(default_factory=Traffic)
    weight: float = 0.0
    """Bytes of all readings; older readings count less."""


class StreamTraffic:
    """Counts by stream; belongs to the thread of the server's loop."""

    def __init__(self, named_max: int = NAMED_MAX) -> None:
        self._named_max = named_max
        self.recent: Final = defaultdict[int, Traffic](Traffic)
        """Counts since the last reading, by stream id. Requests add to them."""
        self._series: dict[int, _Series] = {}
        self._rest = Traffic()

    @property
    def named(self) -> dict[int, str]:
        """The names of the streams that have a series, by id."""
        return {stream_id: each.name for stream_id, each in self._series.items()}

    def candidates(self, live: Collection[int]) -> list[int]:
        """Return the ids of live streams that should get a series.

        Streams that do not exist any more lose their series.
        """
        exists = set(live)
        self._series = {each: kept for each, kept in self._series.items() if each in exists}
        free_count = self._named_max - len(self._series)
        others = live if free_count else self.recent.keys() & exists
        busiest = heapq.nlargest(
            self._named_max,
            (each for each in others if each not in self._series),
            self._recent_bytes,
        )
        weakest = heapq.nsmallest(len(busiest[free_count:]), self._weights())
        return busiest[:free_count] + [
            stream_id
            for stream_id, (weight, _) in zip(busiest[free_count:], weakest, strict=True)
            if self._recent_bytes(stream_id) > weight
        ]

    def settle(self, names: Mapping[int, str]) -> None:
        """Give candidates a series, then add the counts since the last reading."""
        news = {each: _Series(name) for each, name in names.items() if each not in self._series}
        spare_count = len(self._series) + len(news) - self._named_max
        for _, stream_id in heapq.nsmallest(spare_count, self._weights()):
            self._rest.add(self.recent.pop(stream_id, Traffic()))
            del self._series[stream_id]
        self._series |= news
        for stream_id, series in self._series.items():
            added = self.recent.pop(stream_id, Traffic())
            series.traffic.add(added)
            series.weight = _KEPT_SHARE * series.weight + added.byte_count
        for added in self.recent.values():
            self._rest.add(added)
        self.recent.clear()

    def read(self) -> Iterator[tuple[str, Traffic]]:
        """Yield the label and the counts of each series, and of the rest."""
        for series in self._series.values():
            yield series.name, series.traffic
        yield REST, self._rest

    def _recent_bytes(self, stream_id: int) -> int:
        found = self.recent.get(stream_id)
        return 0 if found is None else found.byte_count

    def _weights(self) -> Iterator[tuple[float, int]]:
        return ((each.weight, stream_id) for stream_id, each in self._series.items())
