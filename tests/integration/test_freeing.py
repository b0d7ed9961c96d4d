"""A disk without space for appends: trimming and deleting free it."""

from __future__ import annotations

import asyncio
import itertools
import threading
from pathlib import Path

import pytest

from sbp_core.client import AppendItem, AsyncClient, RetryPolicy, StreamSpec
from sbp_core.errors import DiskFullError
from sbp_core.log.cleaning import Cleaned
from sbp_core.rangeserver.housekeeping.disk_space import SpaceFreer
from tests.support.cluster import CoreCluster, core_cluster, rows_batch
from tests.support.disk import FixedProbe

DISK_BYTES = 64 << 20
FLOOR = 1 << 20
BATCH_BYTES = 1_000_000


class SmallDisk(FixedProbe):
    """A disk that has only the log and its index."""

    def __init__(self, folder: Path) -> None:
        super().__init__(None)
        self._log = folder / "rs" / "log"
        self.others_bytes = 0

    def disk_free_bytes(self, folder: Path) -> int:
        self.look_count += 1
        sizes = [path.stat().st_size for path in self._log.glob("*")] if self._log.is_dir() else []
        return max(0, DISK_BYTES - self.others_bytes - sum(sizes))


HASTY = {"short_check_interval_ms": 20}


def run(folder: Path, test) -> None:
    async def body() -> None:
        probe = SmallDisk(folder)
        async with core_cluster(
            folder, probe=probe, bounds=HASTY, disk_free_floor_bytes=FLOOR
        ) as cluster:
            await cluster.server._disk_space.measure()
            await cluster.client.create_streams([StreamSpec("kept"), StreamSpec("other")])
            await asyncio.wait_for(test(cluster, probe), 60)

    asyncio.run(body())


async def append(client: AsyncClient, stream_id: int) -> None:
    await client.append([AppendItem(stream_id, rows_batch([bytes(BATCH_BYTES)], stream_id))])


async def fill(cluster: CoreCluster, stream_id: int) -> None:
    """Append until that is refused. The open segment has all of it."""
    async with AsyncClient(cluster.pd.endpoint, retry=RetryPolicy(budget_ms=0)) as hasty:
        for _ in range(2 * DISK_BYTES // BATCH_BYTES):
            try:
                await append(hasty, stream_id)
            except DiskFullError:
                return
    pytest.fail("the disk is never full")


def test_trimmed_records_in_the_open_segment_are_freed(tmp_path: Path) -> None:
    async def test(cluster: CoreCluster, probe: SmallDisk) -> None:
        await append(cluster.client, 1)
        await fill(cluster, 2)
        bounds = (await cluster.client.stream_bounds([2]))[0]
        await cluster.client.trim_streams({2: bounds.next_offset - 1})
        for _ in range(10):
            await append(cluster.client, 2)  # it waits for the space
        assert len(await cluster.read(1)) == 1
        assert len(await cluster.read(2, bounds.next_offset - 1)) == 11

    run(tmp_path, test)


def test_a_deleted_stream_is_freed_though_the_disk_is_full_to_the_last_byte(
    tmp_path: Path,
) -> None:
    async def test(cluster: CoreCluster, probe: SmallDisk) -> None:
        await append(cluster.client, 1)
        await fill(cluster, 2)
        probe.others_bytes = probe.disk_free_bytes(tmp_path)
        assert probe.disk_free_bytes(tmp_path) == 0
        await cluster.client.delete_streams([2])
        for _ in range(10):
            await append(cluster.client, 1)
        assert len(await cluster.read(1)) == 11

    run(tmp_path, test)


def test_without_room_for_a_new_segment_the_log_lives_on(tmp_path: Path, caplog) -> None:
    async def test(cluster: CoreCluster, probe: SmallDisk) -> None:
        await append(cluster.client, 1)
        await fill(cluster, 2)
        (tmp_path / "rs" / "log" / "reserve").unlink()
        probe.others_bytes = probe.disk_free_bytes(tmp_path)
        await cluster.client.delete_streams([2])
        async with asyncio.timeout(30):
            while "space not freed" not in caplog.text:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert len(await cluster.read(1)) == 1
        probe.others_bytes = 0
        await append(cluster.client, 1)
        assert len(await cluster.read(1)) == 2

    run(tmp_path, test)


@pytest.mark.parametrize("is_deleted", [True, False])
def test_the_open_segment_is_freed_though_the_disk_has_space(
    tmp_path: Path, is_deleted: bool
) -> None:
    """Without a retention check for a day: what was removed is looked at soon."""

    async def body() -> None:
        async with core_cluster(
            tmp_path,
            retention_check_interval_ms=86_400_000,
            bounds=HASTY | {"removal_interval_ms": 20},
        ) as cluster:
            client = cluster.client
            await client.create_streams([StreamSpec("kept"), StreamSpec("other")])
            await append(client, 1)
            for _ in range(20):
                await append(client, 2)
            if is_deleted:
                await client.delete_streams([2])
            else:
                await client.trim_streams({2: 19})
            log = tmp_path / "rs" / "log"
            async with asyncio.timeout(30):
                while sum(path.stat().st_size for path in log.glob("*.log")) > 3 * BATCH_BYTES:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            assert len(await cluster.read(1)) == 1
            if not is_deleted:
                assert len(await cluster.read(2, 19)) == 1

    asyncio.run(body())


def test_an_unexpected_error_ends_a_round_and_not_all_later_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    free, calls, is_next = SpaceFreer.free, itertools.count(), threading.Event()

    def failing_once(freer: SpaceFreer, *, is_short: bool, has_removals: bool) -> Cleaned:
        if not next(calls):
            raise ZeroDivisionError
        is_next.set()
        return free(freer, is_short=is_short, has_removals=has_removals)

    async def body() -> None:
        async with core_cluster(tmp_path, retention_check_interval_ms=20):
            assert await asyncio.to_thread(is_next.wait, 30)

    monkeypatch.setattr(SpaceFreer, "free", failing_once)
    asyncio.run(body())
    (record,) = [each for each in caplog.records if "disk space not freed" in each.message]
    assert record.exc_info is not None
