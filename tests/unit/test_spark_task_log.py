"""Which task a line of the log comes from."""

from __future__ import annotations

import logging

import pytest

from sbp_core.client.operations.calls import PatienceLog
from sbp_core.errors import SbpError
from sbp_spark.reading.losses import Loss, log_losses
from sbp_spark.spark_internals.task_log import LOG
from tests.support.spark import running_task

STREAMING = {"sql.streaming.queryId": "q-1", "streaming.sql.batchId": "7"}


@pytest.mark.parametrize(
    ("properties", "prefix"),
    [(STREAMING, "[query q-1 batch 7 partition 3] "), ({}, "[partition 3] ")],
)
def test_lines_of_a_task_have_its_ids(caplog, properties, prefix):
    with running_task(properties, 3):
        log_losses([Loss(1, 2, 5)], {1: "a"})
    (record,) = caplog.records
    assert record.getMessage().startswith(prefix + "data loss: 3 offsets")
    assert record.context["partition_id"] == "3"
    assert record.context.get("batch_id") == properties.get("streaming.sql.batchId")


def test_waits_of_a_client_are_logged_with_its_task(caplog):
    log = PatienceLog()
    with running_task(STREAMING, 3):
        log.on_wait("APPEND", SbpError("full"), since_ms=0, now_ms=1e5, budget_ms=2e5)
    (record,) = caplog.records
    assert record.getMessage().startswith("[query q-1 batch 7 partition 3] APPEND has failed")


def test_lines_of_the_driver_are_as_they_were(caplog):
    LOG.warning("100 %% of %s", "it")
    (record,) = caplog.records
    assert record.getMessage() == "100 % of it"
    assert not hasattr(record, "context")


def test_a_line_is_marked_once_however_often_the_module_is_loaded(caplog):
    for each in list(LOG.filters):
        LOG.addFilter(type(each)())
    try:
        with running_task(STREAMING):
            LOG.log(logging.ERROR, "once")
    finally:
        del LOG.filters[1:]
    assert caplog.records[0].getMessage().count("batch 7") == 1
