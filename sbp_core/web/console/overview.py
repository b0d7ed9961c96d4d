"""The first page: rates, lag and disks, and what is wrong now."""

from __future__ import annotations

import time
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sbp_core.client import AsyncClient, ClusterInfo
from sbp_core.errors import PermissionDeniedError, UnsupportedError
from sbp_core.operating.samples import Samples
from sbp_core.web.console.overview_view import make_disks, make_overview
from sbp_core.web.console.problems_view import (
    Problem,
    cluster_problems,
    driver_problems,
    group_problems,
    sampling_problems,
    txn_problems,
)
from sbp_core.web.console.site import Site

_PROBE_MS: Final = 1_000


async def show(request: Request) -> Response:
    """Show the overview."""
    site = Site.of(request)
    client = await site.client(request)
    samples = await site.samples(request)
    now_ms = time.time_ns() / 1_000_000
    cluster = await _maybe_cluster(client)
    servers = [] if cluster is None else cluster.range_servers
    return site.page(
        *(request, "overview.html", "Overview"),
        view=make_overview(samples, now_ms),
        problems=await _find_problems(client, cluster, samples, now_ms),
        has_cluster=cluster is not None,
        live_count=sum(each.is_live for each in servers),
        server_count=sum(not each.is_retired for each in servers),
        disks=make_disks(servers),
    )


async def _maybe_cluster(client: AsyncClient) -> ClusterInfo | None:
    """Return what is known of the servers; None if the caller may not see it."""
    try:
        return await client.describe_cluster()
    except (PermissionDeniedError, UnsupportedError):
        return None


async def _find_problems(
    client: AsyncClient, cluster: ClusterInfo | None, samples: Samples, now_ms: float
) -> list[Problem]:
    names = {each.stream_id: each.label for each in samples.streams}
    found = sampling_problems(samples, now_ms)
    if cluster is not None:
        drivers = await client.placement_drivers()
        endpoints = [each.endpoint for each in drivers]
        down = await client.probe(endpoints, timeout_ms=_PROBE_MS) if len(endpoints) > 1 else {}
        found += cluster_problems(cluster) + driver_problems(drivers, down)
        found += txn_problems(samples.stuck_txns or 0)
    found += group_problems(samples.lags[-1] if samples.lags else None, names)
    return found


ROUTES: Final = (Route("/", show, methods=["GET"]),)
