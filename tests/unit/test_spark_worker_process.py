"""The role of a process in Spark, known from the program that Spark runs in it."""

import sys
from types import SimpleNamespace

import pytest

from sbp_spark.spark_internals.worker_process import ends_micro_batches, is_worker
from tests.support.spark import running_task

COMMITTER = "pyspark.sql.worker.python_streaming_sink_runner"
PLANNER = "pyspark.sql.worker.write_into_data_source"


@pytest.mark.parametrize(
    ("program", "argument", "forked", "ends"),
    [
        ("pyspark.daemon", "pyspark.worker", True, False),
        ("pyspark.daemon", PLANNER, True, False),
        ("pyspark.daemon", COMMITTER, True, True),
        ("pyspark.daemon", None, True, False),
        (COMMITTER, None, False, True),  # on Windows, where nothing is forked
        ("pytest", COMMITTER, False, False),
        (None, COMMITTER, False, False),
    ],
)
def test_the_program_tells(program, argument, forked, ends, monkeypatch):
    spec = None if program is None else SimpleNamespace(name=program)
    monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace(__spec__=spec))
    monkeypatch.setattr(sys, "argv", ["main", *([] if argument is None else [argument])])
    assert is_worker() is forked
    assert ends_micro_batches() is ends


def test_a_task_tells():
    with running_task({}):
        assert is_worker()
        assert not ends_micro_batches()
