"""How far a micro-batch goes: limits together, the pace, and how long records are taken to be."""

from __future__ import annotations

import pytest

from sbp_core.client import Reach
from sbp_spark.options.source import TriggerLimits
from sbp_spark.reading.partition_planning import RECORD_BYTES_UNKNOWN, RecordSizeEstimates
from sbp_spark.streaming.admission import Admission
from sbp_spark.streaming.backlog import Backlog
from sbp_spark.streaming.pace import RECORDS_FIRST, STEP_MAX
from sbp_spark.streaming.stream_watch import Snapshot
from tests.support.clock import ManualClock


class FakeServer:
    """Streams of `tails[stream]` records of `sizes[stream]` bytes; None: its servers are down."""

    def __init__(self, **sizes):
        self.sizes = {int(name[1:]): size for name, size in sizes.items()}
        self.tails = dict.fromkeys(self.sizes, 1000)
        self.asked = []

    def reach(self, positions, *, timeout_ms, spared):
        self.asked.append(sorted(positions))
        return {
            each: Reach(each, 0, None if self.sizes[each] is None else self.tails[each], ())
            for each in positions
        }

    def stored_bytes(self, stream_ids, *, timeout_ms):
        known = {each: self.sizes[each] for each in stream_ids}
        return {each: size * self.tails[each] for each, size in known.items() if size is not None}


def backlog(bases=(), starts=None, **tails):
    ends = {int(name[1:]): tail for name, tail in tails.items()}
    starts = starts or dict.fromkeys(ends, 0)
    return Backlog(Snapshot(), dict.fromkeys(bases, 0), starts, ends, {})


def admission(clock=None, server=None, **limits):
    clock = clock or ManualClock()
    sizes = RecordSizeEstimates(server or FakeServer())
    now = clock.monotonic
    return Admission(TriggerLimits(**limits), sizes, clock=now, wall=now)


def test_the_size_of_a_record_is_the_average_of_its_stream():
    server = FakeServer(s1=10_000, s2=100)
    sizes = RecordSizeEstimates(server)
    assert sizes.estimate({1: 5, 2: 7}, {1: 1000, 2: 1000}) == {1: 10_000, 2: 100}
    assert server.asked == [[1, 2]]


def test_a_stream_is_asked_about_again_when_it_has_doubled():
    server = FakeServer(s1=1000, s2=1000)
    server.tails[1] = 20_000
    sizes = RecordSizeEstimates(server)
    for tail in (20_000, 30_000, 40_000):
        sizes.estimate({1: 5, 2: 7}, {1: tail, 2: 7})
    assert server.asked == [[1]]
    server.sizes[1] = 5000
    assert sizes.estimate({1: 6, 2: 7}, {1: 40_001, 2: 7})[1] == 5000
    assert server.asked == [[1], [1]]


def test_a_record_of_a_server_that_is_down_counts_as_the_longest_known():
    server = FakeServer(s1=None, s2=2000)
    sizes = RecordSizeEstimates(server)
    assert sizes.estimate({1: 0}, {1: 9}) == {1: RECORD_BYTES_UNKNOWN}
    assert sizes.estimate({1: 0, 2: 0}, {1: 9, 2: 9}) == {1: 2000, 2: 2000}


def test_bytes_limit_a_micro_batch():
    server = FakeServer(s1=1000, s2=1000)
    limited = admission(server=server, bytes_max=50_000)
    ends = limited.ends(backlog(s1=1000, s2=1000), is_waiting_allowed=True)
    assert 30 <= sum(ends.values()) <= 50
    both = admission(server=server, bytes_max=50_000, records_max=7)
    assert sum(both.ends(backlog(s1=1000, s2=1000), is_waiting_allowed=True).values()) == 7


def test_sizes_are_asked_for_only_where_they_count():
    server = FakeServer(s1=1000)
    admission(server=server, records_max=7).ends(backlog(s1=1000), is_waiting_allowed=True)
    assert server.asked == []


def test_a_micro_batch_waits_for_enough_records_but_not_too_long():
    clock = ManualClock()
    paced = admission(clock, records_min=10, delay_ms_max=60_000)

    def read(**tails):
        return sum(paced.ends(backlog(**tails), is_waiting_allowed=True).values())

    assert read(s1=1) == 1
    assert read(s1=5, s2=4) == 0
    assert read(s1=5, s2=5) == 10
    clock.advance(59_900)
    assert read(s1=9) == 0
    clock.advance(100)
    assert read(s1=9) == 9
    assert read(s1=9) == 0


def test_a_micro_batch_that_is_full_does_not_wait_for_more():
    clock = ManualClock()
    by_time = admission(clock, records_min=100_000, target_ms=10_000)
    by_bytes = admission(clock, FakeServer(s1=1000), records_min=100, bytes_max=50_000)
    for limited, least in ((by_time, RECORDS_FIRST), (by_bytes, 30)):
        limited.ends(backlog(s1=1), is_waiting_allowed=True)
        assert limited.ends(backlog(s1=20), is_waiting_allowed=True) == {1: 0}
        (end,) = limited.ends(backlog(s1=90_000), is_waiting_allowed=True).values()
        assert least <= end < 90_000


def test_a_micro_batch_takes_what_fits_into_its_time():
    clock = ManualClock()
    run = admission(clock, target_ms=10_000)
    sizes = []
    for _ in range(6):
        run.on_asked()
        sizes += run.ends(backlog(s1=10**9), is_waiting_allowed=False).values()
        clock.advance(sizes[-1] // 100 + 123)
    assert sizes[0] == RECORDS_FIRST
    assert sizes[1] == RECORDS_FIRST * STEP_MAX
    assert 950_000 < sizes[-1] < 1_100_000


def test_the_time_does_not_lift_other_limits():
    clock = ManualClock()
    run = admission(clock, target_ms=10_000, records_max=12_345)
    sizes = []
    for _ in range(3):
        run.on_asked()
        sizes += run.ends(backlog(s1=10**9), is_waiting_allowed=True).values()
        clock.advance(1_000)
    assert sizes == [RECORDS_FIRST, 12_345, 12_345]


def test_time_without_a_micro_batch_is_no_micro_batch():
    clock = ManualClock()
    run = admission(clock, target_ms=1_000, records_min=10)
    run.ends(backlog(s1=20_000), is_waiting_allowed=True)
    clock.advance(777)
    for tail in (0, 5):
        run.on_asked()
        run.ends(backlog(s1=tail), is_waiting_allowed=True)
        clock.advance(3_333)
    run.on_asked()
    ends = run.ends(backlog(s1=20_000), is_waiting_allowed=True)
    assert ends == {1: RECORDS_FIRST * 1_000 // 777}


@pytest.mark.parametrize("reason", ["available now", "a new stream"])
def test_available_now_and_new_streams_are_not_delayed(reason):
    paced = admission(records_min=10, records_max=20)
    paced.ends(backlog(s1=1), is_waiting_allowed=True)
    bases = (1,) if reason == "a new stream" else ()
    ends = paced.ends(backlog(bases, s1=1), is_waiting_allowed=reason != "available now")
    assert ends == {1: 1}
