"""The first page: health, throughput, consumer lag, the busiest streams, and disks."""

from __future__ import annotations

import time
from typing import Any, Final

from starlette.responses import Response

from sbp_core.operating.samples import Samples
from sbp_core.web.console.charts import (
    LINES_MAX,
    SPANS,
    SPARK_SPAN_MS,
    Chart,
    Series,
    draw,
    draw_spark,
    span_of,
)
from sbp_core.web.console.health import find_problems, maybe_cluster
from sbp_core.web.console.site import Visit, get


async def show(visit: Visit) -> Response:
    """Show the overview."""
    samples, now_ms = visit.samples(), time.time_ns() / 1_000_000
    cluster = await maybe_cluster(visit.client)
    servers = [] if cluster is None else cluster.range_servers
    disks = [each for each in servers if each.is_live and each.disk_free_bytes is not None]
    return visit.page(
        *("overview.html", "Overview"),
        problems=await find_problems(visit.client, cluster, samples, now_ms),
        has_cluster=cluster is not None,
        live_count=sum(each.is_live for each in servers),
        server_count=sum(not each.is_retired for each in servers),
        disks=sorted(disks, key=lambda each: each.disk_free_bytes or 0),
        **summarize(samples, now_ms, span_of(visit.query)),
    )


def summarize(samples: Samples, now_ms: float, span: str = "15 min") -> dict[str, Any]:
    """Return what was sampled, as the page shows it. None: not known yet.

    `is_complete`: all streams are known; else there may be more records, and more lag.
    """
    ends, rates, byte_rates = samples.newest, samples.rates(), samples.byte_rates()
    held = None
    if ends is not None:
        known = zip(ends.stream_ids.tolist(), ends.offsets.tolist(), strict=True)
        held = sum(end - samples.starts.get(each, end) for each, end in known if end >= 0)
    labels = {each.stream_id: each.label for each in samples.streams}
    busiest = sorted(rates.items(), key=lambda each: each[1], reverse=True)[:LINES_MAX]
    past = samples.rates_over_time([each for each, _ in busiest], now_ms - SPARK_SPAN_MS)
    all_streams, span_ms = Series("all streams", samples.sum_over_time()), SPANS[span]
    return {
        "stream_count": None if ends is None and not samples.streams else len(samples.streams),
        "is_complete": ends is None or bool((ends.offsets >= 0).all()),
        "record_count": held,
        "rate": sum(rates.values()) if rates else None,
        "byte_rate": sum(byte_rates.values()) if byte_rates else None,
        "lag": sum(samples.lags[-1].records.values()) if samples.lags else None,
        "span": span,
        "rates": draw("Records per second", [all_streams], now_ms, "/s", span_ms),
        "lags": draw_lags(samples, now_ms, span_ms),
        "busiest": [
            (
                *(each, labels.get(each, str(each)), rate, byte_rates.get(each)),
                draw_spark(past[each], now_ms),
            )
            for each, rate in busiest
            if rate > 0
        ],
    }


def draw_lags(samples: Samples, now_ms: float, span_ms: float) -> Chart:
    """Return the lag over time of the groups that are most behind now."""
    newest = samples.lags[-1].by_group if samples.lags else {}
    worst = sorted(newest, key=newest.__getitem__, reverse=True)[:LINES_MAX]
    series = [
        Series(
            group,
            [(each.at_ms, each.by_group[group]) for each in samples.lags if group in each.by_group],
        )
        for group in worst
    ]
    return draw("Records behind", series, now_ms, "", span_ms)


ROUTES: Final = (get("/", show),)
