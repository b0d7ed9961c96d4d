"""Small batches that a server merges while clients read, and what they find then."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from core_cluster import CoreCluster, core_cluster
from numbered_appends import eventually, one_stream, send
from raw_client import RawClient

from sbp_core import limits
from sbp_core.client import FetchItem
from sbp_core.records import split_envelopes

COUNT = 300
NAMES = [f"record {number}" for number in range(COUNT)]
RECORDS = [(offset, name.encode()) for offset, name in enumerate(NAMES)]
STEP = 10
"""Batches of a frame; fewer than the server remembers of a writer."""


async def merged(cluster: CoreCluster) -> None:
    """Let the open segment become a full one, and wait until its batches are merged."""
    housekeeping = cluster.server._housekeeping
    before = housekeeping.cleaned.merged_count
    cluster.server._log.end_segment()
    async with asyncio.timeout(60):
        while housekeeping.cleaned.merged_count == before:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def batch_counts(cluster: CoreCluster, stream_id: int) -> list[int]:
    item = FetchItem(stream_id, 0, None, limits.MIB)
    (outcome,) = [each async for each in cluster.client.fetch([item])]
    return [each.record_count for each in split_envelopes(outcome.payload)]


def test_readers_and_writers_notice_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "DISK_SHORT_CHECK_INTERVAL_MS", 20)

    async def body() -> None:
        options = {"retention_check_interval_ms": 20}
        async with one_stream(tmp_path, **options) as (cluster, stream_id, client):
            before_ms = time.time_ns() // 1_000_000
            for first in range(0, COUNT, STEP):
                names = NAMES[first : first + STEP]
                assert await send(client, stream_id, *names, first=first) == list(
                    range(first, first + STEP)
                )
            assert await batch_counts(cluster, stream_id) == [1] * COUNT
            await merged(cluster)
            counts = await batch_counts(cluster, stream_id)
            assert sum(counts) == COUNT
            assert len(counts) < COUNT / 2
            for start, max_bytes in ((0, limits.MIB), (0, 1), (137, limits.MIB), (COUNT - 1, 1)):
                found = await cluster.read(stream_id, start, max_bytes=max_bytes)
                assert found == RECORDS[start:]
            assert await cluster.client.lookup_offsets({stream_id: before_ms * 1000}) == {
                stream_id: 0
            }
            repeat = await send(client, stream_id, *NAMES[-STEP:], first=COUNT - STEP)
            assert repeat == list(range(COUNT - STEP, COUNT))
            await cluster.client.trim_streams({stream_id: 137})
            assert await cluster.read(stream_id, 137) == RECORDS[137:]
        async with (
            core_cluster(tmp_path) as cluster,
            RawClient.at(cluster.server.endpoint) as client,
        ):
            assert await cluster.read(stream_id, 137) == RECORDS[137:]
            repeat = await eventually(client, stream_id, *NAMES[-STEP:], first=COUNT - STEP)
            assert repeat == list(range(COUNT - STEP, COUNT))
            assert await eventually(client, stream_id, "next", first=COUNT) == [COUNT]

    asyncio.run(asyncio.wait_for(body(), 120))
