"""A range server with fsync = "interval", on a disk whose syncs wait."""

from __future__ import annotations

import asyncio

from sbp_core import limits
from sbp_core.client import AppendItem, StreamSpec
from tests.support.appends import end, stage
from tests.support.cluster import core_cluster, driver_at, rows_batch
from tests.support.disk import HeldDisk


def run(folder, test, **options):
    async def body():
        disk = HeldDisk()
        disk.gate.set()
        async with core_cluster(folder, disk=disk, **options) as cluster:
            try:
                await asyncio.wait_for(test(cluster, disk), 60)
            finally:
                disk.gate.set()

    asyncio.run(body())


async def append(cluster, value):
    (outcome,) = await cluster.client.append([AppendItem(1, rows_batch([value]))])
    return outcome.base_offset


def test_appends_are_acknowledged_and_read_before_the_disk_has_synced_them(tmp_path):
    async def fill(cluster, disk):
        await cluster.client.create_streams([StreamSpec("s")])
        assert await append(cluster, b"synced with the new range, or later") == 0
        disk.gate.clear()
        disk.sync_count = 0
        for number in range(1, 4):
            assert await append(cluster, b"%d" % number) == number
        assert disk.sync_count == 0
        assert [value for _, value in await cluster.read(1, 1)] == [b"1", b"2", b"3"]

    async def read(cluster, disk):
        assert len(await cluster.read(1)) == 4
        assert cluster.server._log.recovery.torn_tail is None

    run(tmp_path, fill, fsync="interval", fsync_interval_ms=limits.FSYNC_INTERVAL_MS_MAX)
    run(tmp_path, read)


def test_a_seal_waits_for_the_disk(tmp_path):
    async def body(cluster, disk):
        await cluster.client.create_streams([StreamSpec("s")])
        await append(cluster, b"value")
        disk.gate.clear()
        sealing = asyncio.create_task(cluster.client.seal_streams([1]))
        await asyncio.wait([sealing], timeout=0.1)
        assert not sealing.done()
        disk.gate.set()
        assert (await sealing)[1].start_offset == 1

    run(tmp_path, body, fsync="interval", fsync_interval_ms=limits.FSYNC_INTERVAL_MS_MAX)


def test_a_staged_batch_waits_for_the_disk(tmp_path):
    """The placement driver may decide on it at once: a power cut must not lose it."""

    async def body(cluster, disk):
        await cluster.client.create_streams([StreamSpec("s")])
        await append(cluster, b"value")
        async with driver_at(cluster.server.endpoint, tmp_path / "rs") as client:
            disk.gate.clear()
            staging = asyncio.create_task(stage(client, 1, "t", "ab"))
            await asyncio.wait([staging], timeout=0.1)
            assert not staging.done()
            disk.gate.set()
            assert await staging == [-1]
            assert await end(client, 1, "t") == (1, 2)

    run(tmp_path, body, fsync="interval", fsync_interval_ms=limits.FSYNC_INTERVAL_MS_MAX)
