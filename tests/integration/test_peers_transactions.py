"""A client's transactions on real servers that seal, move and are killed, ended as a PD does it."""

from __future__ import annotations

import asyncio

import pytest

from sbp_core.client import AppendItem, FetchItem, StreamSpec, Transaction, TxnPart
from sbp_core.cluster import Cluster
from sbp_core.errors import NotFoundError, WriterGapError
from sbp_core.peers.driver_calls import Ended, TxnEnd, copy_staged, end_txns, stage, staged_batches
from sbp_core.settings.server_settings import ClusterSettings
from sbp_core.wire.txn_id import copy_of
from tests.support.cluster import DrivingClient, rows_batch, values_of


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
