"""Garbage collection in Spark's Python workers: what is there to stay is not looked at again."""

from __future__ import annotations

import gc
import os
from typing import Final

from pyspark import TaskContext

_settled: Final[set[int]] = set()


def settle_once() -> None:
    """Exempt what a worker has loaded from collections, when it runs its first task.

    Spark collects in full after each task. To walk all modules takes longer than to read a few
    records, and keeps a processor busy while the micro-batch is committed. Nothing happens outside
    of tasks: the process is not Spark's.
    """
    pid = os.getpid()
    if pid in _settled or TaskContext.get() is None:
        return
    _settled.add(pid)
    gc.collect()  # what is garbage by now would stay, too
    gc.freeze()
