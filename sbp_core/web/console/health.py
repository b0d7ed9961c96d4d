"""Health: problems of the cluster and what to do about each, as `sbp cluster` and `sbp lag` do."""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from sbp_core import limits
from sbp_core.client import AsyncClient, ClusterInfo, PlacementDriverInfo, RangeServerInfo
from sbp_core.errors import PermissionDeniedError, UnsupportedError
from sbp_core.operating.samples import Lags, Samples
from sbp_core.web.console.histories import STALE_SECONDS
from sbp_core.web.console.words import counted, size_text

PROBE_MS: Final = 1_000
"""A server that does not answer a PING for this long is down."""
_SHOWN_MAX: Final = 5
"""Groups that lost records, each a problem of its own; the others are counted."""


class Severity(enum.Enum):
    """How bad a problem is: the class of its style."""

    FAILURE = "bad"
    WARNING = "warn"


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem, what to do about it, and the page to look at."""

    level: Severity
    what: str
    remedy: str
    link: str | None = None


async def maybe_cluster(client: AsyncClient) -> ClusterInfo | None:
    """Return the servers of the cluster; None if the caller may not see them."""
    try:
        return await client.describe_cluster()
    except (PermissionDeniedError, UnsupportedError):
        return None


async def find_problems(
    client: AsyncClient, cluster: ClusterInfo | None, samples: Samples, now_ms: float
) -> list[Problem]:
    """Return all problems that the caller may know of."""
    found = sampling_problems(samples, now_ms)
    if cluster is not None:
        drivers = await client.placement_drivers()
        endpoints = [each.endpoint for each in drivers]
        down = await client.probe(endpoints, timeout_ms=PROBE_MS) if len(endpoints) > 1 else {}
        found += cluster_problems(cluster) + driver_problems(drivers, down)
        found += txn_problems(samples.stuck_txns or 0)
    names = {each.stream_id: each.label for each in samples.streams}
    return found + group_problems(samples.lags[-1] if samples.lags else None, names)


def driver_problems(drivers: Sequence[PlacementDriverInfo], down: Collection[str]) -> list[Problem]:
    """Return the placement drivers that do not answer."""
    return [
        Problem(
            Severity.WARNING,
            f"placement driver {each.endpoint} does not answer",
            "Start it: if the leader is lost too, nothing can be looked up or changed.",
            "/servers",
        )
        for each in drivers
        if each.endpoint in down
    ]


def cluster_problems(found: ClusterInfo) -> list[Problem]:
    """Return the problems of range servers and replicas."""
    servers = [each for each in found.range_servers if not each.is_retired]
    problems = [each for each in map(_maybe_server_problem, servers) if each is not None]
    level = Severity.FAILURE if found.halted_count else Severity.WARNING
    for remark in found.remarks:
        what, _, remedy = remark.partition(": ")
        problems.append(Problem(level, what, f"{remedy}.", "/servers"))
    return problems


def _maybe_server_problem(server: RangeServerInfo) -> Problem | None:
    name, free = f"range server {server.server_id} ({server.endpoint})", server.disk_free_bytes
    if not server.is_live:
        return Problem(
            Severity.FAILURE,
            f"{name} is silent",
            "Start it with its data directory. If that is lost permanently, start another range"
            " server.",
            "/servers",
        )
    if free is None or free >= limits.PLACEMENT_DISK_FREE_BYTES:
        return None
    return Problem(
        Severity.FAILURE if free < limits.DISK_FREE_FLOOR_BYTES else Severity.WARNING,
        f"{name} has {size_text(free)} of free disk space",
        "It gets no new ranges, and refuses appends below its disk_free_floor_bytes: free some,"
        " shorten the retention of streams, or drain the server.",
        "/servers",
    )


def group_problems(lags: Lags | None, names: Mapping[int, str]) -> list[Problem]:
    """Return the groups that did not read records before these were trimmed."""
    worst = [] if lags is None else sorted(lags.lost.items(), key=lambda each: -each[1])
    problems = [
        Problem(
            Severity.WARNING,
            f"group {group} lost {counted(count, 'record')} of stream"
            f" {names.get(stream_id, str(stream_id))}",
            "They were trimmed before the group read them: lengthen the stream's retention, or let"
            " the group read faster.",
            f"/groups/{quote(group, safe='')}",
        )
        for (group, stream_id), count in worst[:_SHOWN_MAX]
    ]
    rest = len(worst) - _SHOWN_MAX
    if rest > 0:
        what = f"{counted(rest, 'more cursor')} lost records"
        problems.append(
            Problem(Severity.WARNING, what, "The page of the groups lists them.", "/groups")
        )
    return problems


def txn_problems(stuck: int) -> list[Problem]:
    """Return that this many transactions cannot be published."""
    remedy = (
        "Later ones of the same streams wait behind. Bring the range server or its disk back;"
        " `sbp txns give-up` is the last resort."
    )
    what = f"{counted(stuck, 'transaction')} stuck"
    return [Problem(Severity.FAILURE, what, remedy, "/transactions")] if stuck else []


def sampling_problems(samples: Samples, now_ms: float) -> list[Problem]:
    """Return why the numbers of the pages are old, if they are."""
    newest = samples.newest
    age_s = 0.0 if newest is None else (now_ms - newest.at_ms) / 1000
    if samples.error is None or (newest is not None and age_s <= STALE_SECONDS):
        return []
    since = "there are none yet" if newest is None else f"they are {age_s:.0f} s old"
    what = f"rates and offsets are not renewed: {since}"
    return [Problem(Severity.WARNING, what, f"{samples.error}.")]
