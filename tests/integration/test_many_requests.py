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
    DeleteStreamsRequest,
    DescribeRangesRequest,
    FetchInfo,
    FetchRequest,
    FetchResponse,
    ListRangesRequest,
    RangeCriteria,
    RangeId,
    RangeServer,
    SealRangesRequest,
    Stream,
    TrimmedStream,
    TrimStreamsRequest,
    decode_header,
)
from sbp_core.wire.opcodes import Opcode
from tests.support.clock import counted_turns
from tests.support.cluster import core_cluster, driver_at, rows_batch, values_of
from tests.support.wire import RawClient

MANY = 10_000
STREAMS = 2_000
"""More than a server takes connections."""
NO_STREAM = 2**40
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


def every_seventh(count, good, bad):
    """`count` values of which every seventh is `bad`, from the fourth on."""
    return [bad if number % 7 == 3 else good(number) for number in range(count)]


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


def append_request(stream_ids, batch):
    infos = tuple(
        AppendInfo(request_index=index, batch_length=len(batch), stream_id=stream_id)
        for index, stream_id in enumerate(stream_ids)
    )
    return AppendRequest(append_requests=infos), [batch] * len(infos)


def test_create_streams(tmp_path):
    async def body(pd, server):
        good = Stream(replica_nums=1)
        streams = every_seventh(MANY, lambda _: good, Stream(replica_nums=9))
        request = CreateStreamsRequest(streams=tuple(streams))
        results = await results_of(pd, Opcode.CREATE_STREAMS, request, "create_responses")
        refused = StatusCode.INVALID_REQUEST
        assert codes_of(results) == every_seventh(MANY, lambda _: OK, refused)
        made = [result.stream.stream_id for result in results if result.stream]
        assert len(set(made)) == codes_of(results).count(OK)

    run(tmp_path, body)


def test_append_and_fetch(tmp_path):
    async def body(pd, server):
        stream_ids = await create(pd, 10)
        wanted = every_seventh(MANY, lambda number: stream_ids[number % 10], NO_STREAM)
        request = append_request(wanted, rows_batch([b"x"]))
        results = await append(server, *request)
        results.sort(key=lambda result: result.request_index)
        expected = every_seventh(MANY, lambda _: OK, StatusCode.RANGE_NOT_FOUND)
        assert codes_of(results) == expected
        offsets = [result.base_offset for result in results]
        seen = dict.fromkeys(stream_ids, 0)
        for stream_id, offset in zip(wanted, offsets, strict=True):
            assert offset == seen.get(stream_id, -1)
            if stream_id != NO_STREAM:
                seen[stream_id] += 1
        infos = tuple(
            FetchInfo(None, index, offset, 1, stream_id)
            for index, (stream_id, offset) in enumerate(zip(wanted, offsets, strict=True))
        )
        frames = await server.call(Opcode.FETCH, FetchRequest(fetch_requests=infos))
        answers = [decode_header(FetchResponse, frame.header) for frame in frames]
        results = [result for answer in answers for result in answer.fetch_responses]
        assert [result.request_index for result in results] == list(range(MANY))
        assert codes_of(results) == expected
        records = [record for frame in frames for record in values_of(frame.payload)]
        assert records == [(offset, b"x") for offset in offsets if offset >= 0]

    run(tmp_path, body)


def test_list_ranges_by_stream_and_by_server_mixed_and_of_both(tmp_path):
    async def body(pd, server):
        one, other = await create(pd, 2)
        here, elsewhere = RangeServer(server_id=1), RangeServer(server_id=2)
        kinds = [
            (RangeCriteria(stream_id=one), [one]),
            (RangeCriteria(range_server=here), [one, other]),
            (RangeCriteria(range_server=here, stream_id=other), [other]),
            (RangeCriteria(range_server=elsewhere, stream_id=other), []),
            (RangeCriteria(range_server=elsewhere), []),
        ]
        unknown = RangeCriteria(stream_id=NO_STREAM)
        wanted = every_seventh(MANY, lambda number: kinds[number % 5][0], unknown)
        request = ListRangesRequest(range_owners=tuple(wanted))
        results = await results_of(pd, Opcode.LIST_RANGES, request, "list_responses")
        assert codes_of(results) == every_seventh(MANY, lambda _: OK, StatusCode.NOT_FOUND)
        for number, result in enumerate(results):
            listed = [] if number % 7 == 3 else kinds[number % 5][1]
            assert [each.stream_id for each in result.ranges] == listed

    run(tmp_path, body)


def test_describe_range(tmp_path):
    async def body(pd, server):
        stream_ids = await create(pd, 10)
        request = append_request(stream_ids, rows_batch([b"x", b"y"]))
        await append(server, *request)
        wanted = every_seventh(
            MANY, lambda number: RangeId(stream_ids[number % 10], 0), RangeId(NO_STREAM, 0)
        )
        request = DescribeRangesRequest(ranges=tuple(wanted))
        results = await results_of(server, Opcode.DESCRIBE_RANGE, request, "describe_responses")
        assert codes_of(results) == every_seventh(MANY, lambda _: OK, StatusCode.RANGE_NOT_FOUND)
        assert [result.stream_id for result in results] == [each.stream_id for each in wanted]
        found = [result.stream_range for result in results if result.stream_range]
        assert {(each.next_offset, each.end_offset, each.epoch) for each in found} == {(2, -1, 0)}

    run(tmp_path, body)


def test_trim_seal_and_delete(tmp_path):
    async def body(pd, server):
        stream_ids = await create(pd, STREAMS)
        request = append_request(stream_ids, rows_batch([b"x", b"y"]))
        await append(server, *request)
        wanted = every_seventh(STREAMS, lambda number: stream_ids[number], NO_STREAM)

        trims = TrimStreamsRequest(trimmed_streams=tuple(TrimmedStream(each, 1) for each in wanted))
        for client, unknown in ((pd, StatusCode.NOT_FOUND), (server, StatusCode.RANGE_NOT_FOUND)):
            results = await results_of(client, Opcode.TRIM_STREAMS, trims, "streams")
            assert codes_of(results) == every_seventh(STREAMS, lambda _: OK, unknown)
            smallest = [result.stream_range for result in results if result.stream_range]
            assert {each.start_offset for each in smallest} == {1}

        seals = SealRangesRequest(ranges=tuple(RangeId(each, 0) for each in wanted))
        for _ in range(2):
            results = await results_of(pd, Opcode.SEAL_RANGE, seals, "seal_responses")
            expected = every_seventh(STREAMS, lambda _: OK, StatusCode.NOT_FOUND)
            assert codes_of(results) == expected
            assert [result.stream_id for result in results] == wanted
            opened = [result.stream_range for result in results if result.stream_range]
            assert {(each.range_index, each.start_offset) for each in opened} == {(1, 2)}
        results = await results_of(server, Opcode.SEAL_RANGE, seals, "seal_responses")
        sealed = [result.stream_range for result in results if result.stream_range]
        assert {(each.range_index, each.end_offset) for each in sealed} == {(0, 2)}

        streams = tuple(Stream(stream_id=each) for each in dict.fromkeys(wanted))
        deletes = DeleteStreamsRequest(streams=streams)
        for client in (server, pd):
            results = await results_of(client, Opcode.DELETE_STREAMS, deletes, "delete_responses")
            failed = [each for each, code in zip(streams, codes_of(results), strict=True) if code]
            assert [each.stream_id for each in failed] == [NO_STREAM]

    run(tmp_path, body)


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
