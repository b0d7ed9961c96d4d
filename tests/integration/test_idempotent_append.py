"""Appends that are numbered by their writers: each is stored once, even if repeated."""

import asyncio
import dataclasses
import itertools
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace

from sbp_core import limits
from sbp_core.client import AppendItem, AsyncClient, StreamSpec, Writer
from sbp_core.errors import (
    InvalidRequestError,
    RequestTimeoutError,
    StatusCode,
    WriterGapError,
    WriterRepeatError,
)
from sbp_core.pd import PlacementDriver
from sbp_core.pd.placement import Placement
from sbp_core.rangeserver.server import RangeServer
from sbp_core.session.negotiation import NO_FEATURES
from sbp_core.settings.server_settings import PlacementDriverSettings, RangeServerSettings
from sbp_core.wire.headers import AppendRequest
from sbp_core.wire.opcodes import Opcode
from sbp_core.wire.status import maybe_error
from tests.support.appends import WAIT_SECONDS, eventually, numbered, one_stream, send, values
from tests.support.cluster import rows_batch
from tests.support.disk import HeldDisk
from tests.support.wire import RawClient


def run(body):
    asyncio.run(asyncio.wait_for(body, 2 * WAIT_SECONDS))


def test_a_repeat_that_is_too_old_or_another_batch_is_refused(tmp_path):
    async def body():
        async with one_stream(tmp_path) as (_, stream_id, client):
            kept = limits.WRITER_BATCHES_KEPT
            names = [f"n{at}" for at in range(kept + 1)]
            assert await send(client, stream_id, *names[:kept]) == list(range(kept))
            assert await send(client, stream_id, names[kept], first=kept) == [kept]
            old, known = await send(client, stream_id, *names[:2])
            assert isinstance(old, WriterRepeatError)
            assert known == 1
            request, _ = numbered(stream_id, "x", first=5)
            batch = rows_batch([b"x", b"y"], stream_id)
            info = replace(request.append_requests[0], batch_length=len(batch))
            (answer,) = await client.ask(Opcode.APPEND, AppendRequest(0, (info,)), [batch])
            error = maybe_error(answer.append_responses[0].status)
            assert isinstance(error, InvalidRequestError)
            assert "had 1 record, this one has 2" in error.message

    run(body())


def test_a_repeat_of_what_waits_for_its_sync_is_answered_with_it(tmp_path):
    """Also one that races it on another connection, and one in the same frame as something new."""

    async def body():
        disk = HeldDisk()
        disk.gate.set()
        async with (
            one_stream(tmp_path, disk=disk) as (cluster, stream_id, client),
            RawClient.at(cluster.server.endpoint) as other,
        ):
            assert await send(client, stream_id, "a") == [0]
            disk.gate.clear()
            tasks = [
                asyncio.create_task(send(client, stream_id, "b", first=1)),
                asyncio.create_task(send(other, stream_id, "b", first=1)),
                asyncio.create_task(send(other, stream_id, "b", "c", first=1)),
            ]
            for connection in (client, other):  # each has begun what was sent before
                await connection.call(Opcode.PING)
            assert not any(task.done() for task in tasks)
            disk.gate.set()
            assert await asyncio.gather(*tasks) == [[1], [1], [1, 2]]
            assert await values(cluster, stream_id) == ["a", "b", "c"]

    run(body())


def test_a_repeat_is_answered_though_the_caller_of_the_original_left(tmp_path):
    async def body():
        disk = HeldDisk()
        disk.gate.set()
        async with (
            one_stream(tmp_path, disk=disk) as (cluster, stream_id, client),
            RawClient.at(cluster.server.endpoint) as other,
        ):
            assert await send(client, stream_id, "a") == [0]
            assert (await client.greet(NO_FEATURES)).has_deadline
            disk.gate.clear()
            request, batches = numbered(stream_id, "b", first=1)
            with pytest.raises(RequestTimeoutError):
                await client.ask(Opcode.APPEND, replace(request, timeout_ms=1), batches)
            while not cluster.server._committer.pending_bytes:  # it was late before it began
                with pytest.raises(RequestTimeoutError):
                    await client.ask(Opcode.APPEND, replace(request, timeout_ms=100), batches)
            repeat = asyncio.create_task(send(other, stream_id, "b", first=1))
            await other.call(Opcode.PING)
            assert not repeat.done()
            disk.gate.set()
            assert await repeat == [1]
            assert await values(cluster, stream_id) == ["a", "b"]

    run(body())


def test_a_deleted_stream_takes_its_writers_along(tmp_path):
    async def body():
        async with one_stream(tmp_path) as (cluster, stream_id, client):
            assert await send(client, stream_id, "a") == [0]
            await cluster.client.delete_streams([stream_id])
            (error,) = await send(client, stream_id, "a")
            assert error.code == StatusCode.NOT_FOUND
            assert len(cluster.server._log.writers) == 0

    run(body())


@asynccontextmanager
async def two_servers(folder):
    """A placement driver and two range servers; the stream is on the first, then on the second."""
    pd = PlacementDriver(PlacementDriverSettings(data_dir=folder / "pd", port=0))
    endpoint = await pd.start()
    servers = [
        RangeServer(
            RangeServerSettings(data_dir=folder / f"rs-{n}", placement_driver=endpoint, port=0)
        )
        for n in range(2)
    ]
    try:
        for server in servers:
            await server.start()
        async with AsyncClient(endpoint) as client:
            yield {server.endpoint: server for server in servers}, client
    finally:
        for server in servers:
            await server.stop()
        await pd.stop()


@pytest.fixture
def taking_turns(monkeypatch):
    """New ranges go to one server after the other."""
    turns = itertools.cycle((1, 2))
    monkeypatch.setattr(Placement, "next_servers", lambda *_: (next(turns),))


async def moved(client, stream_id):
    """Seal a stream so that it goes on at the other server; return where."""
    (*_, before) = (await client.list_ranges([stream_id]))[stream_id]
    opened = (await client.seal_streams([stream_id]))[stream_id]
    assert opened.servers != before.servers
    return opened


def test_the_writers_go_with_the_stream_to_another_server_and_back(tmp_path, taking_turns):
    async def body():
        async with two_servers(tmp_path) as (_, client):
            (stream,) = await client.create_streams([StreamSpec("s")])
            stream_id = stream.stream_id
            writer = Writer()
            for number in range(5):
                item = AppendItem(stream_id, rows_batch([b"%d" % number], stream_id))
                (outcome,) = await client.append([item], writer=writer)
                assert outcome.base_offset == number
                opened = await moved(client, stream_id)
                async with RawClient.at(opened.servers[0]) as raw:
                    options = {"writer": writer.writer_id, "first": number}
                    assert await eventually(raw, stream_id, str(number), **options) == [number]
                    (gap,) = await eventually(
                        raw, stream_id, "x", writer=writer.writer_id, first=number + 2
                    )
                    assert isinstance(gap, WriterGapError)

    run(body())


def without_writers(list_hosted_ranges):
    """The answer of a placement driver that does not know writers."""

    async def listed(stream_ids):
        found = await list_hosted_ranges(stream_ids)
        return {key: dataclasses.replace(each, writers=b"") for key, each in found.items()}

    return listed


def test_earlier_writers_are_looked_up_and_never_guessed(tmp_path, taking_turns):
    """A server with a range from elsewhere, and a placement driver that does not know writers."""

    async def body():
        async with two_servers(tmp_path) as (servers, client):
            (stream,) = await client.create_streams([StreamSpec("s")])
            stream_id = stream.stream_id
            writer = Writer()
            item = AppendItem(stream_id, rows_batch([b"a"], stream_id))
            await client.append([item], writer=writer)
            originals = {}
            for server in servers.values():
                originals[server.endpoint] = server._membership.list_hosted_ranges
                server._membership.list_hosted_ranges = without_writers(originals[server.endpoint])
            opened = await moved(client, stream_id)
            async with RawClient.at(opened.servers[0]) as raw:
                options = {"writer": writer.writer_id}
                (refused,) = await send(raw, stream_id, "a", **options)
                assert refused.code == StatusCode.WRITERS_NOT_THERE
                assert refused.retriable
                (refused,) = await send(raw, stream_id, "b", writer="other")
                assert refused.code == StatusCode.WRITERS_NOT_THERE
                plain = AppendItem(stream_id, rows_batch([b"plain"], stream_id))
                await client.append([plain])
                (endpoint,) = opened.servers
                servers[endpoint]._membership.list_hosted_ranges = originals[endpoint]
                assert await eventually(raw, stream_id, "a", **options) == [0]
                assert await eventually(raw, stream_id, "b", first=1, **options) == [2]

    run(body())
