"""The overview as values: how much there is, how fast it grows, which groups are behind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sbp_core.client import RangeServerInfo
from sbp_core.operating.samples import Samples
from sbp_core.web.console.charts import LINES_MAX, Chart, Series, draw


@dataclass(frozen=True, slots=True)
class Busy:
    """A stream, and its records per second."""

    stream_id: int
    label: str
    rate: float


@dataclass(frozen=True, slots=True)
class Disk:
    """The free space of a range server, as a share of the most that one has."""

    name: str
    free_bytes: int
    share: float


@dataclass(frozen=True, slots=True)
class Overview:
    """All that the overview shows of the streams and groups. None: not known yet.

    `is_complete`: all streams are known; else there may be more records, and more lag.
    """

    stream_count: int | None
    is_complete: bool
    record_count: int | None
    rate: float | None
    lag: int | None
    rates: Chart
    lags: Chart
    busiest: tuple[Busy, ...]


def make_overview(samples: Samples, now_ms: float) -> Overview:
    """Return the overview of what was sampled."""
    ends = samples.newest
    rates = samples.rates()
    held = None
    if ends is not None:
        known = zip(ends.stream_ids.tolist(), ends.offsets.tolist(), strict=True)
        held = sum(end - samples.starts.get(each, end) for each, end in known if end >= 0)
    labels = {each.stream_id: each.label for each in samples.streams}
    busiest = sorted(rates.items(), key=lambda each: each[1], reverse=True)[:LINES_MAX]
    return Overview(
        stream_count=None if ends is None and not samples.streams else len(samples.streams),
        is_complete=ends is None or bool((ends.offsets >= 0).all()),
        record_count=held,
        rate=sum(rates.values()) if rates else None,
        lag=sum(samples.lags[-1].records.values()) if samples.lags else None,
        rates=draw(
            "Records per second",
            [Series("all streams", samples.rates_over_time())],
            now_ms,
            "/s",
        ),
        lags=draw_lags(samples, now_ms),
        busiest=tuple(
            Busy(each, labels.get(each, str(each)), rate) for each, rate in busiest if rate > 0
        ),
    )


def draw_lags(samples: Samples, now_ms: float) -> Chart:
    """Return the lag over time of the groups that are most behind now."""
    newest = samples.lags[-1].by_group() if samples.lags else {}
    worst = sorted(newest, key=newest.__getitem__, reverse=True)[:LINES_MAX]
    sums = [(each.at_ms, each.by_group()) for each in samples.lags]
    series = [
        Series(group, [(at_ms, found[group]) for at_ms, found in sums if group in found])
        for group in worst
    ]
    return draw("Records behind", series, now_ms, "")


def make_disks(servers: Sequence[RangeServerInfo]) -> tuple[Disk, ...]:
    """Return the free space of the range servers that report it, the least first."""
    known = [
        (f"{each.server_id} ({each.endpoint})", each.disk_free_bytes)
        for each in servers
        if each.is_live and each.disk_free_bytes is not None
    ]
    most = max((free for _, free in known), default=0) or 1
    return tuple(
        Disk(name, free, free / most) for name, free in sorted(known, key=lambda each: each[1])
    )
