"""The role of this Python process in Spark, its memory, and what its session shares.

It depends on how PySpark starts its workers, which is by `python -m`: the name of the program is in
`__main__.__spec__`. With another name a process is a worker only while it runs a task, and no
process ends micro-batches. It also depends on the folder that the workers of a session share for
the session's files. Without it, or if it cannot be written, each worker looks streams up by itself.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, Final

from pyspark import SparkFiles, TaskContext

from sbp_spark.options.endpoints import Servers
from sbp_spark.options.stream_selection import FoundStream

_DAEMON: Final = "pyspark.daemon"
"""The program that forks the workers of a session; its argument is the module that they run."""
_COMMITTER: Final = "pyspark.sql.worker.python_streaming_sink_runner"


def is_worker() -> bool:
    """Whether Spark has forked it, for tasks, plans or ends of micro-batches."""
    return TaskContext.get() is not None or _program() == _DAEMON


def ends_micro_batches() -> bool:
    """Whether it commits and aborts micro-batches of sinks, after their tasks."""
    module = sys.argv[1] if _program() == _DAEMON and len(sys.argv) > 1 else _program()
    return module == _COMMITTER


def maybe_session_folder() -> Path | None:
    """Return the folder on this machine that all workers of the session have for its files.

    None if this is no worker, or Spark has not set it.
    """
    if not is_worker():
        return None
    folder: str | None = SparkFiles.getRootDirectory()
    return None if folder is None else Path(folder)


def _program() -> str | None:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return None if spec is None else spec.name


KEPT_BYTES: Final = 128 << 20
"""The most freed memory that a worker keeps."""
KEPT_BLOCK_BYTES: Final = 32 << 20
"""Larger blocks are returned at once; the largest value that glibc accepts."""
MALLOC_SETTINGS: Final = ("GLIBC_TUNABLES", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")
"""With one of these in the environment the user decides how much memory is kept."""

FURTHER_MODULES: Final = 100
"""After this number of new modules a process settles again."""

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3


def exempt_what_is_loaded() -> None:
    """Exempt what is loaded by now from collections.

    Spark collects in full after each task, and after each plan, check or commit of a source or a
    sink, which is a process's task, too. To walk all modules takes longer than to read a few
    records, and keeps a processor busy that the next step needs.
    """
    gc.collect()  # garbage would be frozen, too
    gc.freeze()


def keep_freed_memory(load: Callable[[None], Any] = ctypes.CDLL) -> None:
    """Let glibc, if that is the C library, keep freed memory for the next rows.

    Rows come in batches of some MiB. By default the memory of each is given back to the system, and
    requested again, page by page, for the next one: half of a writing worker's time in the kernel.
    `load` returns the libraries of this process.
    """
    if any(name in os.environ for name in MALLOC_SETTINGS):
        return
    try:
        mallopt = load(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    mallopt(_M_MMAP_THRESHOLD, KEPT_BLOCK_BYTES)
    mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)


def _settle_now() -> None:
    exempt_what_is_loaded()
    keep_freed_memory()


class Settler:
    """Calls `settle_now` in processes that are Spark's workers, once each as a rule.

    A forked worker inherits what its parent did, so processes are told apart by their ids.
    """

    def __init__(
        self,
        settle_now: Callable[[], None] = _settle_now,
        *,
        is_worker: Callable[[], bool] = is_worker,
        pid: Callable[[], int] = os.getpid,
    ) -> None:
        self._settle_now = settle_now
        self._is_worker = is_worker
        self._pid = pid
        self._module_counts: dict[int, int] = {}
        """The modules that a process had when it settled last."""

    def settle(self) -> None:
        """Settle the memory of one of Spark's workers: garbage collection and the C library.

        That is done at the first call, and again once many more modules were loaded: Spark loads
        some behind the first task. Nothing happens in any other process, which is not Spark's to
        arrange.
        """
        pid, module_count = self._pid(), len(sys.modules)
        settled_count = self._module_counts.get(pid, 0)
        if module_count < settled_count + FURTHER_MODULES or not self._is_worker():
            return
        self._module_counts[pid] = module_count
        self._settle_now()


settle: Final = Settler().settle


Found = Mapping[str, FoundStream]
"""Streams by what options call them."""


class FoundOnce:
    """The streams that a process found. `folder` returns where its session keeps them, if at all.

    A forked worker inherits what its parent found, so processes are told apart by their ids.
    """

    def __init__(self, folder: Callable[[], Path | None] = maybe_session_folder) -> None:
        self._folder = folder
        self._found: dict[tuple[int, str, str], Found] = {}

    def find(self, servers: Servers, purpose: str, find: Callable[[], Found]) -> Found:
        """Return what `find` returned when it first succeeded for this cluster and purpose.

        So a first use finds mistakes at once, and a later one does not end a running query when the
        servers are down for a while. Spark plans in any worker, and ends those that were idle for a
        minute, so the streams are kept in a file of the session, which Spark removes. Raises
        what `find` raises.
        """
        key = (os.getpid(), str(servers), purpose)
        if key not in self._found:
            folder = self._folder()
            digest = sha256(f"{servers} {purpose}".encode()).hexdigest()
            path = None if folder is None else folder / f".sbp-{digest}"
            self._found[key] = find() if path is None else _read_or_write(path, find)
        return self._found[key]


def _read_or_write(path: Path, find: Callable[[], Found]) -> Found:
    with suppress(OSError):
        kept = json.loads(path.read_text(encoding="utf-8"))
        return {name: FoundStream(*pair) for name, pair in kept.items()}
    found = find()
    with (  # as a whole, as others may read it; if that fails, they look again
        suppress(OSError),
        NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, delete=False) as file,
    ):
        json.dump(found, file)
        file.close()
        Path(file.name).replace(path)
    return found
