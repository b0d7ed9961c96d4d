"""The values that `sbp top` shows: the cluster, its servers and its streams."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from sbp_core.client import ClusterInfo, RangeServerInfo
from sbp_core.operating.samples import Samples
from sbp_core.quantities import round_size
from sbp_core.wording import counted

N = TypeVar("N", int, float)

STREAM_HEADING = ("STREAM", "RECORDS", "RECORDS/S", "BYTES/S", "SIZE", "LAG", "GROUP")
SERVER_HEADING = ("SERVER", "ENDPOINT", "STATE", "DISK FREE", "PRIMARY", "COPIES", "SEALED")
_UNKNOWN = "-"


@dataclass(frozen=True, slots=True)
class StreamLine:
    """A stream; None is what is not known. `lag` is that of `group`, which is most behind."""

    stream: str
    stream_id: int
    records: int | None
    records_per_second: float | None
    bytes_per_second: float | None
    stored_bytes: int | None
    lag: int | None
    group: str | None

    def cells(self) -> tuple[str, ...]:
        """Return what its row shows."""
        return (
            self.stream,
            _count(self.records),
            _rate(self.records_per_second),
            _size(self.bytes_per_second),
            _size(self.stored_bytes),
            _count(self.lag),
            self.group or _UNKNOWN,
        )


@dataclass(frozen=True, slots=True)
class TopView:
    """A cluster now. The servers are empty for a caller that may not see them.

    The streams are ordered: those with most bytes and records per second first, then by lag.
    """

    records: int | None
    records_per_second: float | None
    bytes_per_second: float | None
    stored_bytes: int | None
    lag: int | None
    streams: tuple[StreamLine, ...]
    servers: tuple[RangeServerInfo, ...]

    @property
    def summary(self) -> str:
        """The sums in a line."""
        return (
            f"{counted(len(self.streams), 'stream')}, {_count(self.records)} records,"
            f" {_size(self.stored_bytes)}; {_rate(self.records_per_second)} records/s,"
            f" {_size(self.bytes_per_second)}/s; lag {_count(self.lag)}"
        )


def make_top(samples: Samples, cluster: ClusterInfo | None) -> TopView:
    """Return what was sampled."""
    rates, byte_rates, ends = samples.rates(), samples.byte_rates(), samples.newest
    lags = _most_behind(samples)
    lines = []
    for info in samples.streams:
        key = info.stream_id
        end = None if ends is None else ends.maybe_end(key)
        group, lag = lags.get(key, (None, None))
        held = None if end is None else end - samples.starts.get(key, end)
        size_bytes = samples.sizes.get(key)
        line = StreamLine(
            info.label, key, held, rates.get(key), byte_rates.get(key), size_bytes, lag, group
        )
        lines.append(line)
    lines.sort(
        key=lambda each: (
            -(each.bytes_per_second or 0),
            -(each.records_per_second or 0),
            -(each.lag or 0),
            each.stream,
        )
    )
    servers = () if cluster is None else cluster.range_servers
    return TopView(
        records=_sum(each.records for each in lines),
        records_per_second=_sum(each.records_per_second for each in lines),
        bytes_per_second=_sum(each.bytes_per_second for each in lines),
        stored_bytes=_sum(each.stored_bytes for each in lines),
        lag=sum(samples.lags[-1].records.values()) if samples.lags else None,
        streams=tuple(lines),
        servers=tuple(each for each in servers if not each.is_retired),
    )


def server_cells(server: RangeServerInfo) -> tuple[str, ...]:
    """Return what the row of a range server shows."""
    return (
        str(server.server_id),
        server.endpoint,
        server.state,
        _size(server.disk_free_bytes),
        str(server.led_ranges),
        str(server.copied_ranges),
        str(server.sealed_ranges),
    )


def _most_behind(samples: Samples) -> Mapping[int, tuple[str, int]]:
    """Return the group that is most behind, and by how much, for each stream."""
    found: dict[int, tuple[str, int]] = {}
    if samples.lags:
        for (group, stream_id), lag in samples.lags[-1].records.items():
            if stream_id not in found or lag > found[stream_id][1]:
                found[stream_id] = group, lag
    return found


def _sum(values: Iterable[N | None]) -> N | None:
    """Return the sum of what is known; None if nothing is."""
    known = [each for each in values if each is not None]
    return sum(known[1:], known[0]) if known else None


def _count(value: float | None) -> str:
    return _UNKNOWN if value is None else f"{value:,.0f}"


def _rate(value: float | None) -> str:
    if value is None:
        return _UNKNOWN
    return f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.1f}"


def _size(value: float | None) -> str:
    return _UNKNOWN if value is None else round_size(int(value))
