"""Faults of the cluster, and what to do about each: the findings of `sbp cluster` and `sbp lag`."""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from sbp_core import limits
from sbp_core.client import ClusterInfo, PlacementDriverInfo, RangeServerInfo
from sbp_core.operating.samples import Lags, Samples
from sbp_core.web.console.sampling import STALE_SECONDS
from sbp_core.web.console.words import counted, size_text

_SHOWN_MAX: Final = 5
"""Groups that lost records, each a problem of its own; the others are counted."""


class Severity(enum.Enum):
    """How bad a problem is: the class of its style."""

    FAILURE = "bad"
    WARNING = "warn"


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is wrong, what to do about it, and the page to look at."""

    level: Severity
    what: str
    remedy: str
    link: str | None = None


def driver_problems(drivers: Sequence[PlacementDriverInfo], down: Collection[str]) -> list[Problem]:
    """Return the placement drivers that do not answer."""
    return [
        Problem(
            Severity.WARNING,
            f"placement driver {each.endpoint} does not answer",
            "Start it: if the one that leads is lost too, nothing can be looked up or changed.",
            "/servers",
        )
        for each in drivers
        if each.endpoint in down
    ]


def cluster_problems(found: ClusterInfo) -> list[Problem]:
    """Return what is wrong with range servers and replicas."""
    problems = [
        problem
        for server in found.range_servers
        if not server.is_retired
        for problem in _server_problems(server)
    ]
    level = Severity.FAILURE if found.halted_count else Severity.WARNING
    for remark in found.remarks:
        what, _, remedy = remark.partition(": ")
        problems.append(Problem(level, what, f"{remedy}.", "/servers"))
    return problems


def _server_problems(server: RangeServerInfo) -> list[Problem]:
    name = f"range server {server.server_id} ({server.endpoint})"
    if not server.is_live:
        return [
            Problem(
                Severity.FAILURE,
                f"{name} is silent",
                "Start it with its data directory. If that is lost permanently, start another"
                " range server.",
                "/servers",
            )
        ]
    free = server.disk_free_bytes
    if free is None or free >= limits.PLACEMENT_DISK_FREE_BYTES:
        return []
    return [
        Problem(
            Severity.FAILURE if free < limits.DISK_FREE_FLOOR_BYTES else Severity.WARNING,
            f"{name} has {size_text(free)} of free disk space",
            "It gets no new ranges, and refuses appends below its disk_free_floor_bytes: free some,"
            " shorten the retention of streams, or drain the server.",
            "/servers",
        )
    ]


def group_problems(lags: Lags | None, names: Mapping[int, str]) -> list[Problem]:
    """Return the groups that did not read records before these were trimmed."""
    if lags is None:
        return []
    worst = sorted(lags.lost.items(), key=lambda each: each[1], reverse=True)
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
    if len(worst) > _SHOWN_MAX:
        rest = len(worst) - _SHOWN_MAX
        problems.append(
            Problem(
                Severity.WARNING,
                f"{counted(rest, 'more cursor')} lost records",
                "The page of the groups lists them.",
                "/groups",
            )
        )
    return problems


def txn_problems(stuck: int) -> list[Problem]:
    """Return that this many transactions cannot be published."""
    if not stuck:
        return []
    return [
        Problem(
            Severity.FAILURE,
            f"{counted(stuck, 'transaction')} stuck",
            "Later ones of the same streams wait behind. Bring the range server or its disk back;"
            " `sbp txns give-up` is the last resort.",
            "/transactions",
        )
    ]


def sampling_problems(samples: Samples, now_ms: float) -> list[Problem]:
    """Return why the numbers of the pages are old, if they are."""
    newest = samples.newest
    age_s = 0.0 if newest is None else (now_ms - newest.at_ms) / 1000
    if samples.error is None or (newest is not None and age_s <= STALE_SECONDS):
        return []
    since = "there are none yet" if newest is None else f"they are {age_s:.0f} s old"
    return [
        Problem(
            Severity.WARNING,
            f"rates and offsets are not renewed: {since}",
            f"{samples.error}.",
        )
    ]
