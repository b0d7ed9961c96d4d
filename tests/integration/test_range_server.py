"""APPEND, FETCH and their neighbours at a real range server on a real disk."""

import asyncio
import socket

import pytest

from sbp_core import limits
from sbp_core.client import AppendItem, FetchItem, StreamSpec
from sbp_core.errors import (
    NotFoundError,
    OffsetOutOfRangeError,
    RangeSealedError,
    StatusCode,
)
from sbp_core.wire.frame import encode_frame
from sbp_core.wire.headers import (
    AppendInfo,
    AppendRequest,
    DeleteStreamsRequest,
    DescribeRangesRequest,
    FetchInfo,
    FetchRequest,
    FetchResponse,
    RangeId,
    SealRangesRequest,
    Stream,
    decode_header,
    encode_header,
)
from sbp_core.wire.opcodes import Opcode
from sbp_core.wire.status import maybe_error
from tests.support.cluster import core_cluster, driver_at, rows_batch, values_of
from tests.support.data.batches import sequence_batch
from tests.support.wire import RawClient

STREAM = 1
"""The id of the first stream of a cluster."""


def run(test, folder, **options):
    async def body():
        async with core_cluster(folder, **options) as cluster:
            await asyncio.wait_for(test(cluster), 60)

    asyncio.run(body())


async def create(cluster, *names):
    streams = await cluster.client.create_streams([StreamSpec(name) for name in names])
    return [stream.stream_id for stream in streams]


async def append(cluster, stream_id, *values):
    (outcome,) = await cluster.client.append([AppendItem(stream_id, rows_batch(values))])
    return outcome.base_offset


def append_request(*batches):
    infos = tuple(
        AppendInfo(request_index=index, batch_length=len(batch), stream_id=stream_id)
        for index, (stream_id, batch) in enumerate(batches)
    )
    return AppendRequest(timeout_ms=10_000, append_requests=infos), [batch for _, batch in batches]


def write_buffers(cluster):
    return [peer._outgoing._unsent_bytes() for peer in cluster.server._listener._peers]


def fetch_request(*items, max_wait_ms=0, min_bytes=1, max_bytes=1 << 20):
    infos = tuple(
        FetchInfo(
            request_index=index, fetch_offset=offset, batch_max_bytes=max_bytes, stream_id=stream_id
        )
        for index, (stream_id, offset) in enumerate(items)
    )
    return FetchRequest(max_wait_ms=max_wait_ms, min_bytes=min_bytes, fetch_requests=infos)


def test_appended_records_are_fetched_in_order_and_without_gaps(tmp_path):
    async def body(cluster):
        first, second = await create(cluster, "first", "second")
        expected = {first: [], second: []}
        for number in range(20):
            stream_id = (first, second)[number % 3 == 0]
            values = [b"%d-%d" % (number, row) for row in range(number % 4 + 1)]
            base = await append(cluster, stream_id, *values)
            assert base == len(expected[stream_id])
            expected[stream_id] += values
        for stream_id, values in expected.items():
            assert await cluster.read(stream_id) == list(enumerate(values))
            assert await cluster.read(stream_id, max_bytes=1) == list(enumerate(values))
            assert await cluster.read(stream_id, start=5) == list(enumerate(values))[5:]

    run(body, tmp_path)


def test_a_restart_finds_everything_and_goes_on_without_a_gap(tmp_path):
    async def before(cluster):
        (stream_id,) = await create(cluster, "events")
        assert stream_id == STREAM
        for number in range(10):
            await append(cluster, stream_id, b"%d" % number, b"x")

    async def after(cluster):
        assert len(await cluster.read(STREAM)) == 20
        assert await append(cluster, STREAM, b"next") == 20
        (bounds,) = await cluster.client.stream_bounds([STREAM])
        assert (bounds.start_offset, bounds.next_offset) == (0, 21)

    run(before, tmp_path)
    run(after, tmp_path)


def test_a_hot_stream_is_answered_at_once_and_a_cold_one_at_the_end_of_the_wait(tmp_path):
    async def body(cluster):
        hot, cold = await create(cluster, "hot", "cold")
        await append(cluster, hot, b"here")
        async with RawClient.at(cluster.server.endpoint) as client:
            request = fetch_request((cold, 0), (hot, 0), max_wait_ms=300)
            frames = await client.call(Opcode.FETCH, request)
        early, late = [decode_header(FetchResponse, frame.header) for frame in frames]
        assert [result.stream_id for result in early.fetch_responses] == [hot]
        assert values_of(frames[0].payload) == [(0, b"here")]
        assert not frames[0].is_end
        (result,) = late.fetch_responses
        assert (result.stream_id, result.batch_length, result.next_offset) == (cold, 0, 0)
        assert maybe_error(result.status) is None
        assert frames[1].is_end

    run(body, tmp_path)


def test_a_long_poll_ends_when_data_arrives(tmp_path):
    async def body(cluster):
        hot, cold = await create(cluster, "hot", "cold")
        async with RawClient.at(cluster.server.endpoint) as client:
            request = fetch_request((cold, 0), (hot, -1), max_wait_ms=limits.FETCH_WAIT_MS_MAX)
            polling = asyncio.create_task(client.call(Opcode.FETCH, request))
            await append(cluster, hot, b"first")
            await append(cluster, cold, b"second")
            frames = await polling
        payload = b"".join(bytes(frame.payload) for frame in frames)
        assert {value for _, value in values_of(payload)} <= {b"first", b"second"}
        results = [
            result
            for frame in frames
            for result in decode_header(FetchResponse, frame.header).fetch_responses
        ]
        assert sorted(result.request_index for result in results) == [0, 1]

    run(body, tmp_path)


def test_min_bytes_waits_for_more_and_max_wait_ends_the_patience(tmp_path):
    async def body(cluster):
        (stream_id,) = await create(cluster, "slow")
        await append(cluster, stream_id, b"a")
        batch_bytes = len(rows_batch([b"a"]))
        async with RawClient.at(cluster.server.endpoint) as client:
            patient = fetch_request(
                (stream_id, 0), max_wait_ms=limits.FETCH_WAIT_MS_MAX, min_bytes=batch_bytes + 1
            )
            polling = asyncio.create_task(client.call(Opcode.FETCH, patient))
            await client.call(Opcode.PING)
            assert not polling.done()
            await append(cluster, stream_id, b"b")
            (frame,) = await polling
            assert values_of(frame.payload) == [(0, b"a"), (1, b"b")]
            impatient = fetch_request((stream_id, 0), max_wait_ms=10, min_bytes=1 << 30)
            (frame,) = await client.call(Opcode.FETCH, impatient)
            assert values_of(frame.payload) == [(0, b"a"), (1, b"b")]

    run(body, tmp_path)


def test_an_end_offset_ends_the_wait(tmp_path):
    async def body(cluster):
        (stream_id,) = await create(cluster, "bounded")
        await append(cluster, stream_id, b"a", b"b")
        await append(cluster, stream_id, b"c")
        item = FetchItem(stream_id, 0, 2, 1 << 20)
        (outcome,) = [
            outcome
            async for outcome in cluster.client.fetch(
                [item], max_wait_ms=limits.FETCH_WAIT_MS_MAX, min_bytes=1 << 20
            )
        ]
        assert values_of(outcome.payload) == [(0, b"a"), (1, b"b")]

    run(body, tmp_path)


@pytest.mark.parametrize("offset", [2, 100, -3])
def test_an_offset_out_of_range_carries_the_bounds(tmp_path, offset):
    async def body(cluster):
        (stream_id,) = await create(cluster, "short")
        await append(cluster, stream_id, b"only")
        async with RawClient.at(cluster.server.endpoint) as client:
            (answer,) = await client.ask(Opcode.FETCH, fetch_request((stream_id, offset)))
        error = maybe_error(answer.fetch_responses[0].status)
        assert isinstance(error, OffsetOutOfRangeError)
        assert error.bounds == (0, 1)

    run(body, tmp_path)


def test_each_item_of_an_append_fails_by_itself(tmp_path):
    async def body(cluster):
        (stream_id,) = await create(cluster, "good")
        damaged = bytearray(rows_batch([b"x"]))
        damaged[0] = 0x23
        request, payload = append_request(
            (stream_id, rows_batch([b"one"])),
            (stream_id, bytes(damaged)),
            (404, rows_batch([b"nowhere"])),
            (stream_id, rows_batch([b"two"])),
            (stream_id, b""),
        )
        async with RawClient.at(cluster.server.endpoint) as client:
            (answer,) = await client.ask(Opcode.APPEND, request, payload)
        codes = {
            result.request_index: (result.status.code, result.base_offset)
            for result in answer.append_responses
        }
        assert codes == {
            0: (StatusCode.NONE, 0),
            1: (StatusCode.INVALID_REQUEST, -1),
            2: (StatusCode.RANGE_NOT_FOUND, -1),
            3: (StatusCode.NONE, 1),
            4: (StatusCode.INVALID_REQUEST, -1),
        }
        assert await cluster.read(stream_id) == [(0, b"one"), (1, b"two")]

    run(body, tmp_path)


@pytest.mark.parametrize("length", [-1, 10**6])
def test_lengths_that_do_not_add_up_refuse_the_whole_frame(tmp_path, length):
    async def body(cluster):
        (stream_id,) = await create(cluster, "whole")
        batch = rows_batch([b"x"])
        info = AppendInfo(batch_length=length, stream_id=stream_id)
        request = AppendRequest(append_requests=(info,))
        async with RawClient.at(cluster.server.endpoint) as client:
            (frame,) = await client.call(Opcode.APPEND, request, [batch])
            assert frame.is_system_error
            assert await client.call(Opcode.PING)
        assert await cluster.read(stream_id) == []

    run(body, tmp_path)


def test_ten_thousand_requests_fit_in_one_frame(tmp_path):
    async def body(cluster):
        stream_ids = await create(cluster, *(f"s{number}" for number in range(100)))
        batches = [(stream_ids[n % 100], rows_batch([b"%d" % n])) for n in range(10_000)]
        request, payload = append_request(*batches)
        async with RawClient.at(cluster.server.endpoint) as client:
            answers = await client.ask(Opcode.APPEND, request, payload)
            results = [result for answer in answers for result in answer.append_responses]
            assert {result.status.code for result in results} == {0}
            assert sorted(result.request_index for result in results) == list(range(10_000))
            items = [(stream_ids[n % 100], n // 100) for n in range(10_000)]
            answers = await client.ask(Opcode.FETCH, fetch_request(*items, max_bytes=1))
        results = [result for answer in answers for result in answer.fetch_responses]
        assert {result.status.code for result in results} == {0}
        assert sorted(result.request_index for result in results) == list(range(10_000))
        assert {result.batch_count for result in results} == {1}

    run(body, tmp_path)


@pytest.mark.parametrize("extension", [{"writer_id": "w"}, {"sequence": 3}, {"txn_id": "t"}])
def test_guarantees_that_are_not_given_are_refused(tmp_path, extension):
    async def body(cluster):
        (stream_id,) = await create(cluster, "plain")
        batch = rows_batch([b"x"])
        info = AppendInfo(batch_length=len(batch), stream_id=stream_id, **extension)
        async with RawClient.at(cluster.server.endpoint) as client:
            request = AppendRequest(append_requests=(info,))
            (answer,) = await client.ask(Opcode.APPEND, request, [batch])
        assert answer.append_responses[0].status.code == StatusCode.INVALID_REQUEST
        assert await cluster.read(stream_id) == []

    run(body, tmp_path)


def test_a_sealed_range_refuses_appends_keeps_its_end_and_is_read_to_it(tmp_path):
    async def seal(cluster):
        (stream_id,) = await create(cluster, "sealed")
        await append(cluster, stream_id, b"a", b"b")
        async with driver_at(cluster.server.endpoint, tmp_path / "rs") as client:
            for _ in range(2):
                request = SealRangesRequest(ranges=(RangeId(stream_id, 0),))
                (answer,) = await client.ask(Opcode.SEAL_RANGE, request)
                sealed = answer.seal_responses[0].stream_range
                assert (sealed.start_offset, sealed.end_offset) == (0, 2)

    async def check(cluster):
        async with RawClient.at(cluster.server.endpoint) as client:
            request, payload = append_request((STREAM, rows_batch([b"late"])))
            (answer,) = await client.ask(Opcode.APPEND, request, payload)
            error = maybe_error(answer.append_responses[0].status)
            assert isinstance(error, RangeSealedError)
            poll = fetch_request((STREAM, 2), max_wait_ms=limits.FETCH_WAIT_MS_MAX)
            (answer,) = await client.ask(Opcode.FETCH, poll)
            assert answer.fetch_responses[0].next_offset == 2
            describe = DescribeRangesRequest(
                ranges=(RangeId(STREAM, 0), RangeId(STREAM, 7), RangeId(404, 0))
            )
            (answer,) = await client.ask(Opcode.DESCRIBE_RANGE, describe)
            found, no_range, no_stream = answer.describe_responses
            assert found.stream_range.end_offset == found.stream_range.next_offset == 2
            assert no_range.status.code == no_stream.status.code == StatusCode.RANGE_NOT_FOUND
        assert await cluster.read(STREAM) == [(0, b"a"), (1, b"b")]

    async def seal_then_check(cluster):
        await seal(cluster)
        await check(cluster)

    run(seal_then_check, tmp_path)
    run(check, tmp_path)


def test_a_deleted_stream_refuses_appends_and_fetches_at_once_and_after_a_restart(tmp_path):
    async def delete(cluster):
        (stream_id,) = await create(cluster, "gone")
        await append(cluster, stream_id, b"a")
        async with RawClient.at(cluster.server.endpoint) as client:
            poll = fetch_request((stream_id, 1), max_wait_ms=limits.FETCH_WAIT_MS_MAX)
            polling = asyncio.create_task(client.ask(Opcode.FETCH, poll))
            await client.call(Opcode.PING)
            request = DeleteStreamsRequest(streams=(Stream(stream_id),))
            await client.ask(Opcode.DELETE_STREAMS, request)
            (answer,) = await polling
            assert isinstance(maybe_error(answer.fetch_responses[0].status), NotFoundError)

    async def check(cluster):
        async with RawClient.at(cluster.server.endpoint) as client:
            request, payload = append_request((STREAM, rows_batch([b"late"])))
            (answer,) = await client.ask(Opcode.APPEND, request, payload)
            assert isinstance(maybe_error(answer.append_responses[0].status), NotFoundError)
            (answer,) = await client.ask(Opcode.FETCH, fetch_request((STREAM, 0)))
            assert isinstance(maybe_error(answer.fetch_responses[0].status), NotFoundError)

    async def delete_then_check(cluster):
        await delete(cluster)
        await check(cluster)

    run(delete_then_check, tmp_path)
    run(check, tmp_path)


def test_a_stream_that_the_server_never_heard_of_is_deleted_all_the_same(tmp_path):
    async def body(cluster):
        cluster.pd._handlers._announcer.announce = lambda opened: None
        (stream_id,) = await create(cluster, "unused")
        async with RawClient.at(cluster.server.endpoint) as client:
            request = DeleteStreamsRequest(streams=(Stream(stream_id), Stream(404)))
            (answer,) = await client.ask(Opcode.DELETE_STREAMS, request)
            codes = [result.status.code for result in answer.delete_responses]
            assert codes == [StatusCode.NONE, StatusCode.RANGE_NOT_FOUND]
            request, payload = append_request((stream_id, rows_batch([b"late"])))
            (answer,) = await client.ask(Opcode.APPEND, request, payload)
            assert isinstance(maybe_error(answer.append_responses[0].status), NotFoundError)

    run(body, tmp_path)


def test_garbage_ends_its_own_connection_only(tmp_path):
    async def body(cluster):
        (stream_id,) = await create(cluster, "calm")
        host, port = cluster.server.endpoint.split(":")
        async with RawClient.at(cluster.server.endpoint) as calm:
            for garbage in (b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 64, b"\0" * 64):
                reader, writer = await asyncio.open_connection(host, port)
                writer.write(garbage)
                assert await reader.read() != b""
                writer.close()
            frames = await calm.call(Opcode.FETCH, b"\xff" * 40)
            assert frames[0].is_system_error
            request, payload = append_request((stream_id, rows_batch([b"ok"])))
            (answer,) = await calm.ask(Opcode.APPEND, request, payload)
            assert answer.append_responses[0].status.code == StatusCode.NONE
            (frame,) = await calm.call(Opcode.CREATE_STREAMS)
            assert frame.is_system_error

    run(body, tmp_path)


def test_a_reader_that_does_not_read_holds_little_of_the_servers_memory(tmp_path):
    async def body(cluster):
        (stream_id,) = await create(cluster, "big")
        batch = rows_batch([bytes(1 << 20)])
        for _ in range(40):
            await cluster.client.append([AppendItem(stream_id, batch)])
        with socket.create_connection(cluster.server.endpoint.split(":")) as connection:
            connection.setblocking(False)
            slow_request = fetch_request(*((stream_id, n) for n in range(40)), max_bytes=1)
            async with RawClient.at(cluster.server.endpoint) as other:
                buffers = encode_frame(Opcode.FETCH, 0, 1, encode_header(slow_request))
                await asyncio.get_running_loop().sock_sendall(connection, b"".join(buffers))
                await other.call(Opcode.PING)
                while not any(held := write_buffers(cluster)):
                    await other.call(Opcode.PING)
                await append(cluster, stream_id, b"still served")
                held += write_buffers(cluster)
        assert max(held) <= limits.WRITE_BUFFER_HIGH_BYTES + 2 * len(batch)

    run(body, tmp_path)


def test_stopping_answers_long_polls_and_open_appends(tmp_path):
    async def body(cluster):
        (stream_id,) = await create(cluster, "draining")
        async with RawClient.at(cluster.server.endpoint) as client:
            poll = fetch_request((stream_id, 0), max_wait_ms=limits.FETCH_WAIT_MS_MAX)
            polling = asyncio.create_task(client.ask(Opcode.FETCH, poll))
            await client.call(Opcode.PING)
            await cluster.server.stop()
            (answer,) = await polling
            assert answer.fetch_responses[0].next_offset == 0
            await client.wait_closed()
            assert client.was_sent_away

    run(body, tmp_path)


def test_an_overloaded_server_throttles_the_whole_frame(tmp_path, monkeypatch):
    async def body(cluster):
        (stream_id,) = await create(cluster, "busy")
        large = rows_batch([bytes(2000)])
        async with RawClient.at(cluster.server.endpoint) as client:
            request, payload = append_request((stream_id, large), (stream_id, rows_batch([b"x"])))
            monkeypatch.setattr(limits, "PENDING_APPEND_BYTES_MAX", len(large))
            (answer,) = await client.ask(Opcode.APPEND, request, payload)
            assert answer.throttle_time_ms == limits.THROTTLE_MS
            codes = [result.status.code for result in answer.append_responses]
            assert codes == [StatusCode.TOO_MANY_REQUESTS] * 2
            monkeypatch.undo()
        assert await append(cluster, stream_id, b"later") == 0

    run(body, tmp_path)


def test_record_sequences_of_other_clients_are_stored_and_served(tmp_path):
    async def body(cluster):
        (stream_id,) = await create(cluster, "foreign")
        await append(cluster, stream_id, b"ours")
        for delta in (0, 1):
            request, payload = append_request(
                (stream_id, sequence_batch([b"a", b"b"], delta=delta)),
                (stream_id, sequence_batch([b"c"], delta=delta)),
            )
            async with RawClient.at(cluster.server.endpoint) as client:
                (answer,) = await client.ask(Opcode.APPEND, request, payload)
            assert [result.status.code for result in answer.append_responses] == [0, 0]
        expected = [b"ours", *[b"a", b"b", b"c"] * 2]
        assert await cluster.read(stream_id) == list(enumerate(expected))

    run(body, tmp_path)
