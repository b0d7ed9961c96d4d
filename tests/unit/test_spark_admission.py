from __future__ import annotations

import pytest

from sbp_spark.streaming.trigger import admit


def test_without_a_limit_everything_is_admitted():
    assert admit({1: 5, 2: 0}, {1: 9, 2: 100}, records_max=None) == {1: 9, 2: 100}


def test_a_limit_that_is_not_reached_changes_nothing():
    assert admit({1: 5, 2: 0}, {1: 9, 2: 3}, records_max=7) == {1: 9, 2: 3}


@pytest.mark.parametrize("records_max", [None, 3, 100])
def test_a_tail_that_is_missing_or_behind_leaves_the_stream_where_it_is(records_max):
    ends = admit({1: 5, 2: 7, 3: 0}, {1: 3, 3: 2}, records_max=records_max)
    assert ends == {1: 5, 2: 7, 3: 2}


def test_backlogs_are_served_in_proportion():
    starts = {1: 10, 2: 20, 3: 30}
    ends = admit(starts, {1: 110, 2: 220, 3: 730}, records_max=100)
    assert ends == {1: 10 + 10, 2: 20 + 20, 3: 30 + 70}


def test_a_short_backlog_is_not_passed_over():
    starts = dict.fromkeys((1, 2, 3), 0)
    tails = {1: 10**9, 2: 1, 3: 1}
    ends = [admit(starts, tails, records_max=10, turn=turn) for turn in range(3)]
    assert [each[2] + each[3] for each in ends] == [1, 2, 1]
    assert {sum(each.values()) for each in ends} == {10}


def test_bytes_are_counted_by_the_size_of_a_record():
    starts, tails = {1: 0, 2: 0}, {1: 1000, 2: 1000}
    sizes = {1: 10, 2: 90}
    ends = admit(starts, tails, bytes_max=10_000, record_bytes=sizes)
    assert 90 <= ends[1] <= 110
    assert 90 <= ends[2] <= 110
    assert ends[1] * 10 + ends[2] * 90 <= 10_000
    assert admit(starts, tails, records_max=6, bytes_max=10_000, record_bytes=sizes) == {1: 3, 2: 3}


def test_one_record_is_admitted_however_long_it_is():
    sizes = {1: 10**6, 2: 10}
    ends = [
        admit({1: 0, 2: 0}, {1: 5, 2: 5}, bytes_max=100, record_bytes=sizes, turn=turn)
        for turn in range(2)
    ]
    assert ends == [{1: 1, 2: 0}, {1: 0, 2: 5}]


def test_idle_streams_take_no_turn():
    starts = dict.fromkeys(range(5), 0)
    assert admit(starts, {1: 1, 4: 1}, records_max=1, turn=2) == {**starts, 4: 1}
    assert admit(starts, {1: 1, 4: 1}, records_max=1, turn=0) == {**starts, 1: 1}


def test_no_streams():
    assert admit({}, {}, records_max=1) == {}


def test_huge_backlogs_do_not_round():
    starts = {1: 0, 2: 0}
    ends = admit(starts, {1: 2**63 - 1, 2: 2**63 - 1}, records_max=2**60 + 1)
    assert sorted(ends.values()) == [2**59, 2**59 + 1]
