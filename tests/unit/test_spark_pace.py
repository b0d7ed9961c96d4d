"""The trigger interval, derived from the times at which Spark asks for micro-batches."""

from __future__ import annotations

import pytest

from sbp_spark.streaming.pace import Ticks

NOON_MS = 1_700_000_000_000


def asked(ticks, *times_ms):
    return [ticks.is_tick(NOON_MS + each) for each in times_ms]


def test_an_interval_is_suggested_by_two_questions_and_known_by_three():
    ticks = Ticks()
    assert asked(ticks, 1_234, 10_003) == [False, False]
    assert asked(ticks, 20_011) == [True]
    assert ticks.interval_ms == 0
    assert asked(ticks, 30_002) == [True]
    assert ticks.interval_ms == 10_000


def test_a_micro_batch_that_took_longer_is_not_waited_for():
    ticks = Ticks()
    asked(ticks, 3, 10_003, 20_003)
    assert asked(ticks, 33_456) == [False]
    assert ticks.interval_ms == 10_000
    assert asked(ticks, 40_001, 60_001) == [True, False]


def test_a_question_that_comes_too_early_refutes_the_interval():
    ticks = Ticks()
    asked(ticks, 3, 10_003, 20_003)
    assert asked(ticks, 29_500) == [False]
    assert ticks.interval_ms == 0


@pytest.mark.parametrize(
    "times_ms", [(500, 10_500, 20_500), (0, 10_700, 21_400), (0, 7, 17, 27), (5_000, 5_000, 5_000)]
)
def test_other_times_suggest_nothing(times_ms):
    ticks = Ticks()
    assert not any(asked(ticks, *times_ms))
