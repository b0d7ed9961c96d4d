"""What this process is to Spark, which runs Python in many: as PySpark 4.3 starts them."""

from __future__ import annotations

import sys
from typing import Final

from pyspark import TaskContext

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


def _program() -> str | None:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return None if spec is None else spec.name
