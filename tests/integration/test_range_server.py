"""APPEND, FETCH and their neighbours at a real range server on a real disk."""

import asyncio
import socket

from sbp_core import limits
from sbp_core.client import AppendItem, FetchItem, StreamSpec
from sbp_core.errors import NotFoundError, StatusCode
from sbp_core.wire.frame import encode_frame
from sbp_core.wire.headers import (
    AppendInfo,
    AppendRequest,
    DeleteStreamsRequest,
    FetchInfo,
    FetchRequest,
    Stream,
    encode_header,
)
from sbp_core.wire.opcodes import Opcode
from sbp_core.wire.status import maybe_error
from tests.support.cluster import core_cluster, rows_batch, values_of
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
