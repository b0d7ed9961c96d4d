"""Placement drivers in the test's event loop, and what tests ask of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from sbp_core import limits
from sbp_core.errors import NotLeaderError, StatusCode
from sbp_core.pd import PlacementDriver
from sbp_core.server.dispatch import Response, ServerCall
from sbp_core.server.listener import Listener
from sbp_core.server.runtime import SystemClock
from sbp_core.server.trust import ServerRole
from sbp_core.settings.server_settings import PlacementDriverSettings
from sbp_core.wire.headers import (
    RESPONSE_TABLES,
    ClientRole,
    CommitTxnRequest,
    CreateRangeRequest,
    CreateStreamsRequest,
    DeleteStreamsRequest,
    DescribeStreamsRequest,
    DescribeTxnsRequest,
    EndTxnResponse,
    EndTxnResult,
    Feature,
    HeartbeatRequest,
    HeartbeatResponse,
    IdAllocationRequest,
    ListRangesRequest,
    PlacementDriverCluster,
    PlacementDriverNode,
    RangeCriteria,
    RangeId,
    RangeServer,
    SealCause,
    SealRangesRequest,
    SealRangesResponse,
    SealRangesResult,
    Status,
    Stream,
    StreamRange,
    SyncRangesResponse,
    TxnDescription,
    TxnPart,
    encode_header,
)
from sbp_core.wire.opcodes import Opcode
from sbp_core.wire.status import status_for
from tests.support.clock import ManualClock
from tests.support.scripted_peer import Exchange, ScriptedPeer, status
from tests.support.wire import RawClient


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
async def running(tmp_path, *, fail_over_interval_ms=limits.FAIL_OVER_INTERVAL_MS, **settings):
    clock = ManualClock()
    settings = PlacementDriverSettings(
        data_dir=tmp_path,
        port=0,
        **({"fail_over_after_ms": limits.FAIL_OVER_AFTER_MS} | settings),
    )
    driver = PlacementDriver(settings, clock, fail_over_interval_ms=fail_over_interval_ms)
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


def fenced(seq, digest, next_offset, *, is_damaged=False, writers=b""):
    """A handler: a replica that was fenced, and has these entries."""

    def handle(exchange):
        exchange.answer(
            SealRangesResponse(
                status=Status(),
                seal_responses=tuple(
                    SealRangesResult(
                        StreamRange(each.stream_id, each.range_index, next_offset=next_offset),
                        Status(),
                        each.stream_id,
                        writers,
                        seq,
                        digest,
                        is_damaged,
                    )
                    for each in exchange.header.ranges
                ),
            )
        )

    return handle


def run(tmp_path, test, **settings):
    async def main():
        async with running(tmp_path, **settings) as cluster:
            return await test(cluster)

    return asyncio.run(main())


async def add_servers(cluster, peers, count=3):
    return [await cluster.add_server(each.endpoint) for each in peers[:count]]


async def create(cluster, **fields):
    (result,) = await cluster.create(Stream(**fields))
    assert result.status.code == 0, result.status.message
    return result.stream, result.stream_range


async def seal(cluster, stream_id, index=0, cause=SealCause.REQUESTED):
    request = SealRangesRequest(ranges=(RangeId(stream_id, index),), cause=cause)
    (answer,) = await cluster.client.ask(Opcode.SEAL_RANGE, request)
    (result,) = answer.seal_responses
    return result


async def ranges_of(cluster, stream_id):
    return (await cluster.list_one(by_stream(stream_id))).ranges


def ids(stream_range):
    return [each.server.server_id for each in stream_range.servers]


async def becomes(is_so):
    async with asyncio.timeout(30):
        while True:
            if await is_so():
                return
            await asyncio.sleep(0.01)


DIGEST = b"12345678"


def range_server() -> ScriptedPeer:
    """A server that knows transactions."""
    made = ScriptedPeer()
    accepted = HeartbeatResponse(features=(Feature("transactions"),))
    made.script(Opcode.HEARTBEAT, lambda exchange: exchange.answer(accepted))
    made.script(Opcode.SYNC_RANGES, lambda exchange: exchange.answer(SyncRangesResponse()))
    return made


def end(**codes: StatusCode) -> Callable[[Exchange], None]:
    """A handler: END_TXN is done, but for the items `s<stream id>`."""

    def handle(exchange: Exchange) -> None:
        results = []
        for info in exchange.header.end_requests:
            code = codes.get(f"s{info.stream_id}", StatusCode.NONE)
            said = Status() if code is StatusCode.NONE else status(code)
            results.append(EndTxnResult(info.stream_id, info.request_index, 0, 5, said))
        exchange.answer(EndTxnResponse(end_responses=tuple(reversed(results)), status=Status()))

    return handle


def part(txn_id: str, stream_id: int, range_index: int = 0, count: int = 5) -> TxnPart:
    """Return a part of a transaction: the records it staged in a range."""
    return TxnPart(txn_id, stream_id, count, range_index)


async def commit(cluster, batch_number: int, *parts: TxnPart, timeout_ms: int = 20_000) -> Any:
    """Commit a batch of the producer p; return the answer."""
    request = CommitTxnRequest(timeout_ms, "p", batch_number, parts, 5, DIGEST, commit=True)
    (answer,) = await cluster.client.ask(Opcode.COMMIT_TXN, request)
    return answer


async def describe(cluster, producer: str | None = None) -> list[TxnDescription]:
    """Return the decided transactions of a producer, or of all producers."""
    answers = await cluster.client.ask(Opcode.DESCRIBE_TXNS, DescribeTxnsRequest(0, producer))
    return [txn for answer in answers for txn in answer.txns]


async def decided(cluster, *states: str) -> None:
    """Wait until the decisions are in these states, in their order."""
    async with asyncio.timeout(30):
        while True:
            if [txn.state for txn in await describe(cluster)] == list(states):
                return
            await asyncio.sleep(0.01)


async def seen(peer: ScriptedPeer, count: int) -> None:
    """Wait until the server was asked so often to end transactions."""
    async with asyncio.timeout(30):
        while True:
            if len(peer.seen(Opcode.END_TXN)) >= count:
                return
            await asyncio.sleep(0.01)


def asked(peer: ScriptedPeer) -> list[list[tuple[Any, ...]]]:
    """Return the transactions that the server was asked to end, by frame."""
    return [
        [
            (info.stream_id, info.range_index, info.txn_ids, info.commit, info.record_count)
            for info in exchange.header.end_requests
        ]
        for exchange in peer.seen(Opcode.END_TXN)
    ]


def cluster_of(leader: str | None, *followers: str) -> PlacementDriverCluster:
    """A cluster of nodes at these addresses."""
    nodes = [PlacementDriverNode("follower", each) for each in followers]
    if leader is not None:
        nodes.append(PlacementDriverNode("leader", leader, is_leader=True))
    return PlacementDriverCluster(tuple(nodes))


class Follower:
    """Answers every operation with PD_NOT_LEADER and the cluster in `detail`.

    A client's greeting it answers like any placement driver. `is_system_error` chooses the form.
    """

    def __init__(
        self, code: StatusCode = StatusCode.PD_NOT_LEADER, *, is_system_error: bool = False
    ) -> None:
        self.endpoint = ""
        self.detail = b""
        self.asked: Counter[Opcode] = Counter()
        self._code = code
        self._is_system_error = is_system_error

    def name(self, leader: str | None, *followers: str) -> None:
        """From now on name these nodes."""
        self.detail = encode_header(cluster_of(leader, *followers))

    async def serve(self, call: ServerCall) -> Response:
        if call.opcode is Opcode.HEARTBEAT:
            request = call.decode(HeartbeatRequest)
            if request.client_role != ClientRole.RANGE_SERVER:
                return Response(HeartbeatResponse(client_id=request.client_id))
        self.asked[call.opcode] += 1
        error = NotLeaderError(self._code, "not the leader", self.detail)
        if self._is_system_error:
            raise error
        return Response(RESPONSE_TABLES[call.opcode](status=status_for(error)))


@asynccontextmanager
async def follower_pd(
    code: StatusCode = StatusCode.PD_NOT_LEADER, *, is_system_error: bool = False
) -> AsyncIterator[Follower]:
    """Run a follower on a free port."""
    follower = Follower(code, is_system_error=is_system_error)
    handlers = dict.fromkeys(RESPONSE_TABLES, follower.serve)
    listener = Listener(handlers, role=ServerRole.PLACEMENT_DRIVER, clock=SystemClock())
    follower.endpoint = f"127.0.0.1:{await listener.start('127.0.0.1', 0)}"
    try:
        yield follower
    finally:
        await listener.drain(timeout_ms=100)
