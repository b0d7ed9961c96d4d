"""Lines of the log say which task they come from: its query, micro-batch and partition.

The module depends on the local properties that Spark sets for tasks. Without them lines say less,
and a streaming sink that writes exactly once refuses to.
"""

from __future__ import annotations

import logging
from typing import Final

from pyspark import TaskContext

from sbp_spark.reporting import LOG as _LOG
from sbp_spark.spark_internals.worker_process import is_worker

_PROPERTIES: Final = {"query_id": "sql.streaming.queryId", "batch_id": "streaming.sql.batchId"}
"""Local properties of a job that Spark sets for the tasks of a streaming query."""
_RUN: Final = "spark.jobGroup.id"
"""The same, the id of the run: another one each time the query is started."""


class TaskIds(logging.Filter):
    """Puts the ids of the running task before the message, and into the record's `context`.

    That is where Spark's `python_worker_logs` looks. Outside of tasks nothing is changed.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Pass every record."""
        ids = task_ids()
        if ids and not hasattr(record, "context"):
            record.context = ids
            words = " ".join(f"{name.removesuffix('_id')} {value}" for name, value in ids.items())
            record.msg = f"[{words}] {record.msg}"
        return True


def task_ids() -> dict[str, str]:
    """Return the ids of the task that this process runs, {} if it runs none."""
    task = TaskContext.get()
    if task is None:
        return {}
    properties = {name: task.getLocalProperty(key) for name, key in _PROPERTIES.items()}
    ids = {name: value for name, value in properties.items() if value is not None}
    return {**ids, "partition_id": str(task.partitionId())}


def run_id() -> str:
    """Return the id of the run whose task this process works on, "" if there is no such run."""
    task = TaskContext.get()
    return "" if task is None else task.getLocalProperty(_RUN) or ""


LOG: Final = _LOG
for _logger in (LOG, logging.getLogger("sbp_core.client")):
    _logger.addFilter(TaskIds())
if is_worker() and LOG.level == logging.NOTSET:
    LOG.setLevel(logging.INFO)  # for `python_worker_logs`; standard error has warnings only
