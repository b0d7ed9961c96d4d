"""Small batches that a server merges while clients read, and what they find then."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from sbp_core import limits
from sbp_core.app import AsyncConnection
from sbp_core.backup import taking
from sbp_core.backup.place import Place
from sbp_core.backup.upkeep import check_backup
from sbp_core.cli import stream_copy
from sbp_core.cli.main import main
from sbp_core.client import AsyncClient, Client, FetchItem
from sbp_core.log import merging
from sbp_core.records import split_envelopes
from sbp_core.web.console.record_search import RecordFilter, Search
from sbp_core.web.records.record_answers import Span, read_span
from tests.support.appends import eventually, one_stream, read_all, restore, send
from tests.support.cluster import CoreCluster, cluster_of, core_cluster
from tests.support.wire import RawClient

COUNT = 300
NAMES = [f"record {number}" for number in range(COUNT)]
RECORDS = [(offset, name.encode()) for offset, name in enumerate(NAMES)]
STEP = 10
"""Batches of a frame; fewer than the server remembers of a writer."""
OFTEN = {"short_check_interval_ms": 20}
"""Look for full segments all the time."""
OPTIONS = {"retention_check_interval_ms": 20, "bounds": OFTEN}
FETCH_BYTES = 4_000
"""Fewer than those of STEP batches."""


@pytest.fixture(autouse=True)
def _slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let servers merge what a slow machine wrote."""
    monkeypatch.setattr(merging, "MERGE_SPAN_MS", 600_000)


async def merged(cluster: CoreCluster) -> None:
    """Let the open segment become a full one, and wait until its batches are merged."""
    housekeeping = cluster.server._housekeeping
    before = housekeeping.cleaned.merged_count
    cluster.server._log.end_segment()
    async with asyncio.timeout(60):
        while housekeeping.cleaned.merged_count == before:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def before_fetch(
    patch: pytest.MonkeyPatch, number: int, work: Callable[[], Awaitable[None]]
) -> list[int]:
    """Let clients do some work before the FETCH of this number; return what counts them."""
    fetch, fetch_blocking, loop = AsyncClient.fetch, Client.fetch, asyncio.get_running_loop()
    count = [0]

    async def fetch_after(client: AsyncClient, *args: Any, **options: Any) -> Any:
        count[0] += 1
        if count[0] == number:
            await work()
        async for each in fetch(client, *args, **options):
            yield each

    def fetch_blocking_after(client: Client, *args: Any, **options: Any) -> Any:
        count[0] += 1
        if count[0] == number:
            asyncio.run_coroutine_threadsafe(work(), loop).result()
        return fetch_blocking(client, *args, **options)

    patch.setattr(AsyncClient, "fetch", fetch_after)
    patch.setattr(Client, "fetch", fetch_blocking_after)
    return count


async def batch_counts(cluster: CoreCluster, stream_id: int) -> list[int]:
    item = FetchItem(stream_id, 0, None, limits.MIB)
    (outcome,) = [each async for each in cluster.client.fetch([item])]
    return [each.record_count for each in split_envelopes(outcome.payload)]


async def append(client: RawClient, stream_id: int, start: int, end: int) -> None:
    """Append the records of [start, end), each as a batch."""
    for first in range(start, end, STEP):
        offsets = await send(client, stream_id, *NAMES[first : first + STEP], first=first)
        assert offsets == list(range(first, first + STEP))


def test_readers_and_writers_notice_nothing(tmp_path: Path) -> None:
    async def body() -> None:
        async with one_stream(tmp_path, **OPTIONS) as (cluster, stream_id, client):
            before_ms = time.time_ns() // 1_000_000
            await append(client, stream_id, 0, COUNT)
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
            core_cluster(tmp_path, bounds=OFTEN) as cluster,
            RawClient.at(cluster.server.endpoint) as client,
        ):
            assert await cluster.read(stream_id, 137) == RECORDS[137:]
            repeat = await eventually(client, stream_id, *NAMES[-STEP:], first=COUNT - STEP)
            assert repeat == list(range(COUNT - STEP, COUNT))
            assert await eventually(client, stream_id, "next", first=COUNT) == [COUNT]

    asyncio.run(asyncio.wait_for(body(), 120))


async def consumed(cluster: CoreCluster, stream_id: int) -> list[bytes | None]:
    consumer = AsyncConnection(cluster.client).consumer("s", fetch_bytes=FETCH_BYTES)
    return [record.value async for record in consumer]


async def read_by_http(cluster: CoreCluster, stream_id: int) -> list[bytes | None]:
    found = [each async for each in read_span(cluster.client, stream_id, Span(0, COUNT))]
    return [value for each in found for value in each.rows.column("value").to_pylist()]


async def read_by_console(cluster: CoreCluster, stream_id: int) -> list[bytes | None]:
    (info,) = await cluster.client.describe_streams([stream_id])
    found = await Search(info, (0, COUNT), RecordFilter(), COUNT).run(cluster.client)
    assert found.faults == []
    return [value for each in found.pieces for value in each.rows.column("value").to_pylist()]


async def copied(cluster: CoreCluster, stream_id: int) -> list[bytes | None]:
    words = ["streams", "copy", "s", "t", "--create", "--endpoint", cluster.pd.endpoint]
    assert await asyncio.to_thread(main, words) == 0
    (copy,) = await cluster.client.find_streams(["t"])
    return [value for _, value in await cluster.read(copy.stream_id)]


@pytest.mark.parametrize("read", [consumed, read_by_http, read_by_console, copied])
def test_a_reader_continues_within_a_batch_that_was_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Callable[..., Any]
) -> None:
    monkeypatch.setattr(limits, "FETCH_BATCH_BYTES_DEFAULT", FETCH_BYTES)
    monkeypatch.setattr(stream_copy, "_COMMIT_BYTES", FETCH_BYTES)

    async def body() -> None:
        async with one_stream(tmp_path, **OPTIONS) as (cluster, stream_id, client):
            await append(client, stream_id, 0, COUNT)
            count = before_fetch(monkeypatch, 3, lambda: merged(cluster))
            assert await read(cluster, stream_id) == [name.encode() for name in NAMES]
            assert count[0] >= 3
            assert len(await batch_counts(cluster, stream_id)) < COUNT / 2

    asyncio.run(asyncio.wait_for(body(), 60))


@pytest.mark.parametrize("number", [1, 2])
def test_a_backup_cuts_batches_that_were_merged_before_a_fetch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """One batch has then records of the backup before, of this one, and behind its end."""
    monkeypatch.setattr(taking, "_FETCH_BYTES", FETCH_BYTES)
    monkeypatch.setattr(taking, "SMALL_CHUNK_BYTES", 1)
    place = Place.open(str(tmp_path / "backups"), is_new=True)
    kept, end = 100, 200

    async def body() -> None:
        async with one_stream(tmp_path / "lost", **OPTIONS) as (cluster, stream_id, client):
            await append(client, stream_id, 0, kept)
            first = await taking.take_backup(cluster.client, place)
            await append(client, stream_id, kept, end)

            async def change() -> None:
                await append(client, stream_id, end, COUNT)
                await merged(cluster)

            before_fetch(monkeypatch, number, change)
            second = await taking.take_backup(cluster.client, place)
            assert len(await batch_counts(cluster, stream_id)) < COUNT / 2
        assert await check_backup(place, second.manifest) == []
        assert second.progress.bytes_reused == first.manifest.size
        async with cluster_of(tmp_path / "new", range_servers=1) as cluster:
            await restore(cluster, place, second.manifest)
            async with AsyncClient(cluster.endpoints.pd) as restored:
                assert await read_all(restored, stream_id) == dict(RECORDS[:end])

    asyncio.run(asyncio.wait_for(body(), 60))
