"""A number that is given to two batches: the second one is refused, and not taken for a repeat."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from sbp_core.client import AppendItem, Writer
from sbp_core.errors import InvalidRequestError
from sbp_core.wire.headers import AppendRequest
from sbp_core.wire.opcodes import Opcode
from sbp_core.wire.status import maybe_error
from tests.support.appends import (
    end,
    eventually,
    letters_of,
    numbered,
    one_stream,
    read_staged,
    send,
    stage,
    staged,
    values,
)
from tests.support.cluster import core_cluster, driver_at, rows_batch
from tests.support.disk import HeldDisk


def run(body):
    asyncio.run(asyncio.wait_for(body, 60))


@asynccontextmanager
async def restarted(folder):
    async with (
        core_cluster(folder) as cluster,
        driver_at(cluster.server.endpoint, folder / "rs") as client,
    ):
        yield cluster, client


def check_refused(outcome):
    assert isinstance(outcome, InvalidRequestError)
    assert "before with other content, so this one was not stored" in outcome.message


def test_a_stolen_writer_id_does_not_get_its_victims_batch_acknowledged(tmp_path):
    async def body():
        async with one_stream(tmp_path) as (cluster, stream_id, thief):
            victim = Writer("victim")
            assert await send(thief, stream_id, "forged", writer="victim") == [0]
            item = AppendItem(stream_id, rows_batch([b"genuine"], stream_id))
            with pytest.raises(InvalidRequestError) as raised:
                await cluster.client.append([item], writer=victim)
            check_refused(raised.value)
            assert await values(cluster, stream_id) == ["forged"]

    run(body())


def test_a_retry_may_have_another_base_offset_and_a_refusal_tells_the_first_one(tmp_path):
    async def body():
        async with one_stream(tmp_path) as (cluster, stream_id, client):
            assert await send(client, stream_id, "a", "b") == [0, 1]
            request, (batch,) = numbered(stream_id, "b", first=1)
            batch = batch[:1] + b"\x7f" * 8 + batch[9:]
            (answer,) = await client.ask(Opcode.APPEND, request, [batch])
            assert answer.append_responses[0].base_offset == 1
            changed = bytearray(batch)
            changed[-1] ^= 1
            (answer,) = await client.ask(
                Opcode.APPEND, AppendRequest(0, request.append_requests), [bytes(changed)]
            )
            assert answer.append_responses[0].base_offset == -1
            assert answer.append_responses[0].status.detail == (1).to_bytes(8, "big")
            assert await values(cluster, stream_id) == ["a", "b"]

    run(body())


def test_it_is_known_after_a_restart_a_trim_and_a_seal(tmp_path):
    async def body():
        async with one_stream(tmp_path) as (cluster, stream_id, client):
            assert await send(client, stream_id, "a", "b") == [0, 1]
            await cluster.client.trim_streams({stream_id: 2})
        async with restarted(tmp_path) as (cluster, client):
            for _ in range(2):
                same, other = await eventually(client, stream_id, "b", "x", sequences=[1, 0])
                assert same == 1
                check_refused(other)
                await cluster.client.seal_streams([stream_id])
            assert await eventually(client, stream_id, "c", first=2) == [2]

    run(body())


def test_batches_that_wait_for_the_disk_are_compared(tmp_path):
    async def body():
        disk = HeldDisk()
        disk.gate.set()
        async with one_stream(tmp_path, disk=disk) as (cluster, stream_id, client):
            disk.gate.clear()
            try:
                # The second of each is looked at while the first one waits: they share a frame.
                request, batches = numbered(stream_id, "a", "x", sequences=[0, 0])
                staged_request, staged_batches = staged(stream_id, "t", "a", "x", sequences=[0, 0])
                asked = [
                    asyncio.create_task(client.ask(Opcode.APPEND, request, batches)),
                    asyncio.create_task(client.ask(Opcode.APPEND, staged_request, staged_batches)),
                ]
            finally:
                disk.gate.set()
            for (answer,) in await asyncio.gather(*asked):
                results = sorted(answer.append_responses, key=lambda each: each.request_index)
                assert maybe_error(results[0].status) is None
                check_refused(maybe_error(results[1].status))
            assert await values(cluster, stream_id) == ["a"]

    run(body())


def test_staged_batches_are_compared_before_and_after_a_restart(tmp_path):
    async def body():
        async with one_stream(tmp_path) as (cluster, stream_id, client):
            assert await stage(client, stream_id, "t", "ab", "c") == [-1, -1]
            assert await stage(client, stream_id, "t", "ab", "c") == [-1, -1]
            same, other = await stage(client, stream_id, "t", "ab", "x")
            assert same == -1
            check_refused(other)
        async with restarted(tmp_path) as (cluster, client):
            other, same, new = await stage(client, stream_id, "t", "xy", "c", "d")
            check_refused(other)
            assert (same, new) == (-1, -1)
            assert await read_staged(client, stream_id, "t") == ("abcd", 3)
            assert await end(client, stream_id, "t") == (0, 4)
            assert await letters_of(cluster, stream_id) == "abcd"

    run(body())
