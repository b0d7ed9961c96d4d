"""The load of a range server: its requests, and its machine (SPEC "REPORT_METRICS")."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from sbp_core import limits
from sbp_core.rangeserver.stream_traffic import StreamTraffic
from sbp_core.server.metrics import COUNTS, SECONDS, SIZES, Histogram
from sbp_core.server.runtime import Clock
from sbp_core.wire.headers import RangeServer, ReportMetricsRequest

_INT16_MAX = 2**15 - 1
_INT64_MAX = 2**63 - 1


@dataclass(slots=True)
class RequestTally:
    """Counts of one operation; each item of a frame is a request. Times are in seconds."""

    requests: int = 0
    failures: int = 0
    byte_count: int = 0
    request_seconds: float = 0.0
    """Sum over requests of the time from the arrival of a frame to its answer."""
    records: int = 0

    def add(
        self, requests: int, failures: int, byte_count: int, seconds: float, records: int = 0
    ) -> None:
        """Count a frame."""
        self.requests += requests
        self.failures += failures
        self.byte_count += byte_count
        self.request_seconds += requests * seconds
        self.records += records

    def since(self, earlier: RequestTally) -> RequestTally:
        """Return the difference to an earlier copy."""
        return RequestTally(
            self.requests - earlier.requests,
            self.failures - earlier.failures,
            self.byte_count - earlier.byte_count,
            self.request_seconds - earlier.request_seconds,
            self.records - earlier.records,
        )


class GroupTally:
    """Histograms of committed groups: entries, bytes, and time of write and sync."""

    def __init__(self) -> None:
        self.entries: Final = Histogram(COUNTS)
        self.byte_counts: Final = Histogram(SIZES)
        self.seconds: Final = Histogram(SECONDS)

    def add(self, entries: int, byte_count: int, seconds: float) -> None:
        """Count a group."""
        self.entries.add(entries)
        self.byte_counts.add(byte_count)
        self.seconds.add(seconds)


class Metrics:
    """Counts appends and fetches since the start.

    Reported rates are since the last report, averages over a minute.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began_at = clock.monotonic()
        self._intervals: deque[tuple[float, RequestTally, RequestTally]] = deque()
        """(end, appends, fetches) of each interval between two reports."""
        self._active: dict[tuple[int, int], float] = {}
        self.streams: Final = StreamTraffic()
        self.appends = RequestTally()
        self.fetches = RequestTally()
        self._reported = (RequestTally(), RequestTally())
        """Appends and fetches up to the last report."""
        self.throttled: Final = dict.fromkeys(("memory", "disk"), 0)
        """Refused batches, by the resource that was short."""
        self.reads: Final = dict.fromkeys(("memory", "thread"), 0)
        """FETCH frames with batches, by where they were read."""

    def touch(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Note that ranges were written or read."""
        now = self._clock.monotonic()
        for each in ranges:
            self._active[each] = now

    def report(
        self,
        server: RangeServer,
        *,
        disk_free_bytes: int,
        memory_used_bytes: int,
        unindexed_bytes: int,
        missing_replicas: int,
    ) -> ReportMetricsRequest:
        """Return the figures since the last report, and begin the next interval."""
        now = self._clock.monotonic()
        seconds = max(now - self._began_at, 0.001)
        appends = self.appends.since(self._reported[0])
        fetches = self.fetches.since(self._reported[1])
        self._intervals.append((now, appends, fetches))
        self._reported = (replace(self.appends), replace(self.fetches))
        self._began_at = now
        oldest = now - limits.METRICS_WINDOW_MS / 1000
        while self._intervals[0][0] <= oldest:
            self._intervals.popleft()
        self._active = {each: at for each, at in self._active.items() if at >= oldest}
        return ReportMetricsRequest(
            range_server=server,
            disk_in_rate=_clamp(appends.byte_count / seconds, _INT64_MAX),
            disk_out_rate=_clamp(fetches.byte_count / seconds, _INT64_MAX),
            disk_free_space=_clamp(disk_free_bytes, _INT64_MAX),
            disk_unindexed_data_size=_clamp(unindexed_bytes, _INT64_MAX),
            memory_used=_clamp(memory_used_bytes, _INT64_MAX),
            network_append_rate=_clamp(appends.requests / seconds),
            network_fetch_rate=_clamp(fetches.requests / seconds),
            network_failed_append_rate=_clamp(appends.failures / seconds),
            network_failed_fetch_rate=_clamp(fetches.failures / seconds),
            network_append_avg_latency=_average_ms(appends for _, appends, _ in self._intervals),
            network_fetch_avg_latency=_average_ms(fetches for _, _, fetches in self._intervals),
            range_missing_replica_cnt=_clamp(missing_replicas),
            range_active_cnt=_clamp(len(self._active)),
        )


def _average_ms(tallies: Iterable[RequestTally]) -> int:
    requests, seconds = 0, 0.0
    for tally in tallies:
        requests += tally.requests
        seconds += tally.request_seconds
    return _clamp(1000 * seconds / requests) if requests else 0


def _clamp(value: float, maximum: int = _INT16_MAX) -> int:
    """Return the nearest number that the field of the wire holds."""
    return min(max(round(value), 0), maximum)


_STATM: Final = Path("/proc/self/statm")


class HostProbe:
    """Measures the machine and this process. Its methods may wait for a disk, and raise OSError."""

    def disk_free_bytes(self, folder: Path) -> int:
        """Return the free space of the file system of `folder`, without the reserve of root."""
        status = os.statvfs(folder)
        return status.f_bavail * status.f_frsize

    def memory_used_bytes(self) -> int:
        """Return the resident set of this process."""
        _, resident_pages, *_ = _STATM.read_text(encoding="ascii").split()
        return int(resident_pages) * os.sysconf("SC_PAGE_SIZE")
