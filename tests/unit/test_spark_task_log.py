"""Which task a line of the log comes from."""

from __future__ import annotations

import logging

import pytest
from pyspark import TaskContext

from sbp_core.client.programs.calls import PatienceLog
from sbp_core.errors import SbpError
from sbp_spark.reading.losses import Loss, log_losses
from sbp_spark.spark_internals.task_log import LOG

STREAMING = {"sql.streaming.queryId": "q-1", "streaming.sql.batchId": "7"}


@pytest.fixture
def run_task(monkeypatch):
    """Makes this process one that runs a task with these local properties."""

    def run(properties):
        task = object.__new__(TaskContext)
        task._localProperties = properties
        task._partitionId = 3
        monkeypatch.setattr(TaskContext, "_taskContext", task)

    return run


@pytest.mark.parametrize(
    ("properties", "prefix"),
    [(STREAMING, "[query q-1 batch 7 partition 3] "), ({}, "[partition 3] ")],
)
def test_lines_of_a_task_have_its_ids(run_task, caplog, properties, prefix):
    run_task(properties)
    log_losses([Loss(1, 2, 5)], {1: "a"})
    (record,) = caplog.records
    assert record.getMessage().startswith(prefix + "data loss: 3 offsets")
    assert record.context["partition_id"] == "3"
    assert record.context.get("batch_id") == properties.get("streaming.sql.batchId")


def test_waits_of_a_client_are_logged_with_its_task(run_task, caplog):
    run_task(STREAMING)
    log = PatienceLog()
    log.on_wait("APPEND", SbpError("full"), since_ms=0, now_ms=1e5, budget_ms=2e5)
    (record,) = caplog.records
    assert record.getMessage().startswith("[query q-1 batch 7 partition 3] APPEND has failed")


def test_lines_of_the_driver_are_as_they_were(caplog):
    LOG.warning("100 %% of %s", "it")
    (record,) = caplog.records
    assert record.getMessage() == "100 % of it"
    assert not hasattr(record, "context")


def test_a_line_is_marked_once_however_often_the_module_is_loaded(run_task, caplog):
    run_task(STREAMING)
    for each in list(LOG.filters):
        LOG.addFilter(type(each)())
    try:
        LOG.log(logging.ERROR, "once")
    finally:
        del LOG.filters[1:]
    assert caplog.records[0].getMessage().count("batch 7") == 1
