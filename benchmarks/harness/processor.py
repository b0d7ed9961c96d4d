"""Processor time by process: Spark, its Python workers, the servers, and the driver's Python."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final, NamedTuple

import psutil

KERNEL: Final = "kernel"
"""The part of all processes that the kernel took: copies, page faults, sockets, the file system."""
_KINDS: Final = (
    ("org.apache.spark", "Spark"),
    ("pyspark.daemon", "workers"),
    ("serve", "server"),
    ("kafka.Kafka", "server"),
)
"""A part of a command line, and the name of such a process."""
PARTS: Final = ("Spark", "workers", "server", "driver", KERNEL)


class Spent(NamedTuple):
    """The core-seconds of a process since it began, `kernel` of them in the kernel."""

    kind: str
    seconds: float
    kernel: float


def processor_seconds() -> dict[int, Spent]:
    """Return the core-seconds of this process and all below it, by their ids."""
    found = {}
    this = psutil.Process()
    for process in (this, *this.children(recursive=True)):
        try:
            command, times = " ".join(process.cmdline()), process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        kind = next((name for part, name in _KINDS if part in command), "driver")
        found[process.pid] = Spent(kind, times.user + times.system, times.system)
    return found


def since(before: Mapping[int, Spent]) -> dict[str, float]:
    """Return the core-seconds by `PARTS` since an earlier call of `processor_seconds`.

    Processes that have ended since then are left out: Spark ends idle workers.
    """
    spent: Counter[str] = Counter()
    for process, now in processor_seconds().items():
        earlier = before.get(process, Spent(now.kind, 0, 0))
        kernel = now.kernel - earlier.kernel
        spent.update({now.kind: now.seconds - earlier.seconds, KERNEL: kernel})
    return {part: round(spent[part], 3) for part in PARTS}
