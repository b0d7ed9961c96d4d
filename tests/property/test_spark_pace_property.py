"""The pace of queries that take a known time: it is found, kept, and found again."""

from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st

from sbp_spark.streaming.pace import (
    GROWTH_MIN,
    LATE,
    RECORDS_FIRST,
    RECORDS_MIN,
    RECORDS_PART,
    STEP_MAX,
    Pace,
    PaceMaker,
)

targets = st.integers(100, 60_000)
costs_ms = st.floats(1e-5, 0.05)
"""The cost of one record."""
LONGEST = LATE * GROWTH_MIN + 0.01
"""Parts of the target: a time that looks like a trigger interval makes the query try more."""
EPOCH_MS = 1_700_000_000_000


class Query:
    """A query with an endless backlog: so long for each micro-batch, so long for each record."""

    def __init__(self, target_ms, cost_ms, overhead_ms=0.0, interval_ms=0, ask_ms=0.0):
        self.now_ms = EPOCH_MS + 12_345.6
        self.cost_ms, self.overhead_ms = cost_ms, overhead_ms
        self.interval_ms, self.ask_ms = interval_ms, ask_ms
        self.backlog = None
        self.pace = PaceMaker(
            target_ms, clock=lambda: self.now_ms / 1000, wall=lambda: self.now_ms / 1000
        )
        self.pace.on_asked()

    def run(self, count=1, extra_ms=0.0):
        """Run micro-batches; return how many records the last one had, and the work in ms."""
        for _ in range(count):
            records = self.pace.records_max if self.backlog is None else self.backlog
            self.pace.on_admitted(records)
            work_ms = self.overhead_ms + records * self.cost_ms + extra_ms
            begun_ms, self.now_ms = self.now_ms, self.now_ms + work_ms
            if self.interval_ms:
                due_ms = (begun_ms // self.interval_ms + 1) * self.interval_ms
                self.now_ms = max(self.now_ms, due_ms + self.ask_ms)
            self.pace.on_asked()
        return records, work_ms


@given(targets, costs_ms, st.floats(0, 0.7))
def test_the_target_is_found_and_kept(target_ms, cost_ms, overhead_part):
    query = Query(target_ms, cost_ms, overhead_part * target_ms)
    fitting = (1 - overhead_part) * target_ms / cost_ms
    assume(fitting > 2 * RECORDS_MIN)
    query.run(60)
    for _ in range(10):
        _, work_ms = query.run()
        assert 0.98 * target_ms <= work_ms <= LONGEST * target_ms


@given(targets, costs_ms, st.floats(0, 0.7), st.floats(1.2, 1000))
def test_an_outlier_is_forgotten(target_ms, cost_ms, overhead_part, factor):
    query = Query(target_ms, cost_ms, overhead_part * target_ms)
    assume((1 - overhead_part) * target_ms / cost_ms > 2 * RECORDS_MIN)
    records, _ = query.run(60)
    query.run(extra_ms=factor * target_ms)
    query.run()
    lowest, _ = query.run()
    assert lowest >= min(records, records // STEP_MAX)
    _, work_ms = query.run(25)
    assert 0.95 * target_ms <= work_ms <= LONGEST * target_ms


@given(
    st.integers(200, 60_000).map(lambda ms: ms // 100 * 100),
    st.integers(10, 600).map(lambda steps: steps * 100),
    st.floats(1e-4, 0.02),
    st.floats(0, 5),
)
def test_waiting_for_the_trigger_is_no_work(target_ms, interval_ms, cost_ms, ask_ms):
    query = Query(target_ms, cost_ms, interval_ms=interval_ms, ask_ms=ask_ms)
    wanted_ms = max(target_ms, interval_ms)
    assume(wanted_ms / cost_ms > 2 * RECORDS_MIN)
    query.run(80)
    work = [query.run()[1] for _ in range(10)]
    assert max(work) <= 1.3 * wanted_ms
    assert sum(work) / 10 >= 0.8 * wanted_ms


@given(
    targets,
    st.lists(st.tuples(st.integers(0, 10**9), st.floats(0, 1e9), st.booleans()), max_size=30),
)
def test_it_never_starves_nor_leaps(target_ms, batches):
    pace = Pace(target_ms)
    assert pace.records_max == RECORDS_FIRST
    for record_count, took_ms, is_idle in batches:
        count = min(record_count, pace.records_max)
        after = pace.after(count, took_ms, is_idle=is_idle)
        assert after.records_max >= max(RECORDS_MIN, pace.records_max // STEP_MAX)
        assert after.records_max <= pace.records_max * STEP_MAX
        if is_idle or took_ms <= target_ms:
            assert after.records_max >= pace.records_max
        pace = after


@given(targets, costs_ms, st.integers(1, 500), st.integers(1, 50))
def test_a_trickle_takes_nothing_away_from_the_backlog_that_follows(
    target_ms, cost_ms, trickle, count
):
    query = Query(target_ms, cost_ms)
    assume(target_ms / cost_ms > 2 * RECORDS_MIN)
    query.run(30)
    before = query.pace.records_max
    query.backlog = trickle
    query.run(count)
    assert before <= query.pace.records_max <= 1.01 * before


@given(targets, costs_ms, st.floats(0.05, 20))
def test_it_follows_a_query_that_becomes_slower_or_faster(target_ms, cost_ms, factor):
    query = Query(target_ms, cost_ms)
    assume(min(1, 1 / factor) * target_ms / cost_ms > 2 * RECORDS_MIN)
    query.run(30)
    query.cost_ms *= factor
    query.run(30)
    _, work_ms = query.run()
    assert 0.98 * target_ms <= work_ms <= LONGEST * target_ms


@given(targets, costs_ms, st.floats(1.2, 20), st.integers(RECORDS_FIRST, 10**6))
def test_a_fixed_time_above_the_target_does_not_make_it_collapse(
    target_ms, cost_ms, overhead_part, records_max
):
    fixed_ms = overhead_part * target_ms
    least = RECORDS_PART * fixed_ms / cost_ms
    assume(least > 2 * STEP_MAX * RECORDS_MIN)
    *_, last = follow(Pace(target_ms, records_max), fixed_ms, cost_ms, 60)
    found = [pace.records_max for pace in follow(last, fixed_ms, cost_ms, 20)]
    assert min(found) >= least / STEP_MAX**2
    assert 0.9 * least <= max(found) <= 1.1 * least


@given(targets, costs_ms, st.floats(1.5, 5), st.floats(0, 0.7), st.floats(0.05, 20))
def test_a_fixed_time_that_goes_away_is_forgotten(
    target_ms, cost_ms, overhead_part, later_part, factor
):
    *_, last = follow(Pace(target_ms), overhead_part * target_ms, cost_ms, 40)
    overhead_ms, later_ms = later_part * target_ms, cost_ms * factor
    assume((target_ms - overhead_ms) / later_ms > 2 * RECORDS_MIN)
    *_, last = follow(last, overhead_ms, later_ms, 60)
    work_ms = overhead_ms + last.records_max * later_ms
    assert 0.98 * target_ms <= work_ms <= LONGEST * target_ms


def follow(pace, fixed_ms, cost_ms, count):
    """Yield the pace after each of `count` micro-batches of an endless backlog."""
    for _ in range(count):
        pace = pace.after(pace.records_max, fixed_ms + pace.records_max * cost_ms)
        yield pace


def test_a_target_that_cannot_be_kept_is_logged_once(caplog):
    query = Query(10_000, 0.01, overhead_ms=12_000)
    query.run(40)
    (record,) = caplog.records
    assert "fixed_s=12.0 target_s=10.0" in record.getMessage()
    caplog.clear()
    Query(10_000, 0.01, overhead_ms=7_000).run(40)
    assert not caplog.records
