"""Thousands of requests in one frame, a part of which must fail, at both servers."""

import asyncio

import pytest

from sbp_core import limits
from sbp_core.client import AppendItem, StreamSpec
from sbp_core.errors import InvalidRequestError, StatusCode
from sbp_core.wire.headers import (
    AppendInfo,
    AppendRequest,
    CreateStreamsRequest,
    FetchInfo,
    FetchRequest,
    RangeId,
    SealRangesRequest,
    Stream,
)
from sbp_core.wire.opcodes import Opcode
from tests.support.clock import counted_turns
from tests.support.cluster import core_cluster, driver_at, rows_batch
from tests.support.wire import RawClient

OK = StatusCode.NONE


def run(folder, body):
    async def main():
        async with (
            core_cluster(folder) as cluster,
            RawClient.at(cluster.pd.endpoint) as pd,
            driver_at(cluster.server.endpoint, folder / "rs") as server,
        ):
            await pd.call(Opcode.PING)
            await server.call(Opcode.PING)
            await asyncio.wait_for(body(pd, server), 200)

    asyncio.run(main())


def codes_of(results):
    return [result.status.code for result in results]


async def results_of(client, opcode, request, field, payload=()):
    answers = await client.ask(opcode, request, payload)
    return [result for answer in answers for result in getattr(answer, field)]


async def create(pd, count):
    request = CreateStreamsRequest(streams=(Stream(replica_nums=1),) * count)
    results = await results_of(pd, Opcode.CREATE_STREAMS, request, "create_responses")
    return [result.stream.stream_id for result in results]


async def append(server, request, payload):
    return await results_of(server, Opcode.APPEND, request, "append_responses", payload)


def test_an_append_is_not_refused_because_its_response_is_long(tmp_path):
    async def body(pd, server):
        (stream_id,) = await create(pd, 1)
        batch = rows_batch([b"x"])
        infos = [
            AppendInfo(request_index=index, stream_id=stream_id)  # an empty batch: refused
            for index in range(30_000)
        ]
        infos[-1] = AppendInfo(request_index=29_999, stream_id=stream_id, batch_length=len(batch))
        request = AppendRequest(append_requests=tuple(infos))
        results = await append(server, request, [batch])
        accepted = [result.request_index for result in results if result.status.code == OK]
        assert (len(results), accepted) == (30_000, [29_999])

    run(tmp_path, body)


@pytest.mark.parametrize("range_index", [0, -1])
def test_the_same_seal_many_times_in_one_frame_opens_one_range(tmp_path, range_index):
    async def body(pd, server):
        (stream_id,) = await create(pd, 1)
        request = SealRangesRequest(ranges=(RangeId(stream_id, range_index),) * 100)
        results = await results_of(pd, Opcode.SEAL_RANGE, request, "seal_responses")
        assert codes_of(results) == [OK] * 100
        assert {result.stream_range.range_index for result in results} == {1}

    run(tmp_path, body)


def test_a_fetch_of_too_many_streams_is_refused(tmp_path):
    async def body():
        async with (
            core_cluster(tmp_path) as cluster,
            RawClient.at(cluster.server.endpoint) as greedy,
        ):
            (info,) = await cluster.client.create_streams([StreamSpec("s")])
            await cluster.client.append([AppendItem(info.stream_id, rows_batch([b"x"]))])
            items = tuple(
                FetchInfo(None, index, 0, 1, info.stream_id)
                for index in range(limits.STREAMS_PER_REQUEST_MAX + 1)
            )
            request = FetchRequest(fetch_requests=items[:-1])
            assert len(await results_of(greedy, Opcode.FETCH, request, "fetch_responses")) == 20_000
            with pytest.raises(InvalidRequestError, match="20001 items, and at most 20000"):
                await greedy.ask(Opcode.FETCH, FetchRequest(fetch_requests=items))

    asyncio.run(asyncio.wait_for(body(), 60))


def test_many_requests_of_a_fetch_let_others_go_on(tmp_path):
    count = 2 * limits.RESULTS_PER_FRAME

    async def body():
        async with (
            core_cluster(tmp_path, bounds={"fetch_items_per_turn": 1}) as cluster,
            RawClient.at(cluster.server.endpoint) as greedy,
        ):
            (info,) = await cluster.client.create_streams([StreamSpec("s")])
            items = tuple(FetchInfo(None, at, 0, 1, info.stream_id) for at in range(count))
            request = FetchRequest(fetch_requests=items)
            async with counted_turns() as turns:
                results = await results_of(greedy, Opcode.FETCH, request, "fetch_responses")
        assert [result.request_index for result in results] == list(range(count))
        assert turns() > 0.9 * count

    asyncio.run(asyncio.wait_for(body(), 60))
