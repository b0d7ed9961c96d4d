"""Memory, descriptors and threads of processes, from /proc; counters of servers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Final, NamedTuple
from urllib.request import urlopen

import psutil

from benchmarks.core.soak.cluster import Cluster
from benchmarks.core.soak.crew import Crew

INTERVAL_SECONDS: Final = 5.0
SPARK: Final = "spark"
"""The name of the process of the queries; its children are Java, and Python workers."""

APPENDED_BYTES: Final = "sbp_append_bytes_total"
FREED_BYTES: Final = "sbp_cleaner_freed_bytes_total"
REMOVED_SEGMENTS: Final = 'sbp_cleaner_segments_total{result="removed"}'
REWRITTEN_SEGMENTS: Final = 'sbp_cleaner_segments_total{result="rewritten"}'
TRIMS: Final = "sbp_retention_trims_total"
_COUNTERS: Final = (APPENDED_BYTES, FREED_BYTES, REMOVED_SEGMENTS, REWRITTEN_SEGMENTS, TRIMS)
_SEGMENT_END: Final = ".log"
_HTTP_SECONDS: Final = 2.0


class Process(NamedTuple):
    """One life of a process: a server that is restarted is another one."""

    name: str
    pid: int


class Usage(NamedTuple):
    """Memory, descriptors and threads of a process. Anonymous memory has no pages of files.

    Files of the log that exist are not among the descriptors: a server holds up to
    SEGMENT_FILES_OPEN_MAX of them open, as many as its log has. Removed ones count.
    """

    resident_kib: int
    anonymous_kib: int
    descriptors: int
    threads: int


@dataclass(frozen=True, slots=True)
class Look:
    """All processes at a time (monotonic, seconds); `counters` are those of servers."""

    at_s: float
    usages: Mapping[Process, Usage]
    counters: Mapping[Process, Mapping[str, float]]


def looker(cluster: Cluster, crews: Sequence[Crew]) -> Callable[[], Look]:
    """Return a function that looks at all processes of a soak."""

    def look() -> Look:
        servers = [Process(*each) for each in cluster.pids.items()]
        others = [Process(*each) for crew in crews for each in crew.pids.items()]
        children = [child for each in others if each.name == SPARK for child in _children(each)]
        usages = {each: maybe_usage(each.pid) for each in (*servers, *others, *children)}
        urls = cluster.metrics
        counters = {each: _scrape(urls[each.name]) for each in servers if each.name in urls}
        seen = {each: usage for each, usage in usages.items() if usage is not None}
        return Look(time.monotonic(), seen, counters)

    return look


def maybe_usage(pid: int) -> Usage | None:
    """Return the usage of a process; None if it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        descriptors = [_maybe_target(each) for each in Path(f"/proc/{pid}/fd").iterdir()]
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = dict(line.split(":", 1) for line in status.splitlines())
    if "VmRSS" not in fields:  # it is a zombie
        return None
    numbers = (int(fields[name].split()[0]) for name in ("VmRSS", "RssAnon", "Threads"))
    resident_kib, anonymous_kib, threads = numbers
    count = sum(each is not None and not each.endswith(_SEGMENT_END) for each in descriptors)
    return Usage(resident_kib, anonymous_kib, count, threads)


def _maybe_target(descriptor: Path) -> str | None:
    """Return what a descriptor is of; None if it was closed."""
    try:
        return str(descriptor.readlink())
    except FileNotFoundError:
        return None


def _children(parent: Process) -> list[Process]:
    """Return Java and the Python workers, named by what they are; none of one that has ended."""
    found = []
    with suppress(psutil.NoSuchProcess):
        for child in psutil.Process(parent.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                words = child.cmdline()
                # Python workers are "python -m pyspark.daemon pyspark.worker" and the like
                name = words[-1].rpartition(".")[2] if "-m" in words else child.name()
                found.append(Process(f"{parent.name}: {name}", child.pid))
    return found


def _scrape(url: str) -> dict[str, float]:
    """Return the counters of a server; none while it is down."""
    try:
        with urlopen(url, timeout=_HTTP_SECONDS) as answer:
            lines = answer.read().decode().splitlines()
    except (OSError, HTTPException):
        return {}
    pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in pairs if name in _COUNTERS}


def totals(looks: Sequence[Look]) -> dict[str, float]:
    """Return the sums of the counters over all servers and their lives, as they were seen last."""
    last: dict[Process, Mapping[str, float]] = {}
    for look in looks:
        last |= {process: found for process, found in look.counters.items() if found}
    return {name: sum(found.get(name, 0.0) for found in last.values()) for name in _COUNTERS}
