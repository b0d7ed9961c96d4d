"""Which range servers count as alive."""

import pytest

from sbp_core.errors import NoRangeServerError
from sbp_core.pd.model import RangeServerRecord, ServerLoad
from sbp_core.pd.range_servers import Membership, Placement
from tests.support.clock import ManualClock

ONE = RangeServerRecord(1, "10.0.0.1:10911")
TWO = RangeServerRecord(2, "10.0.0.2:10911")


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def membership(clock):
    return Membership(clock, timeout_ms=15_000)


def test_no_server_is_alive_at_first(membership):
    assert membership.live_server_ids() == ()
    assert not membership.is_live(ONE)


def test_silence_ends_at_the_timeout_and_a_heartbeat_brings_back(membership, clock):
    membership.refresh(ONE)
    clock.advance(14_999)
    membership.refresh(TWO)
    assert membership.live_server_ids() == (1, 2)
    clock.advance(1)
    assert not membership.is_live(ONE)
    assert membership.live_server_ids() == (2,)
    membership.refresh(ONE)
    assert membership.live_server_ids() == (1, 2)


def test_a_server_that_says_how_often_it_is_heard_is_doubted_sooner(membership, clock):
    membership.refresh(ONE)
    membership.refresh(TWO, interval_ms=1_000)
    clock.advance(1_999)
    assert not membership.may_be_lost(2)
    clock.advance(1)
    assert [membership.may_be_lost(each) for each in (1, 2, 3)] == [False, True, False]
    assert membership.live_server_ids() == (1, 2), "it is given new ranges"
    membership.note_answer(2)
    assert not membership.may_be_lost(2)
    clock.advance(2_000)
    assert membership.may_be_lost(2)
    membership.listen()
    assert not membership.may_be_lost(2), "each has a full period under a new leader"
    clock.advance(2_000)
    assert membership.may_be_lost(2)
    membership.refresh(TWO)
    assert not membership.may_be_lost(2)
    membership.suspect([1])
    assert membership.may_be_lost(1)
    clock.advance(15_000)
    assert membership.may_be_lost(3)


def test_a_server_that_moves_is_alive_at_its_new_address_only(membership):
    moved = RangeServerRecord(1, "10.0.0.9:10911")
    membership.refresh(ONE)
    membership.refresh(moved)
    assert membership.is_live(moved)
    assert not membership.is_live(ONE)
    assert membership.live_server_ids() == (1,)


def test_a_new_server_at_an_address_replaces_the_old_one(membership):
    membership.refresh(ONE)
    membership.refresh(RangeServerRecord(7, ONE.address))
    assert membership.live_server_ids() == (7,)


def test_ranges_go_where_the_fewest_open_ones_are_then_to_the_smallest_id():
    placement = Placement(map(ServerLoad, [3, 1, 2]), {1: 2, 3: 1, 9: 0})
    assert [placement.next_servers(1, 1) for _ in range(6)] == [
        *[(2,), (2,), (3,)],
        *[(1,), (2,), (3,)],
    ]


def test_no_live_server_no_placement():
    with pytest.raises(NoRangeServerError, match="no range server is alive"):
        Placement([], {1: 0}).next_servers(1, 1)


def test_a_server_that_does_not_answer_is_live_again_with_its_next_heartbeat(membership):
    membership.refresh(ONE)
    membership.refresh(TWO)
    membership.suspect({2, 3})
    assert membership.live_server_ids() == (1,)
    membership.refresh(TWO)
    assert membership.live_server_ids() == (1, 2)


def test_a_server_that_leaves_is_silent_at_once(membership):
    membership.refresh(ONE)
    membership.leave(ONE)
    membership.leave(TWO)
    assert membership.live_server_ids() == ()


def test_a_driver_that_was_deaf_listens_before_it_decides(membership, clock):
    membership.refresh(ONE)
    clock.advance(15_000)
    assert membership.has_listened
    membership.listen()
    assert not membership.has_listened
    clock.advance(15_000)
    membership.refresh(TWO)
    membership.listen()
    assert membership.has_listened
