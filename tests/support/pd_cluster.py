"""A placement driver on a free port, a connection to it, and what tests ask of it."""

import asyncio
import contextlib

from manual_clock import ManualClock
from raw_client import RawClient

from sbp_core import limits
from sbp_core.pd import PlacementDriver, PlacementDriverSettings
from sbp_core.wire.headers import (
    ClientRole,
    CreateRangeRequest,
    CreateStreamsRequest,
    DeleteStreamsRequest,
    DescribeStreamsRequest,
    HeartbeatRequest,
    IdAllocationRequest,
    ListRangesRequest,
    RangeCriteria,
    RangeServer,
    Stream,
    StreamRange,
)
from sbp_core.wire.opcodes import Opcode


class Cluster:
    """A placement driver, a connection to it, and what tests ask of it."""

    def __init__(self, driver, client, clock):
        self.driver, self.client, self.clock = driver, client, clock
        self.cluster_id = driver._store.cluster_id

    async def beat(self, server_id, address="127.0.0.1:10911", rack=None, **fields):
        known = {"cluster_id": self.cluster_id, "server_secret": await self.secret_of(server_id)}
        request = HeartbeatRequest(
            client_id="rs",
            client_role=ClientRole.RANGE_SERVER,
            range_server=RangeServer(server_id, address, rack),
            **(known | fields),
        )
        (answer,) = await self.client.ask(Opcode.HEARTBEAT, request)
        return answer

    async def secret_of(self, server_id):
        return await self.driver._store.run(lambda store: store.servers.maybe_secret(server_id))

    async def allocate(self):
        (answer,) = await self.client.ask(Opcode.ALLOCATE_ID, IdAllocationRequest(host="h"))
        assert answer.status.code == 0
        return answer.id

    async def add_server(self, address="127.0.0.1:10911", rack=None):
        server_id = await self.allocate()
        assert (await self.beat(server_id, address, rack)).status.code == 0
        return server_id

    async def create(self, *streams):
        answers = await self.client.ask(
            Opcode.CREATE_STREAMS, CreateStreamsRequest(streams=tuple(streams))
        )
        return [result for answer in answers for result in answer.create_responses]

    async def created_id(self, name=None):
        (result,) = await self.create(Stream(name=name))
        return result.stream.stream_id

    async def delete(self, *stream_ids):
        streams = tuple(Stream(stream_id=stream_id) for stream_id in stream_ids)
        (answer,) = await self.client.ask(
            Opcode.DELETE_STREAMS, DeleteStreamsRequest(streams=streams)
        )
        return list(answer.delete_responses)

    async def describe(self, **fields):
        answers = await self.client.ask(Opcode.DESCRIBE_STREAMS, DescribeStreamsRequest(**fields))
        return [result for answer in answers for result in answer.describe_responses]

    async def list(self, *owners, since=-1, commit=(-1, None)):
        return await self.client.ask(
            Opcode.LIST_RANGES, ListRangesRequest(0, owners, since, *commit)
        )

    async def list_one(self, owner):
        (answer,) = await self.list(owner)
        (result,) = answer.list_responses
        return result

    async def create_range(self, **fields):
        (answer,) = await self.client.ask(
            Opcode.CREATE_RANGE, CreateRangeRequest(stream_range=StreamRange(**fields))
        )
        return answer


@contextlib.asynccontextmanager
async def running(tmp_path, **settings):
    clock = ManualClock()
    settings = PlacementDriverSettings(
        data_dir=tmp_path,
        port=0,
        **({"fail_over_after_ms": limits.FAIL_OVER_AFTER_MS} | settings),
    )
    driver = PlacementDriver(settings, clock)
    endpoint = await driver.start()
    try:
        async with RawClient.at(endpoint) as client:
            yield Cluster(driver, client, clock)
    finally:
        await driver.stop()


def runner(path):
    """A function that runs coroutine functions against a placement driver on `path`.

    Each run restarts the driver; its metadata is kept.
    """

    def run(test):
        async def main():
            async with running(path) as cluster:
                return await test(cluster)

        return asyncio.run(main())

    return run


def by_stream(stream_id):
    return RangeCriteria(stream_id=stream_id)


def by_server(server_id, stream_id=-1):
    return RangeCriteria(range_server=RangeServer(server_id=server_id), stream_id=stream_id)


def codes(results):
    return [result.status.code for result in results]
