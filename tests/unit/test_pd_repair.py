"""The range servers of a cluster: the answers to DESCRIBE_SERVERS."""

import asyncio

from pd_cluster import running

from sbp_core.pd.model import SealedRange
from sbp_core.wire.headers import (
    DescribeServersRequest,
    RangeServer,
    ReportMetricsRequest,
    ServerDescription,
    Stream,
)
from sbp_core.wire.opcodes import Opcode


def run(tmp_path, test):
    async def main():
        async with running(tmp_path) as cluster:
            return await test(cluster)

    return asyncio.run(main())


async def described(cluster):
    (answer,) = await cluster.client.ask(Opcode.DESCRIBE_SERVERS, DescribeServersRequest())
    assert answer.status.code == 0
    return answer


def test_servers_are_described_with_their_ranges_and_what_they_reported(tmp_path):
    async def test(cluster):
        addresses = ("h:1", "h:2")
        first, second = [await cluster.add_server(each, "east") for each in addresses]
        await cluster.create(
            Stream(replica_nums=2, ack_count=1),
            Stream(replica_nums=3, ack_count=1),
            Stream(replica_nums=1),
        )
        await cluster.driver._store.run(lambda store: store.seal_ranges([SealedRange(3, 0, 7)]))
        await cluster.beat(first, "h:1", "east")
        load = ReportMetricsRequest(
            RangeServer(first, "h:1", "east"), disk_free_space=5, range_missing_replica_cnt=2
        )
        await cluster.client.ask(Opcode.REPORT_METRICS, load)
        answer = await described(cluster)
        assert answer.missing_replica_cnt == 1
        assert answer.servers == (
            ServerDescription(RangeServer(first, "h:1", "east"), True, 5, 1, 1, 1, 1, 2),
            ServerDescription(RangeServer(second, "h:2", "east"), True, -1, 1, 1, 0, 0, 0),
        )
        cluster.clock.advance(15_000)
        await cluster.beat(second, "h:2", "east")
        assert [each.is_live for each in (await described(cluster)).servers] == [False, True]

    run(tmp_path, test)
