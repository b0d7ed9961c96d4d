"""A stream goes on in a new range, on another server, and clients follow by themselves."""

import asyncio

from sbp_core.client import AppendItem, AsyncClient, FetchItem, StreamSpec
from sbp_core.cluster import Cluster
from sbp_core.errors import StatusCode
from sbp_core.settings.server_settings import ClusterSettings
from sbp_core.wire.headers import RangeId, SealRangesRequest
from sbp_core.wire.opcodes import Opcode
from tests.support.cluster import rows_batch, values_of
from tests.support.wire import RawClient


def run(folder, body):
    async def main():
        cluster = Cluster(
            ClusterSettings(data_dir=folder, pd_port=0, range_server_port=0, range_servers=2)
        )
        await cluster.start()
        try:
            async with (
                AsyncClient(cluster.endpoints.pd) as client,
                RawClient.at(cluster.endpoints.pd) as pd,
            ):
                await asyncio.wait_for(body(cluster, client, pd), 60)
        finally:
            await cluster.stop()

    asyncio.run(main())


async def seal(pd, stream_id, range_index=-1):
    request = SealRangesRequest(ranges=(RangeId(stream_id, range_index),))
    (answer,) = await pd.ask(Opcode.SEAL_RANGE, request)
    (result,) = answer.seal_responses
    return result


async def append(client, stream_id, *values):
    (outcome,) = await client.append([AppendItem(stream_id, rows_batch(values))])
    return outcome.base_offset


async def read_all(client, stream_id):
    records = []
    while True:
        item = FetchItem(stream_id, len(records), None, 1 << 20)
        (outcome,) = [outcome async for outcome in client.fetch([item])]
        assert outcome.error is None
        if not outcome.payload:
            return records
        records += values_of(outcome.payload)


def test_appends_and_fetches_follow_a_stream_from_range_to_range(tmp_path):
    async def body(cluster, client, pd):
        names = ["moving", "makes the other server busy", "makes the first server busier"]
        specs = [StreamSpec(name.replace(" ", "-")) for name in names]
        stream, other, _ = await client.create_streams(specs)
        await client.delete_streams([other.stream_id])
        ((piece,),) = (await client.list_ranges([stream.stream_id])).values()
        servers = [*piece.servers]
        for number in range(4):
            assert await append(client, stream.stream_id, b"%d-a" % number) == 2 * number
            assert await append(client, stream.stream_id, b"%d-b" % number) == 2 * number + 1
            result = await seal(pd, stream.stream_id)
            assert result.status.code == StatusCode.NONE
            opened = result.stream_range
            assert (opened.range_index, opened.start_offset) == (number + 1, 2 * number + 2)
            assert opened.end_offset == -1
            servers.append(opened.servers[0].server.advertise_addr)
        assert set(servers) == set(cluster.endpoints.range_servers)
        expected = [b"%d-%s" % (number, half) for number in range(4) for half in (b"a", b"b")]
        assert await read_all(client, stream.stream_id) == list(enumerate(expected))
        (bounds,) = await client.stream_bounds([stream.stream_id])
        assert (bounds.start_offset, bounds.next_offset) == (0, 8)
        ranges = (await client.list_ranges([stream.stream_id]))[stream.stream_id]
        assert [piece.end_offset for piece in ranges] == [2, 4, 6, 8, None]

    run(tmp_path, body)


def test_a_server_that_is_down_is_named_and_the_range_stays_open(tmp_path):
    async def body(cluster, client, pd):
        (stream,) = await client.create_streams([StreamSpec("stuck")])
        await append(client, stream.stream_id, b"a")
        (piece,) = (await client.list_ranges([stream.stream_id]))[stream.stream_id]
        for server in cluster._range_servers:
            if server.endpoint == piece.servers[0]:
                await server._listener.drain(timeout_ms=1)
        result = await seal(pd, stream.stream_id)
        assert result.status.code == StatusCode.SEAL_NO_SERVER_ANSWERED
        assert piece.servers[0] in result.status.message
        (piece,) = (await client.list_ranges([stream.stream_id]))[stream.stream_id]
        assert piece.end_offset is None

    run(tmp_path, body)
