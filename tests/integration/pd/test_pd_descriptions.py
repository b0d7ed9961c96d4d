"""A placement driver describes its range servers, and counts the replicas that ranges lack."""

import asyncio

import pytest

from sbp_core.pd.model import SealedRange
from sbp_core.wire.headers import (
    DescribeServersRequest,
    DrainServersRequest,
    RangeServer,
    ReportMetricsRequest,
    ServerDescription,
    Stream,
)
from sbp_core.wire.opcodes import Opcode
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
