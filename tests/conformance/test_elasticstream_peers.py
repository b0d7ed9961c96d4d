"""This project's clients and range servers at stand-ins for ElasticStream's servers of 2023."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from spec_target import Target

from sbp_core.client import AppendItem, AsyncClient, FetchItem, StreamSpec, StreamUpdate
from sbp_core.errors import ConnectError, ConnectionLostError, UnsupportedError
from sbp_core.rangeserver.identity import load_identity
from sbp_core.rangeserver.range_server_settings import RangeServerSettings
from sbp_core.rangeserver.server import RangeServer
from sbp_core.wire.dialect import Dialect
from sbp_core.wire.headers import (
    ListRangesRequest,
    RangeCriteria,
    RangeId,
    SealRangesRequest,
    Stream,
)
from sbp_core.wire.opcodes import Opcode
from tests.support.client import BlockingDriver
from tests.support.data.batches import sequence_batch
from tests.support.dialect import ElasticStreamPeer, LaterElasticStreamPeer
from tests.support.scripted_peer import NO_RETRY
from tests.support.wire import RawClient

pytestmark = pytest.mark.dialect

BATCH = sequence_batch([b"a", b"b"])


def range_server(folder: Path, endpoint: str) -> RangeServer:
    return RangeServer(
        RangeServerSettings(
            data_dir=folder,
            placement_driver=endpoint,
            port=0,
            dialect=Dialect.ELASTICSTREAM_2023_04,
            heartbeat_interval_ms=20,
        )
    )


# April 2023


@pytest.fixture
def april(peers) -> ElasticStreamPeer:
    return ElasticStreamPeer(peers(), peers(), 7, 8, 9)


def test_a_client_does_what_servers_of_april_know(make, april) -> None:
    driver = make(april.endpoint)
    assert [each.base_offset for each in driver.do("append", [AppendItem(7, BATCH)] * 2)] == [0, 2]
    assert driver.do("seal_streams", [8, 7])[7].start_offset == 4
    driver.do("append", [AppendItem(7, BATCH)])
    ends = []
    for offset in range(6):
        (outcome,) = driver.fetch([FetchItem(7, offset, None, 1 << 20)])
        ends.append((outcome.error, outcome.next_offset))
    assert ends == [(None, 6)] * 6
    (bounds,) = driver.do("stream_bounds", [7])
    assert (bounds.start_offset, bounds.next_offset) == (0, 6)
    (made,) = driver.do("create_streams", [StreamSpec(None)])
    driver.do("update_streams", [StreamUpdate(made.stream_id, retention_period_ms=5)])
    driver.do("delete_streams", [7, made.stream_id])
    assert sorted(april.rows) == [8, 9]


def test_a_range_server_takes_up_the_range_that_a_seal_has_opened(april, tmp_path) -> None:
    """The placement manager lists it by stream only."""

    async def body() -> list[int]:
        server = range_server(tmp_path, april.endpoint)
        try:
            await server.start()
            april.hosted_at = server.endpoint
            async with AsyncClient(april.endpoint) as client:
                first = await client.append([AppendItem(7, BATCH)])
                seal = SealRangesRequest(1000, (RangeId(7, 0),))
                await client.call(server.endpoint, Opcode.SEAL_RANGE, seal)
                april.held[7].starts.append(2)
                second = await client.append([AppendItem(7, BATCH)])
                return [each.base_offset for each in (*first, *second)]
        finally:
            await server.stop()

    assert asyncio.run(asyncio.wait_for(body(), 60)) == [0, 2]


def test_a_range_server_hosts_only_what_is_placed_on_it(april, tmp_path) -> None:
    async def body() -> list[tuple[int, int]]:
        server = range_server(tmp_path, april.endpoint)
        april.next_server_id = 5  # another one than that of all ranges
        try:
            await server.start()
            hosted = await server._membership.list_hosted_ranges([7, 8])
            return [(each.stream_range.stream_id, each.stream_range.range_index) for each in hosted]
        finally:
            await server.stop()

    assert asyncio.run(asyncio.wait_for(body(), 60)) == []


def test_a_deleted_stream_does_not_stop_the_retention_of_others(april, tmp_path) -> None:
    async def body() -> dict[int, int]:
        server = range_server(tmp_path, april.endpoint)
        april.rows[7] = Stream(7, 1, 1000)
        del april.rows[8]
        try:
            await server.start()
            found = await server._membership.find_retentions([7, 8, 9])
            await server._membership.report_trims({7: 0})  # which that server does not record
            return {stream_id: kept.period_ms for stream_id, kept in found.items()}
        finally:
            await server.stop()

    assert asyncio.run(asyncio.wait_for(body(), 60)) == {7: 1000, 9: 0}


# July 2023


@pytest.fixture
def july(peers) -> LaterElasticStreamPeer:
    return LaterElasticStreamPeer(peers())


CALLS = {
    "append": [[AppendItem(7, BATCH)]],
    "create_streams": [[StreamSpec(None)]],
    "delete_streams": [[7]],
    "describe_streams": [[7]],
    "find_streams": [[7]],
    "list_ranges": [[7]],
    "list_streams": [],
    "placement_drivers": [],
    "seal_streams": [[7]],
    "stream_bounds": [[7]],
    "trim_streams": [{7: 1}],
    "update_streams": [[StreamUpdate(7, retention_period_ms=5)]],
    "watch_bounds": [[7]],
}


@pytest.mark.parametrize("method", CALLS)
def test_a_client_refuses_a_server_of_july_and_leaves_it_alive(make, july, method) -> None:
    driver = make(july.endpoint)
    for _ in range(2):
        with pytest.raises(UnsupportedError, match="May 2023 or later"):
            driver.do(method, *CALLS[method])
    assert driver.do("ping") >= 0
    assert not july.is_dead


def test_a_fetch_from_a_server_of_july_fails_alone(make, july) -> None:
    (outcome,) = make(july.endpoint).fetch([FetchItem(7, 0, None, 1 << 20)])
    assert isinstance(outcome.error, UnsupportedError)
    assert not july.is_dead


def test_this_suite_refuses_a_server_of_july(july) -> None:
    with pytest.raises(UnsupportedError, match="May 2023 or later"):
        Target.at(july.endpoint)
    assert not july.is_dead


@pytest.mark.parametrize("is_new", [True, False])
def test_a_range_server_does_not_join_a_server_of_july(april, july, tmp_path, is_new) -> None:
    async def body() -> None:
        if not is_new:
            before = range_server(tmp_path, april.endpoint)
            await before.start()
            await before.stop()
        server = range_server(tmp_path, july.endpoint)
        try:
            with pytest.raises(UnsupportedError, match="May 2023 or later"):
                await server.start()
        finally:
            await server.stop()

    asyncio.run(asyncio.wait_for(body(), 60))
    assert not july.is_dead
    assert not july.driver.seen(Opcode.ALLOCATE_ID)
    assert (load_identity(tmp_path) is None) == is_new


def test_the_stand_in_of_july_ends_at_a_batched_header(july) -> None:
    async def body() -> None:
        async with RawClient.at(july.endpoint) as client:
            request = ListRangesRequest(0, (RangeCriteria(stream_id=7),))
            await client.call(Opcode.LIST_RANGES, request)

    with pytest.raises(ConnectionLostError):
        asyncio.run(asyncio.wait_for(body(), 60))
    assert july.is_dead
    driver = BlockingDriver(july.endpoint, retry=NO_RETRY)
    with pytest.raises(ConnectError):
        driver.do("list_ranges", [7])
    driver.close()
