"""An asyncio client closes completely, at whatever point a task that uses it is cancelled."""

from __future__ import annotations

import asyncio

import pytest

from sbp_core import limits
from sbp_core.client import AppendItem, AsyncClient, FetchItem, StreamSpec, Writer
from tests.support.client import cancel_everywhere
from tests.support.cluster import rows_batch

uvloop = pytest.importorskip("uvloop")

LOOPS = {"asyncio": asyncio.SelectorEventLoop, "uvloop": uvloop.new_event_loop}


@pytest.fixture
def new_loop():
    return LOOPS["asyncio"]


@pytest.fixture
def stream_id(client):
    (info,) = client.create_streams([StreamSpec(None)])
    client.append([AppendItem(info.stream_id, rows_batch([b"x"], info.stream_id))])
    return info.stream_id


@pytest.mark.parametrize("new_loop", LOOPS.values(), ids=LOOPS)
def test_a_first_call(cluster, new_loop):
    async def ping(client: AsyncClient) -> None:
        await client.ping()

    assert cancel_everywhere(ping, cluster.endpoint, new_loop) > 5


def test_a_connection_without_a_call_that_is_closed_at_once(cluster, new_loop, monkeypatch):
    monkeypatch.setattr(limits, "CLOSE_TIMEOUT_MS", 200)  # some moments let the client wait so long

    async def begin(client: AsyncClient) -> None:
        asking = asyncio.create_task(client.ping())
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait({asking})

    assert cancel_everywhere(begin, cluster.endpoint, new_loop) > 2


@pytest.mark.parametrize("new_loop", LOOPS.values(), ids=LOOPS)
def test_an_append(cluster, stream_id, new_loop):
    async def append(client: AsyncClient) -> None:
        item = AppendItem(stream_id, rows_batch([b"x"], stream_id))
        await client.append([item], writer=Writer("w"))

    assert cancel_everywhere(append, cluster.endpoint, new_loop) > 8


def test_batches_that_are_appended_as_they_are_made(cluster, stream_id, new_loop):
    async def append(client: AsyncClient) -> None:
        async with client.appender() as appender:
            for _ in range(3):
                await appender.append([AppendItem(stream_id, rows_batch([b"x"], stream_id))])
            await appender.finish()

    assert cancel_everywhere(append, cluster.endpoint, new_loop) > 8


def test_a_fetch_that_waits_for_more(cluster, stream_id, new_loop):
    async def fetch(client: AsyncClient) -> None:
        for offset in (0, 10**6):
            items = [FetchItem(stream_id, offset, None, 1 << 20)]
            async for _ in client.fetch(items, max_wait_ms=20):
                pass
        (bounds,) = await client.stream_bounds([stream_id])
        async for _ in client.fetch(
            [FetchItem(stream_id, bounds.next_offset, None, 1 << 20)], max_wait_ms=20
        ):
            pass

    assert cancel_everywhere(fetch, cluster.endpoint, new_loop) > 8


def test_calls_of_many_tasks(cluster, new_loop):
    async def many(client: AsyncClient) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(client.list_streams())

    assert cancel_everywhere(many, cluster.endpoint, new_loop) > 5


def test_a_server_that_is_not_there(new_loop, unused_endpoint):
    async def ping(client: AsyncClient) -> None:
        with pytest.raises(Exception, match="refused"):
            await client.ping()

    assert cancel_everywhere(ping, unused_endpoint, new_loop) > 2


@pytest.fixture
def unused_endpoint():
    import socket

    with socket.create_server(("127.0.0.1", 0)) as closed:
        return f"127.0.0.1:{closed.getsockname()[1]}"
