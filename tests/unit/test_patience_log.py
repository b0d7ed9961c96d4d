"""Retries of an operation are logged with their reason, at intervals."""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from random import Random

import pytest

from sbp_core import limits
from sbp_core.client.operations.calls import Attempts, Context, PatienceLog, RetryPolicy
from sbp_core.client.operations.router import PlacementDrivers, Router
from sbp_core.errors import DiskFullError, NotFoundError, SbpError, StatusCode
from tests.support.scripted_client import AppendWorld

FULL = DiskFullError(StatusCode.RS_DISK_FULL, "the disk has 12 MiB left, 64 are kept free")
TOLD_MS = limits.RETRY_LOG_INTERVAL_MS


@pytest.fixture
def context():
    return Context(
        PlacementDrivers("pd:1"),
        Router(),
        RetryPolicy(),
        Random(1),
        1000,
        AppendWorld(None).open_calls,
    )


@pytest.fixture
def told(caplog):
    """Return the messages logged since the last call."""
    caplog.set_level(logging.WARNING, logger="sbp_core.client")

    def take():
        messages = caplog.messages[:]
        caplog.clear()
        return messages

    return take


def fail(attempts: Attempts, now_ms: float, error: SbpError = FULL) -> float | None:
    attempts.on_failure()
    return attempts.maybe_wait_ms(error, "APPEND", "rs:1", now_ms)


def test_a_short_trouble_is_not_told(context, told):
    attempts = Attempts(context, 1_000)
    assert fail(attempts, 1_000) is not None
    assert fail(attempts, 1_000 + TOLD_MS - 1) is not None
    assert told() == []


def test_a_long_one_is_reported_with_its_reason_and_how_long_it_is_tried(context, told):
    attempts = Attempts(context, 1_000)
    fail(attempts, 1_000 + TOLD_MS)
    (line,) = told()
    assert line == (
        "APPEND at rs:1 has failed for 10 s and is tried for 50 s more:"
        " the disk has 12 MiB left, 64 are kept free [RS_DISK_FULL 2504]"
    )


def test_an_outage_is_reported_once_and_so_is_its_end(context, told):
    attempts = Attempts(context, 0)
    for _ in range(3):
        fail(attempts, TOLD_MS)
        fail(attempts, 3 * TOLD_MS)
        assert len(told()) == 1
        attempts.on_progress(4 * TOLD_MS)
        assert told() == ["servers answer again after 40 s"]
        attempts.on_progress(0)
        context = replace(context, patience_log=PatienceLog())
        attempts = Attempts(context, 0)


def test_it_may_be_tried_for_ever(context, told):
    attempts = Attempts(replace(context, policy=RetryPolicy(budget_ms=math.inf)), 0)
    assert fail(attempts, 10**12) is not None
    assert "is tried until it succeeds: the disk" in told()[0]


def test_a_wrong_address_is_not_tried_for_long(context):
    context = replace(context, policy=RetryPolicy(first_ms=5_000))
    assert fail(Attempts(context, 0), 5_000) is None
    context.drivers.have_answered = True
    assert fail(Attempts(context, 0), 5_000) is not None


def test_operations_that_fail_together_are_reported_once(context, told):
    each_stream = [Attempts(context, 0) for _ in range(100)]
    for now_ms in (TOLD_MS, TOLD_MS + 1):
        for attempts in each_stream:
            fail(attempts, now_ms)
    assert len(told()) == 1


def test_progress_is_no_trouble(context, told):
    attempts = Attempts(context, 0)
    fail(attempts, TOLD_MS - 1)
    attempts.on_progress(TOLD_MS - 1)
    fail(attempts, TOLD_MS + 1)
    assert told() == []


def test_an_error_that_is_not_retried_is_raised_and_not_logged(context, told):
    attempts = Attempts(context, 0)
    missing = NotFoundError(StatusCode.NOT_FOUND, "no such stream")
    assert fail(attempts, 2 * TOLD_MS, missing) is None
    assert fail(attempts, limits.RETRY_BUDGET_MS) is None
    assert told() == []
