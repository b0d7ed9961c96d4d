"""Frames of numbered batches, and their memory while the disk is blocked."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from sbp_core import limits
from sbp_core.errors import ThrottledError, WriterGapError
from sbp_core.wire.opcodes import Opcode
from tests.support.appends import WAIT_SECONDS, numbered, one_stream, send, values
from tests.support.disk import HeldDisk
from tests.support.wire import RawClient


def run(body):
    asyncio.run(asyncio.wait_for(body, 2 * WAIT_SECONDS))


def test_more_than_are_remembered_may_not_wait_for_the_disk(tmp_path):
    async def body():
        kept = limits.WRITER_BATCHES_KEPT
        async with one_stream(tmp_path) as (cluster, stream_id, client):
            names = [str(at) for at in range(kept + 2)]
            *taken, refused, also_refused = await send(client, stream_id, *names)
            assert taken == list(range(kept))
            assert isinstance(refused, ThrottledError)
            assert isinstance(also_refused, WriterGapError)
            assert await send(client, stream_id, *names[kept:], first=kept) == [kept, kept + 1]
            assert await values(cluster, stream_id) == names

    run(body())


@pytest.mark.parametrize("is_repeated_again", [True, False])
def test_repeats_that_wait_for_the_disk_take_memory_like_what_they_repeat(
    tmp_path, monkeypatch, is_repeated_again
):
    async def body():
        disk = HeldDisk()
        disk.gate.set()
        async with one_stream(tmp_path, disk=disk) as (cluster, stream_id, client):
            committer = cluster.server._committer
            assert await send(client, stream_id, "a") == [0]
            request, (batch,) = numbered(stream_id, "x" * 100_000, first=1)
            monkeypatch.setattr(limits, "PENDING_APPEND_BYTES_MAX", 3 * len(batch))
            disk.gate.clear()
            async with AsyncExitStack() as stack:
                calls = []
                for connection in (client, RawClient.at(cluster.server.endpoint)):
                    if connection is not client:
                        await stack.enter_async_context(connection)
                    call = connection.ask(Opcode.APPEND, request, [batch])
                    calls.append(asyncio.create_task(call))
                    await connection.call(Opcode.PING)
                assert not any(call.done() for call in calls)
                third = await stack.enter_async_context(RawClient.at(cluster.server.endpoint))
                options = {"first": 1} if is_repeated_again else {"writer": "another"}
                (refused,) = await send(third, stream_id, "x" * 100_000, **options)
                assert isinstance(refused, ThrottledError)
                disk.gate.set()
                first, again = await asyncio.gather(*calls)
                assert first == again
            committer.check_room(limits.PENDING_APPEND_BYTES_MAX)

    run(body())


def test_refused_batches_beside_a_numbered_one_are_counted(tmp_path):
    async def body():
        async with one_stream(tmp_path) as (cluster, stream_id, client):
            taken, gap = await send(client, stream_id, "a", "c", sequences=[0, 2])
            assert taken == 0
            assert isinstance(gap, WriterGapError)
            appends = cluster.server._metrics.appends
            assert (appends.requests, appends.failures) == (2, 1)

    run(body())
