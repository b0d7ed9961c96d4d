"""What this process is to Spark, which runs Python in many: as PySpark 4.3 starts them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from pyspark import SparkFiles, TaskContext

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

    None if this is no worker, or has not been told.
    """
    if not is_worker():
        return None
    maybe_folder: str | None = SparkFiles.getRootDirectory()
    return None if maybe_folder is None else Path(maybe_folder)


def _program() -> str | None:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return None if spec is None else spec.name
