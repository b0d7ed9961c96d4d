"""Clusters that are backed up, lost and restored: the calls of tests to their clients."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from core_cluster import rows_batch, values_of

from sbp_core.backup.format import Manifest
from sbp_core.backup.place import Place
from sbp_core.backup.restoring import restore_backup
from sbp_core.client import (
    AppendItem,
    AsyncClient,
    Connecting,
    FetchItem,
    StreamSpec,
    Transaction,
)
from sbp_core.session.negotiation import Wishes
from sbp_core.wire.txn_id import txn_id_of


@asynccontextmanager
async def client_of(cluster, **options) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(cluster.endpoints.pd, **options) as client:
        yield client


def restorer(cluster, manifest: Manifest):
    wishes = Wishes(restoring=manifest.backup_id)
    return client_of(cluster, connecting=Connecting(wishes=wishes))


async def restore(cluster, place: Place, manifest: Manifest) -> None:
    async with restorer(cluster, manifest) as client:
        await restore_backup(client, place, manifest)


async def read_all(client: AsyncClient, stream_id: int) -> dict[int, bytes]:
    """The values of a stream by offset, from its first record to its end."""
    (bounds,) = await client.stream_bounds([stream_id])
    found: dict[int, bytes] = {}
    position = bounds.start_offset
    while position < bounds.next_offset:
        item = FetchItem(stream_id, position, bounds.next_offset, 1 << 20)
        (outcome,) = [each async for each in client.fetch([item])]
        if outcome.error is not None:
            raise outcome.error
        found |= {at: value for at, value in values_of(outcome.payload) if at >= position}
        position = outcome.next_offset
    assert list(found) == list(range(bounds.start_offset, bounds.next_offset))
    return found


async def append(client: AsyncClient, stream_id: int, *values: bytes, writer=None) -> int:
    item = AppendItem(stream_id, rows_batch(values, stream_id))
    (outcome,) = await client.append([item], writer=writer)
    return outcome.base_offset


async def create(client: AsyncClient, *names: str, replicas: int = 1) -> list[int]:
    created = await client.create_streams([StreamSpec(each, replicas) for each in names])
    return [each.stream_id for each in created]


async def commit(client: AsyncClient, number: int, stream_ids, producer: str = "p") -> bool:
    """Commit a batch with its number as the only value in each stream; whether it is a replay."""
    transaction = Transaction(txn_id_of(producer, number, uuid.uuid4().hex))
    value = str(number).encode()
    items = [AppendItem(each, rows_batch([value], each)) for each in stream_ids]
    await client.append(items, transaction=transaction)
    decision = await client.commit_txn(
        producer,
        number,
        transaction.parts(),
        record_count=len(stream_ids),
        digest=b"%08d" % number,
    )
    assert decision.digest == b"%08d" % number
    return decision.is_replay


def run(main) -> None:
    asyncio.run(asyncio.wait_for(main, 90))
