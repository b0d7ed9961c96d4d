"""Staged appends: accepted ones, refused ones, and that readers see none of them."""

from __future__ import annotations

import asyncio

from sbp_core.errors import (
    DiskFullError,
    InvalidRequestError,
    NotFoundError,
    RangeNotFoundError,
    ThrottledError,
)
from sbp_core.wire.headers import FetchInfo, FetchRequest, StreamRange
from sbp_core.wire.opcodes import Opcode
from tests.support.appends import end, one_driven_stream, open_txns, read_staged, stage
from tests.support.disk import FixedProbe, HeldDisk
from tests.support.wire import RawClient


def run(folder, body, **options):
    async def main():
        async with one_driven_stream(folder, **options) as parts:
            await asyncio.wait_for(body(*parts), 60)

    asyncio.run(main())


def test_a_repeat_of_what_waits_for_the_disk_is_answered_with_it(tmp_path):
    async def body(cluster, stream_id, client):
        async with RawClient.at(cluster.server.endpoint) as other:
            assert await stage(client, stream_id, "other", "-") == [-1]
            disk.gate.clear()
            tasks = [
                asyncio.create_task(stage(each, stream_id, "t", "a", "b"))
                for each in (client, other)
            ]
            for connection in (client, other):
                await connection.call(Opcode.PING)
            assert not any(task.done() for task in tasks)
            disk.gate.set()
            assert await asyncio.gather(*tasks) == [[-1, -1], [-1, -1]]
            assert await open_txns(client) == [("other", 0, 1), ("t", 0, 2)]

    disk = HeldDisk()
    disk.gate.set()
    run(tmp_path, body, disk=disk)


def test_a_full_disk_refuses_staged_batches(tmp_path):
    probe = FixedProbe(1 << 40)

    async def body(cluster, stream_id, client):
        probe.free = 0
        await cluster.server._disk_space.measure()
        (refused,) = await stage(client, stream_id, "t", "a")
        assert isinstance(refused, DiskFullError)

    run(tmp_path, body, probe=probe)


def test_there_is_room_for_so_many_transactions(tmp_path):
    async def body(cluster, stream_id, client):
        for name in ("t", "u"):
            assert await stage(client, stream_id, name, "a") == [-1]
        refused = await stage(client, stream_id, "v", "a", "b")
        assert [type(each) for each in refused] == [ThrottledError, ThrottledError]
        assert await stage(client, stream_id, "u", "a", "b") == [-1, -1]
        assert await stage(client, stream_id, "u~0", "a") == [-1], "copies of a decided transaction"
        for name in ("u", "u~0"):
            await end(client, stream_id, name, commit=False)
        assert await stage(client, stream_id, "v", "a", "b") == [-1, -1]
        assert [type(each) for each in await stage(client, stream_id, "w", "a")] == [ThrottledError]

    run(tmp_path, body, bounds={"stagings_max": 2})


def test_staged_batches_are_read_frame_by_frame(tmp_path):
    async def body(_, stream_id, client):
        assert await stage(client, stream_id, "t", "ab", "c", "de") == [-1] * 3
        assert await read_staged(client, stream_id, "t", max_bytes=1) == ("ab", 1)
        assert await read_staged(client, stream_id, "t", first=1) == ("cde", 3)
        assert await read_staged(client, stream_id, "t", first=3) == ("", 3)
        for first in (-1, 4):
            refused = await read_staged(client, stream_id, "t", first=first)
            assert isinstance(refused, InvalidRequestError)
        nothing = await read_staged(client, stream_id, "u")
        assert isinstance(nothing, NotFoundError)
        nowhere = await read_staged(client, stream_id, "t", range_index=1)
        assert isinstance(nowhere, RangeNotFoundError)
        refused = await read_staged(client, stream_id, "t", range_index=-1)
        assert isinstance(refused, InvalidRequestError)

    run(tmp_path, body)


def test_a_frame_asks_for_what_is_staged_or_for_what_is_not(tmp_path):
    async def body(_, stream_id, client):
        await stage(client, stream_id, "t", "a")
        where = StreamRange(stream_id=stream_id, range_index=0)
        infos = (
            FetchInfo(where, 0, txn_id="t"),
            FetchInfo(where, 1),
            FetchInfo(where, 2, txn_id="t"),
        )
        answers = await client.ask(Opcode.FETCH, FetchRequest(30_000, 1, infos))
        results = [result for answer in answers for result in answer.fetch_responses]
        assert [(each.request_index, each.batch_count) for each in results] == [
            (0, 1),
            (1, 0),
            (2, 1),
        ]

    run(tmp_path, body)


def test_a_deleted_stream_takes_what_is_staged_along(tmp_path):
    async def body(cluster, stream_id, client):
        assert await stage(client, stream_id, "t", "a") == [-1]
        await cluster.client.delete_streams([stream_id])
        assert await open_txns(client) == []
        (refused,) = await stage(client, stream_id, "t", "a")
        assert isinstance(refused, NotFoundError)
        assert isinstance(await end(client, stream_id, "t"), NotFoundError)
        assert isinstance(await read_staged(client, stream_id, "t"), NotFoundError)

    run(tmp_path, body)


def test_staged_batches_are_listed_by_producer(tmp_path):
    async def body(_, stream_id, client):
        for txn_id in ("orders.7.x", "orders.8.x", "other"):
            assert await stage(client, stream_id, txn_id, "a") == [-1]
        assert await open_txns(client, "orders") == [("orders.7.x", 0, 1), ("orders.8.x", 0, 1)]
        assert await open_txns(client, "absent") == []
        assert len(await open_txns(client)) == 3

    run(tmp_path, body)


def test_a_drop_is_of_one_range_or_of_all(tmp_path):
    async def body(cluster, stream_id, client):
        assert await stage(client, stream_id, "t", "a") == [-1]
        assert await stage(client, stream_id, "u", "b") == [-1]
        await cluster.client.seal_streams([stream_id])
        assert await stage(client, stream_id, "t", "cc", range_index=1) == [-1]
        assert await end(client, stream_id, "t", "x", commit=False, range_index=0) == (-1, 1)
        assert await open_txns(client) == [("u", 0, 1), ("t", 1, 2)]
        assert await end(client, stream_id, "t", "u", commit=False, range_index=-1) == (-1, 3)
        assert await open_txns(client) == []

    run(tmp_path, body)
