"""What a worker has loaded is exempted from collections once, and only where Spark runs tasks."""

import gc

import pytest
from pyspark import TaskContext

from sbp_spark import garbage


@pytest.fixture
def calls(monkeypatch):
    """What is asked of the collector, which does nothing."""
    made = []
    for name in ("collect", "freeze"):
        monkeypatch.setattr(gc, name, lambda name=name: made.append(name))
    monkeypatch.setattr(garbage, "_settled", set())
    return made


def test_a_worker_settles_at_its_first_task(monkeypatch, calls):
    monkeypatch.setattr(TaskContext, "_taskContext", object.__new__(TaskContext))
    garbage.settle_once()
    garbage.settle_once()
    assert calls == ["collect", "freeze"]
    monkeypatch.setattr("os.getpid", lambda: -1)  # a child of the worker
    garbage.settle_once()
    assert calls == ["collect", "freeze"] * 2


def test_a_process_without_tasks_is_left_alone(calls):
    garbage.settle_once()
    assert calls == []
