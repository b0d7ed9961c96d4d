"""A cluster in this process, of which the ranges have copies on several servers."""

import asyncio
from contextlib import asynccontextmanager

from core_cluster import rows_batch, values_of
from raw_client import RawClient
from waiting import until

from sbp_core.client import AppendItem, AsyncClient, FetchItem
from sbp_core.cluster import Cluster
from sbp_core.cluster_settings import ClusterSettings
from sbp_core.wire.headers import RangeId, SealRangesRequest
from sbp_core.wire.opcodes import Opcode

NO_FALSE_ALARM = {"fail_over_after_ms": 15_000}
"""All servers share the loop of the test, which may stand still on a busy machine."""


@asynccontextmanager
async def cluster_of(folder, range_servers=3, **settings):
    cluster = Cluster(
        ClusterSettings(
            data_dir=folder,
            pd_port=0,
            range_server_port=0,
            range_servers=range_servers,
            **settings,
        )
    )
    await cluster.start()
    try:
        yield cluster
    finally:
        await cluster.stop()


def run(folder, body, **kwargs):
    async def main():
        async with (
            cluster_of(folder, **kwargs) as cluster,
            AsyncClient(cluster.endpoints.pd) as client,
        ):
            await asyncio.wait_for(body(cluster, client), 60)

    asyncio.run(main())


async def append(client, stream_id, *values):
    (outcome,) = await client.append([AppendItem(stream_id, rows_batch(values))])
    return outcome.base_offset


async def read_all(client, stream_id, count_max=1_000):
    records = []
    while len(records) < count_max:
        item = FetchItem(stream_id, len(records), None, 1 << 20)
        (outcome,) = [outcome async for outcome in client.fetch([item])]
        assert outcome.error is None
        if not outcome.payload:
            return records
        records += values_of(outcome.payload)
    return records


async def seal(cluster, stream_id, range_index=-1):
    async with RawClient.at(cluster.endpoints.pd) as pd:
        request = SealRangesRequest(ranges=(RangeId(stream_id, range_index),))
        (answer,) = await pd.ask(Opcode.SEAL_RANGE, request)
    (result,) = answer.seal_responses
    return result


def hosted_at(cluster, stream_id, range_index):
    """The range at each server, by endpoint."""
    return {
        server.endpoint: server._host.table.maybe_range((stream_id, range_index))
        for server in cluster._range_servers
    }


async def copies_of(cluster, stream_id, range_index, count=3):
    """The range at each server that is to have it, by endpoint, once all have learnt of it."""

    def found():
        hosted = hosted_at(cluster, stream_id, range_index)
        return {endpoint: each for endpoint, each in hosted.items() if each is not None}

    await asyncio.to_thread(until, lambda: len(found()) == count)
    return found()


def primary_of(cluster, key):
    (primary,) = (
        each for each in cluster._range_servers if each._host.table.maybe_range(key).is_led
    )
    return primary
