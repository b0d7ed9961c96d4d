"""Staged appends: accepted ones, refused ones, and that readers see none of them."""

from __future__ import annotations

import asyncio

import pytest

from sbp_core import limits
from sbp_core.client import AppendItem, FetchItem
from sbp_core.errors import (
    DiskFullError,
    InvalidRequestError,
    NotFoundError,
    RangeNotFoundError,
    RangeSealedError,
    ThrottledError,
    TxnEndedError,
    WriterGapError,
)
from sbp_core.wire.headers import FetchInfo, FetchRequest, StreamRange
from sbp_core.wire.opcodes import Opcode
from tests.support.appends import (
    end,
    letters_of,
    one_driven_stream,
    open_txns,
    read_staged,
    seal,
    stage,
    staged,
)
from tests.support.cluster import core_cluster, rows_batch
from tests.support.disk import FixedProbe, HeldDisk
from tests.support.wire import RawClient


def run(folder, body, **options):
    async def main():
        async with one_driven_stream(folder, **options) as parts:
            await asyncio.wait_for(body(*parts), 60)

    asyncio.run(main())


def test_staged_batches_are_stored_once_and_not_readable(tmp_path):
    async def body(cluster, stream_id, client):
        assert await stage(client, stream_id, "t", "ab", "c") == [-1, -1]
        assert await stage(client, stream_id, "t", "ab", "c", "d") == [-1, -1, -1]
        assert await letters_of(cluster, stream_id) == ""
        (bounds,) = await cluster.client.stream_bounds([stream_id])
        assert bounds.next_offset == 0
        assert await read_staged(client, stream_id, "t") == ("abcd", 3)
        assert await open_txns(client) == [("t", 0, 4)]
        assert await end(client, stream_id, "t") == (0, 4)
        assert await letters_of(cluster, stream_id) == "abcd"
        assert await open_txns(client) == []

    run(tmp_path, body)


def test_a_gap_is_refused_with_what_is_expected(tmp_path):
    async def body(_, stream_id, client):
        results = await stage(client, stream_id, "t", "a", "c", "b", sequences=[0, 2, 1])
        assert (results[0], results[2]) == (-1, -1)
        assert isinstance(results[1], WriterGapError)
        assert results[1].expected == 1
        (gap,) = await stage(client, stream_id, "other", "a", first=1)
        assert gap.expected == 0
        assert await read_staged(client, stream_id, "t") == ("ab", 2)

    run(tmp_path, body)


def test_each_transaction_has_numbers_of_its_own(tmp_path):
    async def body(_, stream_id, client):
        for txn_id in ("t", "u"):
            assert await stage(client, stream_id, txn_id, txn_id, "x") == [-1, -1]
        assert await read_staged(client, stream_id, "u") == ("ux", 2)
        assert await open_txns(client) == [("t", 0, 2), ("u", 0, 2)]

    run(tmp_path, body)


@pytest.mark.parametrize(
    "options",
    [
        {"txn_id": ""},
        {"txn_id": "a b"},
        {"txn_id": "x" * (limits.TXN_ID_LENGTH_MAX + 1)},
        {"writer": "w"},
        {"range_index": -1},
        {"sequences": [-1]},
    ],
    ids=str,
)
def test_nonsensical_options_are_refused(tmp_path, options):
    async def body(_, stream_id, client):
        txn_id = options.pop("txn_id", "t")
        (refused,) = await stage(client, stream_id, txn_id, "a", **options)
        assert isinstance(refused, InvalidRequestError)
        assert await open_txns(client) == []

    run(tmp_path, body)


def test_a_repeat_with_other_records_is_refused(tmp_path):
    async def body(_, stream_id, client):
        assert await stage(client, stream_id, "t", "a") == [-1]
        (refused,) = await stage(client, stream_id, "t", "ab")
        assert isinstance(refused, InvalidRequestError)

    run(tmp_path, body)


def test_a_sealed_range_takes_nothing_new_and_keeps_what_it_has(tmp_path):
    async def body(cluster, stream_id, client):
        assert await stage(client, stream_id, "t", "a") == [-1]
        await cluster.client.seal_streams([stream_id])
        staged_before, refused = await stage(client, stream_id, "t", "a", "b")
        assert staged_before == -1
        assert isinstance(refused, RangeSealedError)
        assert await stage(client, stream_id, "t", "b", range_index=1) == [-1]
        (unknown,) = await stage(client, stream_id, "t", "c", range_index=2)
        assert isinstance(unknown, RangeNotFoundError)
        assert await open_txns(client) == [("t", 0, 1), ("t", 1, 1)]

    run(tmp_path, body)


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


def test_staged_batches_outlive_a_restart(tmp_path):
    async def main():
        async with one_driven_stream(tmp_path) as (_, stream_id, client):
            assert await stage(client, stream_id, "t", "a", "b") == [-1, -1]
        for first in (2, 3):
            async with (
                core_cluster(tmp_path) as cluster,
                RawClient.at(cluster.server.endpoint) as client,
            ):
                assert await stage(client, stream_id, "t", "a", "b") == [-1, -1]
                assert await stage(client, stream_id, "t", "c", first=first) == [-1]
                assert await letters_of(cluster, stream_id) == ""
        assert first == 3

    asyncio.run(asyncio.wait_for(main(), 60))


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


def test_plain_appends_go_on_beside_what_is_staged(tmp_path):
    async def body(cluster, stream_id, client):
        for number, letter in enumerate("pqr"):
            assert await stage(client, stream_id, "t", "s", first=number) == [-1]
            item = AppendItem(stream_id, rows_batch([letter.encode()]))
            (outcome,) = await cluster.client.append([item])
            assert outcome.base_offset == number
        assert await end(client, stream_id, "t") == (3, 3)
        assert await letters_of(cluster, stream_id) == "pqrsss"

    run(tmp_path, body)


def test_staged_batches_are_listed_by_producer(tmp_path):
    async def body(_, stream_id, client):
        for txn_id in ("orders.7.x", "orders.8.x", "other"):
            assert await stage(client, stream_id, txn_id, "a") == [-1]
        assert await open_txns(client, "orders") == [("orders.7.x", 0, 1), ("orders.8.x", 0, 1)]
        assert await open_txns(client, "absent") == []
        assert len(await open_txns(client)) == 3

    run(tmp_path, body)


def test_a_late_batch_of_a_transaction_that_ended_is_refused(tmp_path):
    async def body(cluster, stream_id, client):
        for txn_id in ("published", "dropped"):
            assert await stage(client, stream_id, txn_id, "a") == [-1]
        assert await end(client, stream_id, "published") == (0, 1)
        assert await end(client, stream_id, "dropped", commit=False) == (-1, 1)
        for txn_id in ("published", "dropped"):
            for first in (0, 1):
                (refused,) = await stage(client, stream_id, txn_id, "a", first=first)
                assert isinstance(refused, TxnEndedError)
        assert await letters_of(cluster, stream_id) == "a"
        assert await open_txns(client) == []

    run(tmp_path, body)


def test_dropped_batches_are_gone(tmp_path):
    async def body(cluster, stream_id, client):
        assert await stage(client, stream_id, "t", "abc") == [-1]
        assert await end(client, stream_id, "t", commit=False) == (-1, 3)
        assert await end(client, stream_id, "t", commit=False) == (-1, 0)
        assert isinstance(await end(client, stream_id, "t"), TxnEndedError)
        assert isinstance(await read_staged(client, stream_id, "t"), NotFoundError)
        item = FetchItem(stream_id, 0, None, 1 << 20)
        (outcome,) = [each async for each in cluster.client.fetch([item])]
        assert not outcome.payload

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


def test_sealing_keeps_what_is_staged_out_of_the_stream(tmp_path):
    async def body(_, stream_id, client):
        request, batches = staged(stream_id, "t", "abc")
        await client.ask(Opcode.APPEND, request, batches)
        assert await seal(client, stream_id) == 0

    run(tmp_path, body)
