"""The range servers of a cluster: DESCRIBE_SERVERS, and new members for sealed ranges."""

import asyncio
from dataclasses import replace

import pytest

from sbp_core.pd.model import NewStream, RangeRecord, RangeServerRecord, SealedRange, ServerLoad
from sbp_core.pd.range_servers import Membership, Placement
from sbp_core.pd.streams.fail_over import in_turn
from sbp_core.pd.streams.repair import Repair
from sbp_core.wire.headers import (
    DescribeServersRequest,
    DrainServersRequest,
    RangeId,
    RangeServer,
    ReportMetricsRequest,
    ServerDescription,
    Stream,
)
from sbp_core.wire.opcodes import Opcode
from tests.support.clock import ManualClock
from tests.support.placement_driver import by_stream, running


def run(tmp_path, test):
    async def main():
        async with running(tmp_path) as cluster:
            return await test(cluster)

    return asyncio.run(main())


async def described(cluster):
    (answer,) = await cluster.client.ask(Opcode.DESCRIBE_SERVERS, DescribeServersRequest())
    assert answer.status.code == 0
    return answer


def test_servers_are_described_with_their_ranges_and_what_they_reported(tmp_path, caplog):
    async def test(cluster):
        addresses = ("h:1", "h:2")
        first, second = [await cluster.add_server(each, "east") for each in addresses]
        await cluster.create(
            Stream(replica_nums=2, ack_count=1),
            Stream(replica_nums=3, ack_count=1),
            Stream(replica_nums=1),
        )
        assert "replicas missing streams=1 first=2 wanted=3 range_servers=2: " in caplog.text
        await cluster.driver._store.run(lambda store: store.seal_ranges([SealedRange(3, 0, 7)]))
        await cluster.beat(first, "h:1", "east")
        load = ReportMetricsRequest(
            RangeServer(first, "h:1", "east"), disk_free_space=5, range_missing_replica_cnt=2
        )
        await cluster.client.ask(Opcode.REPORT_METRICS, load)
        answer = await described(cluster)
        assert (answer.lacking_range_cnt, answer.missing_replica_cnt) == (1, 1)
        assert answer.servers == (
            ServerDescription(RangeServer(first, "h:1", "east"), True, 5, 1, 1, 1, 1, 2),
            ServerDescription(RangeServer(second, "h:2", "east"), True, -1, 1, 1, 0, 0, 0),
        )
        cluster.clock.advance(15_000)
        await cluster.beat(second, "h:2", "east")
        assert [each.is_live for each in (await described(cluster)).servers] == [False, True]

    run(tmp_path, test)


def test_ranges_in_which_nothing_can_be_appended_are_named_with_the_remedy(tmp_path):
    async def test(cluster):
        async def halted():
            answer = await described(cluster)
            if answer.halted is None:
                return [], None
            found = [(each.stream_id, each.range_index) for each in answer.halted.some]
            assert answer.halted.range_cnt == len(found)
            return found, answer.halted.cause

        async def beat(*server_ids):
            cluster.clock.advance(15_000)
            for each in server_ids:
                await cluster.beat(each, f"h:{each}")

        for number in (1, 2, 3):
            assert await cluster.add_server(f"h:{number}") == number
        await cluster.create(Stream(replica_nums=3, ack_count=2))
        await cluster.create(Stream(replica_nums=3, ack_count=3))
        await cluster.create(Stream(replica_nums=1))
        places = await ranges_by_primary(cluster)
        assert places == {1: 1, 2: 2, 3: 3}
        assert await halted() == ([], None)
        await beat(1, 2)
        found, cause = await halted()
        assert found == [(2, 0), (3, 0)]
        assert cause.startswith("down: range servers 3 (h:3); start them with their data. ")
        assert cause.endswith("if its server is lost permanently, so are its records; delete it")
        (obstacle,) = [each.drain_obstacle for each in await drained(cluster, 3)]
        assert "1 open ranges have their only replica on this server, which is down" in obstacle
        await beat(1, 3)
        found, cause = await halted()
        assert found == [(2, 0)]
        assert cause == (
            "down: range servers 2 (h:2); start them with their data, or start other range servers"
        )
        await beat(1, 2, 3)
        full = ReportMetricsRequest(RangeServer(3, "h:3"), disk_free_space=0)
        await cluster.client.ask(Opcode.REPORT_METRICS, full)
        found, cause = await halted()
        assert found == [(2, 0), (3, 0)]
        assert cause == "without free disk space: range servers 3 (h:3); free some"

    async def ranges_by_primary(cluster):
        listed = [(await cluster.list_one(by_stream(each))).ranges[0] for each in (1, 2, 3)]
        return {each.stream_id: each.servers[0].server.server_id for each in listed}

    async def drained(cluster, server_id):
        await cluster.client.ask(Opcode.DRAIN_SERVERS, DrainServersRequest(server_ids=(server_id,)))
        cancelled = DrainServersRequest(server_ids=(server_id,), is_cancelled=True)
        servers = (await described(cluster)).servers
        await cluster.client.ask(Opcode.DRAIN_SERVERS, cancelled)
        return [each for each in servers if each.server.server_id == server_id]

    run(tmp_path, test)


def test_replicas_that_sealed_ranges_lack_are_counted(tmp_path):
    async def test(cluster):
        for number in (1, 2, 3):
            await cluster.add_server(f"h:{number}")
        await cluster.create(Stream(replica_nums=3, ack_count=2), Stream(replica_nums=1))
        ends = [
            SealedRange(1, 0, 7)._replace(end_seq=1, end_digest=b"a" * 16),
            SealedRange(2, 0, 7),
        ]
        await cluster.driver._store.run(lambda store: store.seal_ranges(ends))
        assert (await described(cluster)).missing_sealed_replica_cnt == 0
        await cluster.driver._store.run(
            lambda store: store.change_replicas(1, 0, added=[], removed=[2])
        )
        assert (await described(cluster)).missing_sealed_replica_cnt == 1
        cluster.clock.advance(15_000)
        await cluster.beat(3, "h:3")
        assert (await described(cluster)).missing_sealed_replica_cnt == 2

    run(tmp_path, test)


def test_a_server_is_retired_when_it_is_replaced_silent_and_empty(tmp_path):
    async def test(cluster):
        async def retired():
            return [each.is_retired for each in (await described(cluster)).servers]

        one, other, drained = [await cluster.add_server(each) for each in ("h:1", "h:2", "h:3")]
        (created,) = await cluster.create(Stream(replica_nums=1))
        assert created.stream_range.servers[0].server.server_id == one
        await cluster.client.ask(Opcode.DRAIN_SERVERS, DrainServersRequest(server_ids=(drained,)))
        assert await retired() == [False] * 3
        cluster.clock.advance(15_000)
        assert await retired() == [False, False, True]
        cluster.clock.advance(600_000)
        assert await retired() == [False, True, True], "the first one has a range"
        await cluster.beat(other, "h:2")
        assert await retired() == [False, False, True]

    run(tmp_path, test)


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
