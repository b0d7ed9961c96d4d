"""Staged batches that will never be published are dropped: the placement driver decides it."""

from __future__ import annotations

import asyncio
import time

import pytest

from sbp_core.client import AppendItem, Transaction
from sbp_core.errors import TxnAbortedError, TxnEndedError
from tests.support.appends import letters_of, one_driven_stream, open_txns
from tests.support.cluster import rows_batch

DIGEST = bytes(8)


HASTY = {"staged_ask_ms": 0, "clock_even_ms": 0}
"""Ask about staged batches at once, and trust the clock at once."""


def run(folder, body, **options):
    async def main():
        async with one_driven_stream(
            folder, retention_check_interval_ms=10, bounds=HASTY, **options
        ) as parts:
            await asyncio.wait_for(body(*parts), 60)

    asyncio.run(main())


async def stage(cluster, stream_id, txn_id, letter):
    transaction = Transaction(txn_id)
    items = [AppendItem(stream_id, rows_batch([letter.encode()]))]
    await cluster.client.append(items, transaction=transaction)
    return transaction


async def until_staged(client, *txn_ids):
    give_up_at = time.monotonic() + 30
    while (found := {txn_id for txn_id, *_ in await open_txns(client)}) != set(txn_ids):
        assert time.monotonic() < give_up_at, found
        await asyncio.sleep(0.02)


def test_staged_entries_that_a_decided_batch_does_not_name_are_dropped(tmp_path):
    async def body(cluster, stream_id, client):
        named = await stage(cluster, stream_id, "p.7.named", "a")
        late = await stage(cluster, stream_id, "p.7.late", "b")
        next_one = await stage(cluster, stream_id, "p.8.next", "c")
        await stage(cluster, stream_id, "without-batch", "d")
        commit = cluster.client.commit_txn
        decision = await commit("p", 7, named.parts(), record_count=1, digest=DIGEST)
        assert decision.is_published
        await until_staged(client, "p.8.next", "without-batch")
        items = [AppendItem(stream_id, rows_batch([b"e"]))]
        with pytest.raises(TxnEndedError):
            await cluster.client.append(items, transaction=late)
        await commit("p", 8, next_one.parts(), record_count=1, digest=DIGEST)
        await until_staged(client, "without-batch")
        assert await letters_of(cluster, stream_id) == "ac"

    run(tmp_path, body)


def test_undecided_batches_are_given_up(tmp_path):
    async def body(cluster, stream_id, client):
        given_up = await stage(cluster, stream_id, "p.7.x", "a")
        await until_staged(client)
        with pytest.raises(TxnAbortedError):
            await cluster.client.commit_txn("p", 7, given_up.parts(), record_count=1, digest=DIGEST)
        assert await letters_of(cluster, stream_id) == ""

    run(tmp_path, body, staged_timeout_ms=1)
