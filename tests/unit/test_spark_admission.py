from __future__ import annotations

import pytest

from sbp_spark.admission import admit


def test_without_a_limit_everything_is_admitted():
    assert admit({1: 5, 2: 0}, {1: 9, 2: 100}, records_max=None) == {1: 9, 2: 100}


def test_a_limit_that_is_not_reached_changes_nothing():
    assert admit({1: 5, 2: 0}, {1: 9, 2: 3}, records_max=7) == {1: 9, 2: 3}


@pytest.mark.parametrize("records_max", [None, 3, 100])
def test_a_tail_that_is_missing_or_behind_leaves_the_stream_where_it_is(records_max):
    ends = admit({1: 5, 2: 7, 3: 0}, {1: 3, 3: 2}, records_max=records_max)
    assert ends == {1: 5, 2: 7, 3: 2}


def test_a_short_stream_gets_all_of_it_and_the_others_share():
    starts = {1: 10, 2: 20, 3: 30}
    assert admit(starts, {1: 12, 2: 1000, 3: 1000}, records_max=20) == {1: 12, 2: 29, 3: 39}


def test_odd_records_go_round():
    starts = dict.fromkeys((1, 2, 3), 0)
    tails = dict.fromkeys(starts, 100)
    ends = [tuple(admit(starts, tails, records_max=4, turn=turn).values()) for turn in range(4)]
    assert ends == [(2, 1, 1), (1, 2, 1), (1, 1, 2), (2, 1, 1)]


def test_fewer_records_than_streams_are_served_in_tiles():
    starts = dict.fromkeys(range(5), 0)
    tails = dict.fromkeys(starts, 9)
    served = [
        [
            stream_id
            for stream_id, end in admit(starts, tails, records_max=2, turn=turn).items()
            if end
        ]
        for turn in range(3)
    ]
    assert served == [[0, 1], [2, 3], [0, 4]]


def test_idle_streams_take_no_turn():
    starts = dict.fromkeys(range(5), 0)
    assert admit(starts, {1: 1, 4: 1}, records_max=1, turn=2) == {**starts, 4: 1}
    assert admit(starts, {1: 1, 4: 1}, records_max=1, turn=0) == {**starts, 1: 1}


def test_no_records_and_no_streams():
    assert admit({1: 5}, {1: 9}, records_max=0) == {1: 5}
    assert admit({}, {}, records_max=1) == {}


def test_huge_backlogs_do_not_round():
    starts = {1: 0, 2: 0}
    ends = admit(starts, {1: 2**63 - 1, 2: 2**63 - 1}, records_max=2**60 + 1)
    assert sorted(ends.values()) == [2**59, 2**59 + 1]
