"""The role of this Python process in Spark, its memory, and what its session shares.

The module depends on how PySpark starts its workers, which is by `python -m`: the name of the
program is in `__main__.__spec__`. With another name a process is a worker only while it runs a
task, and no process ends micro-batches. The module also depends on the folder that the workers of a
session share for the session's files. Without it, or if it cannot be written, each worker looks
streams up by itself.
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
from typing import Final

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


TUNE_VARIABLE: Final = "SBP_TUNE_WORKERS"
"""With the value 1 in the environment of Spark's workers their memory is tuned."""
KEPT_BYTES: Final = 128 << 20
"""The most freed memory that a tuned worker keeps."""
KEPT_BLOCK_BYTES: Final = 32 << 20
"""Larger blocks are returned at once; the largest value that glibc accepts."""
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_TUNED: Final = set[int]()
"""The ids of processes that are tuned, which may be parents of this one."""


def tune_worker(environ: Mapping[str, str] = os.environ) -> None:
    """Tune the memory of a worker of Spark for many small or large batches, if its user asks.

    Loaded modules are exempt from collections: Spark collects in full after each task, which takes
    longer than to read a few records. And glibc keeps freed memory for the next rows: by default
    half of a writing worker's time goes into giving pages back and getting them again. Both hold
    for the user's own Python code in the process, too.
    """
    if environ.get(TUNE_VARIABLE) != "1" or os.getpid() in _TUNED or not is_worker():
        return
    _TUNED.add(os.getpid())
    gc.collect()  # garbage would be frozen, too
    gc.freeze()
    with suppress(AttributeError, OSError, TypeError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, KEPT_BLOCK_BYTES)
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)


class SeenClusters:
    """The clusters that have answered in a session, by their endpoints.

    Spark plans in any worker: so they are noted in a file of the session, too.
    """

    def __init__(self, folder: Callable[[], Path | None] = maybe_session_folder) -> None:
        self._folder = folder
        self._known: set[str] = set()

    def has_answered(self, endpoints: str) -> bool:
        """Whether a cluster is known to have answered."""
        path = self._maybe_path(endpoints)
        return endpoints in self._known or (path is not None and path.exists())

    def note(self, endpoints: str) -> None:
        """Remember that a cluster answers."""
        if endpoints in self._known:
            return
        self._known.add(endpoints)
        path = self._maybe_path(endpoints)
        if path is not None:
            with suppress(OSError):
                path.touch()

    def _maybe_path(self, endpoints: str) -> Path | None:
        folder = self._folder()
        digest = sha256(endpoints.encode()).hexdigest()
        return None if folder is None else folder / f".sbp-seen-{digest}"


SEEN: Final = SeenClusters()


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
        servers are down for a while. Spark plans in any worker, and ends workers that were idle for
        a minute, so the streams are kept in a file of the session, which Spark removes. Raises what
        `find` raises.
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
