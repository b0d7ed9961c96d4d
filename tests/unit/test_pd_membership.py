"""Which range servers count as alive."""

import pytest

from sbp_core.errors import NoRangeServerError
from sbp_core.pd.model import RangeServerRecord, ServerLoad
from sbp_core.pd.placement import Placement
from sbp_core.pd.server_membership import Membership
from tests.support.clock import ManualClock

ONE = RangeServerRecord(1, "10.0.0.1:10911")
TWO = RangeServerRecord(2, "10.0.0.2:10911")


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def membership(clock):
    return Membership(clock, timeout_ms=15_000)


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


def lapse(membership, clock):
    """Let server 2 be silent once, and come back."""
    membership.suspect([2])
    clock.advance(1_000)
    membership.refresh(ONE)
    membership.refresh(TWO)


def test_a_server_that_flaps_gets_no_new_ranges_for_a_time_that_doubles(membership, clock):
    membership.refresh(ONE)
    membership.refresh(TWO)
    for seconds in (0, 0, 60, 120, 240):
        lapse(membership, clock)
        clock.advance(1_000 * max(0, seconds - 2))
        assert membership.load_of(2).is_unsteady == (seconds > 0)
        clock.advance(1_000)
        assert not membership.load_of(2).is_unsteady
        membership.refresh(ONE)
        membership.refresh(TWO)
    assert not membership.load_of(1).is_unsteady
    clock.advance(1_200_001)
    membership.refresh(TWO)
    lapse(membership, clock)
    assert not membership.load_of(2).is_unsteady, "what was long ago is forgotten"


def test_a_server_that_stops_in_good_order_is_no_less_steady(membership, clock):
    for _ in range(5):
        membership.refresh(TWO)
        membership.leave(TWO)
    membership.refresh(TWO)
    assert not membership.load_of(2).is_unsteady


def test_unsteady_servers_are_used_only_where_others_are_too_few():
    steady, unsteady = [ServerLoad(1), ServerLoad(2)], ServerLoad(3, is_unsteady=True)
    placement = Placement([*steady, unsteady], {})
    assert (placement.server_count, placement.next_servers(3, 2)) == (2, (1, 2))
    assert set(placement.next_servers(3, 3)) == {1, 2, 3}
    alone = Placement([steady[0], unsteady], {})
    assert alone.next_servers(1, 1) == (1,)
    assert len(alone.next_servers(3, 1)) == 2, "one copy is too few"
    lost = Placement([*steady, unsteady], {})
    assert lost.maybe_newcomer({1, 2}, {1, 2}) == 3, "a copy has no other place"
