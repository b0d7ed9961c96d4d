"""The parts of the soak that need no server: its records, its plan of restarts, its verdict."""

from __future__ import annotations

import os
from collections import Counter
from itertools import islice
from signal import SIGKILL, SIGTERM

import pytest

from benchmarks.core.soak import board, records
from benchmarks.core.soak.board import Board
from benchmarks.core.soak.cluster import longest_pause, planned_restarts
from benchmarks.core.soak.report import Records, Result
from benchmarks.core.soak.sampling import (
    APPENDED_BYTES,
    Look,
    Process,
    Usage,
    maybe_usage,
    totals,
)
from benchmarks.core.soak.verdict import judge
from sbp_core.records import split_envelopes

SERVER = Process("range-server-1", 17)


def looks(minutes, *, process=SERVER, begin=0.0, usage=lambda _: Usage(1, 1, 1, 1)):
    """Looks at a process every five seconds; `usage` gets the minute of the soak."""
    times = [at for at in range(0, 60 * minutes + 1, 5) if at >= 60 * begin]
    return [Look(1e6 + at, {process: usage(at / 60)}, {}) for at in times]


def mib(count):
    return Usage(1024 * round(count), 1024 * round(count), 20, 5)


class TestRecords:
    @pytest.mark.parametrize("name", [records.ORDERS, records.CLICKS])
    def test_a_reader_gets_writer_and_numbers(self, name):
        values = records.new_values(100_000)
        (envelope,) = split_envelopes(records.encode(name, 3, 2, 40, values))
        assert list(records.decode(envelope)) == [(2, 40 + at) for at in range(len(values))]

    def test_values_have_about_the_size_that_was_asked_for(self):
        assert 100_000 <= sum(map(len, records.new_values(100_000))) < 100_000 + 65_536

    def test_a_number_is_new_once_in_whatever_order_they_come(self):
        received = records.Received()
        assert [received.add(number) for number in (0, 2, 3, 1, 4)] == [True] * 5
        assert [received.add(number) for number in (0, 2, 4)] == [False] * 3
        assert (received.end, received.ahead) == (5, set())

    def test_what_is_read_behind_a_gap_is_not_remembered_for_ever(self):
        received = records.Received(ahead_max=10)
        assert all(received.add(number) for number in range(5, 105))
        assert (received.end, received.ahead) == (105, set())


class TestRestarts:
    def test_each_server_gets_both_signals_in_turn(self):
        names = ("pd", "range-server-1", "range-server-2", "console")
        planned = list(islice(planned_restarts(names), 8))
        assert [name for name, _ in planned] == [*names, *names]
        assert Counter(planned) == {(each, how): 1 for each in names for how in (SIGTERM, SIGKILL)}
        assert [how for _, how in planned[:4]] == [SIGTERM, SIGKILL, SIGTERM, SIGKILL]

    def test_the_longest_pause_is_that_of_one_writer(self):
        samples = [(0.0, (0, 0)), (1.0, (1, 0)), (2.0, (2, 1)), (3.0, (2, 2)), (5.0, (3, 3))]
        assert longest_pause(samples) == 3.0

    def test_a_pause_that_has_not_ended_counts(self):
        assert longest_pause([(0.0, (0,)), (1.0, (1,)), (9.0, (1,))]) == 8.0


class TestVerdict:
    def test_what_grows_during_the_warm_up_is_flat(self):
        (found,) = judge(looks(30, usage=lambda minute: mib(min(minute, 5) * 100)))
        assert found.courses.anonymous.growth == 0
        assert found.faults == []

    def test_a_slow_leak_is_found(self):
        (found,) = judge(looks(30, usage=lambda minute: mib(100 + 2 * minute)))
        assert found.courses.anonymous.growth == pytest.approx(48, abs=1)
        assert found.courses.anonymous.per_hour == pytest.approx(120, abs=2)
        assert found.faults == ["memory +48 MiB"]

    @pytest.mark.parametrize(("change", "is_flat"), [(8, True), (9, False), (-9, True)])
    def test_descriptors_do_not_grow(self, change, is_flat):
        (found,) = judge(looks(30, usage=lambda at: Usage(1, 1, 50 + change * (at > 20), 1)))
        assert (found.faults == []) is is_flat

    def test_pages_of_files_are_not_judged(self):
        (found,) = judge(looks(30, usage=lambda minute: Usage(10**6 * round(minute), 1, 1, 1)))
        assert found.courses.resident.growth > 1000
        assert found.faults == []

    def test_a_restarted_process_begins_again(self):
        before = looks(15, usage=lambda _: mib(200))
        after = looks(30, process=Process(SERVER.name, 18), begin=15.1, usage=lambda _: mib(90))
        found = judge([*before, *after])
        assert [each.process.pid for each in found] == [17, 18]
        assert [each.courses.anonymous.first for each in found] == [200, 90]
        assert [each.faults for each in found] == [[], []]

    def test_a_leak_of_one_life_is_found(self):
        before = looks(15, usage=lambda _: mib(200))
        after = looks(
            30, process=Process(SERVER.name, 18), begin=15.1, usage=lambda at: mib(4 * at)
        )
        assert [bool(each.faults) for each in judge([*before, *after])] == [False, True]

    @pytest.mark.parametrize(("minutes", "is_judged"), [(6, False), (7, True)])
    def test_a_short_life_is_not_judged(self, minutes, is_judged):
        (found,) = judge(looks(minutes))
        assert (found.courses is not None) is is_judged


class TestResult:
    def result(self, *found, failure=""):
        return Result(looks(7), [], found, {"pages loaded": 3}, failure)

    def test_lost_and_doubled_records_are_faults(self):
        result = self.result(Records("orders", 0, 10, 8, 0), Records("copies", 0, 10, 10, 1))
        assert result.faults == ["orders, writer 0: 2 lost", "copies, writer 0: 1 doubled"]
        assert "MISSED orders, writer 0: 2 lost" in result.show()

    def test_all_bars_hold(self):
        result = self.result(Records("orders", 0, 10, 10, 0))
        assert result.faults == []
        assert "all bars held" in result.show()
        assert len(result.as_json()["samples"]["range-server-1 17"]) == 85

    def test_a_soak_that_ended_early_has_missed_its_bars(self):
        assert self.result(failure="pd has ended").faults == ["pd has ended"]

    def test_counters_of_all_lives_are_added(self):
        seen = [
            Look(at, {}, {Process("a", pid): {APPENDED_BYTES: count} if count else {}})
            for at, (pid, count) in enumerate([(1, 5.0), (1, 7.0), (1, 0), (2, 4.0)])
        ]
        assert totals(seen)[APPENDED_BYTES] == 11


class TestSampling:
    def test_a_process_has_memory_threads_and_descriptors(self):
        before = maybe_usage(os.getpid())
        with open(os.devnull) as _, open(os.devnull) as _:
            now = maybe_usage(os.getpid())
        assert now.descriptors == before.descriptors + 2
        assert now.resident_kib >= now.anonymous_kib > 0
        assert now.threads >= 1

    def test_files_of_the_log_are_not_among_the_descriptors_until_they_are_removed(self, tmp_path):
        path = tmp_path / "000001.log"
        path.touch()
        before = maybe_usage(os.getpid())
        with path.open():
            assert maybe_usage(os.getpid()).descriptors == before.descriptors
            path.unlink()
            assert maybe_usage(os.getpid()).descriptors == before.descriptors + 1

    def test_one_that_has_ended_has_none(self):
        child = os.posix_spawn("/bin/true", ["true"], {})
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        assert maybe_usage(child) is None  # a zombie
        os.waitpid(child, 0)
        assert maybe_usage(child) is None

    def test_counters_begin_with_nothing(self):
        counters = Board()
        counters.add(board.QUERIES, 2)
        assert (counters[board.PAGES], counters[board.QUERIES]) == (0, 2)
