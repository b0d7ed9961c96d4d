"""Memory of Spark's Python workers: what is loaded is not collected, what is freed is kept."""

from __future__ import annotations

import ctypes
import gc
import os
from typing import Final

from pyspark import TaskContext

KEPT_BYTES: Final = 128 << 20
"""As much freed memory a worker keeps at most."""
KEPT_BLOCK_BYTES: Final = 32 << 20
"""Larger blocks are given back at once: the largest that glibc takes for this."""
MALLOC_SETTINGS: Final = ("GLIBC_TUNABLES", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")
"""Who sets one of these in the environment has decided himself what is kept."""

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3

_settled: Final[set[int]] = set()


def settle_once() -> None:
    """Do both when a worker runs its first task.

    Nothing happens outside of tasks: the process is not Spark's.
    """
    pid = os.getpid()
    if pid in _settled or TaskContext.get() is None:
        return
    _settled.add(pid)
    exempt_what_is_loaded()
    keep_freed_memory()


def exempt_what_is_loaded() -> None:
    """Exempt what is loaded by now from collections.

    Spark collects in full after each task. To walk all modules takes longer than to read a few
    records, and keeps a processor busy while the micro-batch is committed.
    """
    gc.collect()  # what is garbage by now would stay, too
    gc.freeze()


def keep_freed_memory() -> None:
    """Let glibc, if that is the C library, keep freed memory for the next rows.

    Rows come in batches of some MiB. By default the memory of each is given back to the system, and
    asked for anew, page by page, for the next one: half of a writing worker's time in the kernel.
    """
    if any(name in os.environ for name in MALLOC_SETTINGS):
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    mallopt(_M_MMAP_THRESHOLD, KEPT_BLOCK_BYTES)
    mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)
