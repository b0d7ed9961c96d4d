"""A client's transactions on real servers that seal, move and are killed, ended as a PD does it."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager

import pytest

from sbp_core import limits
from sbp_core.client import AppendItem, FetchItem, StreamSpec, Transaction, TxnPart
from sbp_core.cluster import Cluster
from sbp_core.errors import (
    NotFoundError,
    RangeSealedError,
    TxnEndedError,
    TxnIncompleteError,
    WriterGapError,
)
from sbp_core.pd import PlacementDriver
from sbp_core.peers.transactions import (
    Ended,
    TxnEnd,
    copy_staged,
    end_txns,
    stage,
    staged_batches,
)
from sbp_core.settings.server_settings import ClusterSettings, PlacementDriverSettings
from sbp_core.wire.txn_id import copy_of
from tests.support.cluster import DrivingClient, rows_batch, values_of
from tests.support.machines import RangeServerProcess


def run(folder, body, **options):
    async def main():
        settings = {"pd_port": 0, "range_server_port": 0, "range_servers": 2, **options}
        cluster = Cluster(ClusterSettings(data_dir=folder, **settings))
        await cluster.start()
        try:
            async with DrivingClient(cluster.endpoints.pd, folder) as client:
                await asyncio.wait_for(body(client), 60)
        finally:
            await cluster.stop()

    asyncio.run(main())


def batches(stream_id, *names):
    return [AppendItem(stream_id, rows_batch([letter.encode() for letter in n])) for n in names]


async def create(client, name="s"):
    (stream,) = await client.create_streams([StreamSpec(name)])
    return stream.stream_id


def staged_count(transaction):
    return sum(part.record_count for part in transaction.parts())


async def eventually(is_so):
    give_up_at = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < give_up_at, "it did not happen in time"
        await asyncio.sleep(0.001)


async def server_of(client, stream_id, range_index=-1):
    (ranges,) = (await client.list_ranges([stream_id])).values()
    return ranges[range_index].servers[0]


async def text(client, stream_id):
    """All that a reader sees of a stream."""
    letters, offset = b"", 0
    while True:
        item = FetchItem(stream_id, offset, None, 1 << 20)
        (outcome,) = [outcome async for outcome in client.fetch([item])]
        assert outcome.error is None
        if not outcome.payload:
            return letters.decode()
        found = values_of(outcome.payload)
        assert [at for at, _ in found] == list(range(offset, outcome.next_offset))
        letters += b"".join(value for _, value in found)
        offset = outcome.next_offset


async def staged_text(client, server, part):
    """The staged batches, as they are read for a copy."""
    found = [each async for frame in staged_batches(client, server, part) for each in frame]
    return b"".join(value for each in found for _, value in values_of(each)).decode()


def test_many_streams_are_staged_and_ended_together(tmp_path):
    async def body(client):
        specs = [StreamSpec(f"s{number}") for number in range(40)]
        streams = [each.stream_id for each in await client.create_streams(specs)]
        transactions = [Transaction(f"p.0.{unique}") for unique in "xy"]
        for transaction in transactions:
            items = [item for each in streams for item in batches(each, "a", "bc")]
            outcomes = await client.append(items, transaction=transaction)
            assert {outcome.base_offset for outcome in outcomes} == {-1}
        parts = transactions[0].parts()
        assert parts == tuple(TxnPart("p.0.x", each, 0, 3, 2) for each in streams)
        by_server = {}
        for each in streams:
            end = TxnEnd(each, 0, ("p.0.y", "p.0.x"), record_count=6)
            by_server.setdefault(await server_of(client, each), []).append(end)
        assert len(by_server) == 2
        for server, ends in by_server.items():
            for _ in range(2):
                assert await end_txns(client, server, ends) == [Ended(0, 6)] * len(ends)
        assert await text(client, streams[0]) == await text(client, streams[-1]) == "abcabc"

    run(tmp_path, body)


def test_a_transaction_goes_on_in_the_next_range_and_is_copied_there(tmp_path):
    async def body(client):
        stream_id = await create(client)
        await create(client, "makes-the-other-server-busy")
        await create(client, "makes-the-first-server-busier")
        transaction = Transaction("p.0.x")
        await client.append(batches(stream_id, "ab", "c"), transaction=transaction)
        await client.seal_streams([stream_id])
        await client.append(batches(stream_id, "d"), transaction=transaction)
        first, second = transaction.parts()
        assert (first, second) == (
            TxnPart("p.0.x", stream_id, 0, 3, 2),
            TxnPart("p.0.x", stream_id, 1, 1, 1),
        )
        old, new = [await server_of(client, stream_id, each) for each in (0, 1)]
        copy = copy_of("p.0.x", 0)
        end = TxnEnd(stream_id, 1, (copy, "p.0.x"), record_count=4)
        (sealed,) = await end_txns(client, old, [TxnEnd(stream_id, 0, ("p.0.x",))])
        assert isinstance(sealed, RangeSealedError)
        (incomplete,) = await end_txns(client, new, [end])
        assert isinstance(incomplete, TxnIncompleteError)
        for _ in range(2):
            await copy_staged(client, old, first, new, 1)
        assert await staged_text(client, new, TxnPart(copy, stream_id, 1, 3)) == "abc"
        for _ in range(2):
            assert await end_txns(client, new, [end]) == [Ended(0, 4)]
        with pytest.raises(TxnEndedError):
            await copy_staged(client, old, first, new, 1)
        drop = TxnEnd(stream_id, 0, ("p.0.x",), is_commit=False)
        assert await end_txns(client, old, [drop]) == [Ended(-1, 3)]
        assert await end_txns(client, old, [drop]) == [Ended(-1, 0)]
        await copy_staged(client, old, first, new, 1)  # nothing is left, so nothing is copied
        assert await text(client, stream_id) == "abcd"

    run(tmp_path, body)


def test_more_than_a_frame_is_copied(tmp_path):
    async def body(client):
        stream_id = await create(client)
        transaction = Transaction("t")
        large = [rows_batch([bytes([65 + number]) * (3 << 20)]) for number in range(4)]
        small = [item.batch for item in batches(stream_id, *"abcdefgh" * 200)]
        for group in (large, small):
            items = [AppendItem(stream_id, each) for each in group]
            await client.append(items, transaction=transaction)
        (part,) = transaction.parts()
        await client.seal_streams([stream_id])
        old, new = [await server_of(client, stream_id, each) for each in (0, 1)]
        await copy_staged(client, old, part, new, 1)
        count = len(large) + len(small)
        end = TxnEnd(stream_id, 1, (copy_of("t", 0),), record_count=count)
        assert await end_txns(client, new, [end]) == [Ended(0, count)]
        assert (await text(client, stream_id))[12 << 20 :] == "abcdefgh" * 200

    run(tmp_path, body)


def test_a_batch_that_cannot_be_staged_is_reported(tmp_path):
    async def body(client):
        stream_id = await create(client)
        server = await server_of(client, stream_id)
        where = TxnPart("t", stream_id, 0, 0)
        batch = batches(stream_id, "a")[0].batch
        with pytest.raises(WriterGapError):
            await stage(client, server, where, 1, [batch])
        await stage(client, server, where, 0, [batch])
        await stage(client, server, where, 0, [batch, batch])
        assert await staged_text(client, server, where) == "aa"
        with pytest.raises(NotFoundError):
            await staged_text(client, server, TxnPart("u", stream_id, 0, 0))
        assert await end_txns(client, server, []) == []

    run(tmp_path, body)


@asynccontextmanager
async def killable(folder):
    """A range server as a process of its own, with a stream."""
    pd = PlacementDriver(PlacementDriverSettings(data_dir=folder / "pd", port=0))
    endpoint = await pd.start()
    server = RangeServerProcess(folder / "rs", endpoint, heartbeat_interval_ms=50)
    try:
        async with server, DrivingClient(endpoint, folder) as client:
            yield server, client, await create(client)
    finally:
        await pd.stop()


def test_a_server_that_is_killed_in_between_forgets_nothing(tmp_path):
    async def main():
        async with killable(tmp_path) as (server, client, stream_id):
            transaction = Transaction("t")
            await client.append(batches(stream_id, "ab"), transaction=transaction)
            for restart in range(2):
                await server.kill()
                await server.start()
                await client.append(batches(stream_id, "c"), transaction=transaction)
                (part,) = transaction.parts()
                assert part.record_count == 3 + restart
                assert await staged_text(client, server.endpoint, part) == "abc" + "c" * restart
                assert await text(client, stream_id) == ""
            end = TxnEnd(stream_id, 0, ("t",), record_count=4)
            for _ in range(2):
                assert await end_txns(client, server.endpoint, [end]) == [Ended(0, 4)]
                assert await text(client, stream_id) == "abcc"
                with pytest.raises(TxnEndedError):
                    await stage(
                        client, server.endpoint, part, 4, [batches(stream_id, "d")[0].batch]
                    )
                await server.kill()
                await server.start()

    asyncio.run(asyncio.wait_for(main(), limits.RETRY_BUDGET_MS / 1000))


def test_a_server_that_is_killed_while_it_stages_and_ends_does_each_once(tmp_path):
    """Requests that fail are retried until they are acknowledged."""

    async def main():
        async with killable(tmp_path) as (server, client, stream_id):
            transaction = Transaction("t")
            names = [f"{number:02}" for number in range(20)]

            async def stage_all():
                for name in names:
                    await client.append(batches(stream_id, name), transaction=transaction)

            staging = asyncio.create_task(stage_all())
            for count in (2, 10):
                await eventually(lambda count=count: staged_count(transaction) >= count)
                await server.kill()
                await server.start()
            await staging
            (part,) = transaction.parts()
            assert part.record_count == 40
            ending = asyncio.create_task(
                end_txns(client, server.endpoint, [TxnEnd(stream_id, 0, ("t",), record_count=40)])
            )
            await server.kill()
            await asyncio.gather(ending, return_exceptions=True)
            await server.start()
            end = TxnEnd(stream_id, 0, ("t",), record_count=40)
            assert await end_txns(client, server.endpoint, [end]) == [Ended(0, 40)]
            assert await text(client, stream_id) == "".join(names)

    asyncio.run(asyncio.wait_for(main(), limits.RETRY_BUDGET_MS / 1000))
