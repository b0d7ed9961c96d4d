"""The range servers of a cluster: DESCRIBE_SERVERS, and new members for sealed ranges."""

import asyncio
from dataclasses import replace

import pytest

from sbp_core.pd.model import NewStream, RangeRecord, RangeServerRecord, SealedRange, ServerLoad
from sbp_core.pd.placement import Placement
from sbp_core.pd.server_membership import Membership
from sbp_core.pd.streams.fail_over import in_turn
from sbp_core.pd.streams.repair import Repair
from sbp_core.wire.headers import RangeId
from tests.support.clock import ManualClock

# Members of sealed ranges


@pytest.fixture
def store(home):
    return home.open()


def new_stream(store, *server_ids, ack_count=1):
    new = NewStream(None, len(server_ids), ack_count, 0, server_ids)
    ((stream, _),) = store.create_streams([new], 1)
    return stream.stream_id


def members(store, stream_id):
    (found,) = store.ranges_after((stream_id, -1), 1, stream_id=stream_id, server_id=None)
    return found.server_ids


def test_the_members_of_a_range_change_only_when_it_is_sealed(store):
    stream_id = new_stream(store, 1, 2, 3)
    assert not store.change_replicas(stream_id, 0, added=[4], removed=[])
    store.seal_ranges([SealedRange(stream_id, 0, 7, b"", 3, b"d" * 16)])
    revision = store.revision()
    assert store.change_replicas(stream_id, 0, added=[4, 2], removed=[])
    assert members(store, stream_id) == (1, 2, 3, 4)
    assert store.revision() > revision
    assert store.change_replicas(stream_id, 0, added=[], removed=[1, 9])
    assert members(store, stream_id) == (2, 3, 4)
    assert store.change_replicas(stream_id, 0, added=[5], removed=[2])
    assert members(store, stream_id) == (3, 4, 5)
    assert not store.change_replicas(stream_id, 0, added=[], removed=[3, 4, 5])
    assert members(store, stream_id) == (3, 4, 5)
    assert not store.change_replicas(stream_id, 1, added=[4], removed=[])


def test_the_members_of_a_range_with_one_replica_never_change(store):
    stream_id = new_stream(store, 1)
    store.seal_ranges([SealedRange(stream_id, 0, 7)])
    assert not store.change_replicas(stream_id, 0, added=[4], removed=[])
    assert store.sealed_replicated_ranges((-1, -1), 10) == []


def test_a_newcomer_is_of_another_rack_with_room_and_the_next_one_another_server():
    servers = [
        ServerLoad(1, rack="a"),
        ServerLoad(2, rack="b"),
        ServerLoad(3, rack="b"),
        ServerLoad(4, 0, rack="c"),
        ServerLoad(5, 1, rack="c"),
        ServerLoad(6, rack="a"),
        ServerLoad(7, rack="b"),
    ]
    placement = Placement(servers, {})
    assert placement.maybe_newcomer((1,), (1,)) == 2
    assert placement.maybe_newcomer((1,), (1,)) == 3
    assert placement.maybe_newcomer((1, 2, 3, 7), (1, 2)) == 6
    assert placement.maybe_newcomer((1, 2, 3, 6, 7), (1,)) is None, "full, or nearly"


@pytest.mark.parametrize(
    ("has_fourth", "restarting", "can_be_changed", "obstacle"),
    [
        (False, None, True, None),
        (True, None, True, None),
        (True, 4, False, "range servers that could have its ranges are down (4): "),
        (False, 2, True, "range servers are down that have to have complete copies first (2): "),
    ],
    ids=["no other server", "another server", "which restarts", "a member restarts"],
)
def test_a_drained_replica_stays_while_another_server_restarts(
    store, has_fourth, restarting, can_be_changed, obstacle
):
    """One that restarts will have a copy soon; until then there would be one less."""
    for each in (1, 2, 3, 4)[: 3 + has_fourth]:
        assert store.servers.allocate_id() == each
        store.servers.register(RangeServerRecord(each, f"h:{each}"))
    stream_id = new_stream(store, 1, 2, 3)
    store.seal_ranges([SealedRange(stream_id, 0, 5, b"", 3, b"d" * 16)])
    clock = ManualClock()
    membership = Membership(clock, 1_000)
    for each in (1, 2, 3, 4)[: 3 + has_fourth]:
        if each != restarting:
            membership.refresh(RangeServerRecord(each, f"h:{each}"))
    membership.draining = frozenset({1})
    repair = Repair(None, membership, None, None, clock, replace_after_ms=600_000)
    (found,) = repair._with_newcomers(
        store,
        store.ranges_after((stream_id, -1), 1, stream_id=stream_id, server_id=None),
        membership.live_servers(),
    )
    assert found.kept == (2, 3)
    assert found.newcomer == (4 if has_fourth and restarting != 4 else None)
    assert found.can_be_changed == can_be_changed
    assert found.wanted_count == (3 if has_fourth else 2), "all that are kept have to be settled"
    told = repair._maybe_obstacle(found, {2, 3} - {restarting})
    assert told is obstacle is None or told.startswith(obstacle)


@pytest.mark.parametrize(
    ("free_bytes", "obstacle"),
    [
        ({4: 1}, "range servers 4 have too little free space for its ranges: "),
        ({}, "there is no other range server for its ranges: start another one"),
    ],
)
def test_a_drained_replica_stays_while_no_other_server_has_room(store, free_bytes, obstacle):
    clock = ManualClock()
    membership = Membership(clock, 1_000)
    for each in (1, 2, *free_bytes):
        store.servers.allocate_id()
        store.servers.allocate_id()
        server = RangeServerRecord(each, f"h:{each}")
        store.servers.register(server)
        membership.refresh(server)
    for each, free in free_bytes.items():
        membership.report(ServerLoad(each, free))
    stream_id = new_stream(store, 1, 2, ack_count=2)
    store.seal_ranges([SealedRange(stream_id, 0, 5, b"", 3, b"d" * 16)])
    membership.draining = frozenset({1})
    repair = Repair(None, membership, None, None, clock, replace_after_ms=600_000)
    assert repair._find_next(store, membership.live_servers(), (), 10) == []
    assert repair._maybe_obstacle(repair._blocked[1], ()).startswith(obstacle)


def test_a_range_that_waits_for_a_server_that_is_down_keeps_no_other_waiting(store):
    """Server 2 is down, for less time than it takes until it is replaced, and 3 is new."""
    clock = ManualClock()
    membership = Membership(clock, 1_000)
    for each in (1, 2, 3):
        store.servers.allocate_id()
        store.servers.register(RangeServerRecord(each, f"h:{each}"))
        if each != 2:
            membership.refresh(RangeServerRecord(each, f"h:{each}"))
    ((stream, _),) = store.create_streams([NewStream(None, 3, 2, 0, (1, 2))], 1)
    stream_id = stream.stream_id
    for index, end in enumerate((5, 10, 15)):
        store.seal_ranges([SealedRange(stream_id, index, end, b"", 3, b"d" * 16)])
        store.create_ranges([RangeRecord(stream_id, index + 1, end, None, 2, (1, 2))])
    repair = Repair(None, membership, None, None, clock, replace_after_ms=600_000)
    repair._live = frozenset({1, 3})
    for index in (2, 1, 0):  # appends may wait for the newest one
        (found,) = repair._find_next(store, membership.live_servers(), (), 10)
        assert (found.key, found.newcomer) == ((stream_id, index), 3)
        store.change_replicas(*found.key, added=[3], removed=())
        record = replace(found.record, server_ids=(1, 2, 3))
        found = replace(found, record=record, kept=(1, 2, 3), newcomer=None)
        repair._copied[found.key] = 0.0
        asyncio.run(repair._go_on(found, {1}))
        assert found.key in repair._copied, "3 copies it"
        asyncio.run(repair._go_on(found, {1, 3}))
        assert not repair._copied, "it waits for 2"
    assert repair._find_next(store, membership.live_servers(), (), 10) == []


def test_ranges_of_drained_servers_do_not_keep_others_waiting():
    drained = [RangeId(stream_id, 0) for stream_id in range(5)]
    others = [RangeId(stream_id, 0) for stream_id in range(7, 9)]
    assert [each.stream_id for each in in_turn(drained, others)] == [0, 7, 1, 8, 2, 3, 4]
