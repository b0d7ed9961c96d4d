"""Placement and membership against their plain definitions."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sbp_core import limits
from sbp_core.errors import NoRangeServerError
from sbp_core.pd.model import RangeServerRecord, ServerLoad
from sbp_core.pd.placement import Placement
from sbp_core.pd.server_membership import Membership
from tests.support.clock import ManualClock

SERVER_IDS = st.integers(1, 6)
COUNTS = st.dictionaries(SERVER_IDS, st.integers(0, 5))
FLOOR = limits.PLACEMENT_DISK_FREE_BYTES
LOADS = st.tuples(st.sampled_from([0, 1, FLOOR - 1, FLOOR, 2 * FLOOR]), st.integers(0, 3))


@given(st.sets(SERVER_IDS, min_size=1), COUNTS, st.integers(0, 40))
def test_each_range_goes_to_the_least_loaded_server(live, counts, count):
    placement = Placement(map(ServerLoad, live), counts)
    load = {server_id: counts.get(server_id, 0) for server_id in live}
    for _ in range(count):
        (chosen,) = placement.next_servers(1, 1)
        assert (load[chosen], chosen) == min((n, server_id) for server_id, n in load.items())
        load[chosen] += 1


@given(st.dictionaries(SERVER_IDS, LOADS, min_size=1), COUNTS, st.integers(1, 20))
def test_room_comes_before_open_ranges_and_they_before_the_append_rate(loads, counts, count):
    placement = Placement((ServerLoad(each, *load) for each, load in loads.items()), counts)
    usable = {each: load for each, load in loads.items() if load[0] > 0}
    open_count = {each: counts.get(each, 0) for each in usable}
    if not usable:
        with pytest.raises(NoRangeServerError, match="full"):
            placement.next_servers(1, 1)
        return
    for _ in range(count):
        (chosen,) = placement.next_servers(1, 1)
        assert chosen == min(
            usable,
            key=lambda each: (usable[each][0] < FLOOR, open_count[each], usable[each][1], each),
        )
        open_count[chosen] += 1


def test_a_server_that_never_reported_is_neutral():
    busy, idle = ServerLoad(1, FLOOR, 100), ServerLoad(3, FLOOR, 0)
    placement = Placement([busy, ServerLoad(2), idle, ServerLoad(4, 1, 0)], {})
    assert [placement.next_servers(1, 1) for _ in range(4)] == [(3,), (2,), (1,), (3,)]


@given(
    st.lists(st.tuples(SERVER_IDS, st.integers(1, 3), st.integers(0, 600))), st.integers(100, 1000)
)
@example([(1, 1, 157), (2, 2, 187)], 187)
def test_alive_is_who_was_heard_last_at_its_address_within_the_timeout(steps, timeout_ms):
    clock = ManualClock()
    membership = Membership(clock, timeout_ms)
    now, heard = 0, []
    for server_id, port, pause_ms in steps:
        clock.advance(pause_ms)
        now += pause_ms
        membership.refresh(RangeServerRecord(server_id, f"10.0.0.1:{port}"))
        heard.append((now, server_id, port))
        expected = set()
        for index, (at, other_id, other_port) in enumerate(heard):
            overtaken = any(
                later_id == other_id or later_port == other_port
                for _, later_id, later_port in heard[index + 1 :]
            )
            if not overtaken and now - at < timeout_ms:
                expected.add(other_id)
        assert membership.live_server_ids() == tuple(sorted(expected))
