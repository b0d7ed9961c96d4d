"""The Python processes that Spark has forked: for tasks, for plans, for ends of micro-batches."""

from __future__ import annotations

import os
import signal
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

COMMITTER = "pyspark.sql.worker.python_streaming_sink_runner"
"""The module of a process that commits and aborts micro-batches of sinks."""
PLANNER = "pyspark.sql.worker.write_into_data_source"
"""The module of a process that plans writes."""


def python_workers(pid: int, module: str = "") -> list[int]:
    """The workers of a process that has a session, or those that run `module`."""
    daemons = [each for each in _below(pid) if _is_daemon(each, module)]
    return [each for daemon in daemons for each in _below(daemon) if _is_daemon(each, module)]


def end_python_workers(module: str) -> int:
    """Kill those workers of this process that run a module; return how many there were."""
    workers = python_workers(os.getpid(), module)
    for worker in workers:
        os.kill(worker, signal.SIGKILL)
    return len(workers)


def _below(pid: int) -> list[int]:
    """The descendants of a process."""
    children: defaultdict[int, list[int]] = defaultdict(list)
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it is over by now
            parent = path.read_text(encoding="utf-8").rpartition(") ")[2].split()[1]
            children[int(parent)].append(int(path.parent.name))
    found = list(children[pid])
    for each in found:
        found += children[each]
    return found


def _is_daemon(pid: int, module: str) -> bool:
    with suppress(OSError):
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        return b"pyspark.daemon" in command and module.encode() in command
    return False
