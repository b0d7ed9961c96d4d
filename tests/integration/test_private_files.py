"""Servers store files for their own user only, whatever the umask, and in folders of before."""

import asyncio
import os
import stat
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest

from sbp_core.client import AppendItem, AsyncClient, Client, StreamSpec, Transaction
from sbp_core.pd import PlacementDriver
from sbp_core.rangeserver.server import RangeServer
from sbp_core.settings.server_settings import PlacementDriverSettings, RangeServerSettings
from tests.support.clock import until
from tests.support.cluster import allow_small_segments, rows_batch
from tests.support.warm import WarmCluster

VALUES = [b"x" * 50_000] * 4


@pytest.fixture
def no_umask():
    before = os.umask(0)
    yield
    os.umask(before)


def open_to_others(folder: Path) -> list[str]:
    found = []
    for path in [folder, *folder.rglob("*")]:
        with suppress(FileNotFoundError):  # removed since
            mode = stat.S_IMODE(path.lstat().st_mode)
            found += [f"{path} {mode:04o}"] if mode & 0o077 else []
    return found


def logs(folder: Path) -> set[tuple[str, int]]:
    found = set()
    for path in folder.glob("range-server-*/log/*.log"):
        with suppress(FileNotFoundError):  # removed since
            found.add((str(path), path.stat().st_ino))
    return found


async def use(folder: Path) -> None:
    """Replicated appends, transactions, a seal, a trim, and what the cleaner makes of them."""
    async with AsyncExitStack() as running:
        driver = PlacementDriver(PlacementDriverSettings(data_dir=folder / "pd", port=0))
        endpoint = await driver.start()
        running.push_async_callback(driver.stop)
        for number in range(3):
            settings = RangeServerSettings(
                data_dir=folder / f"range-server-{number}",
                placement_driver=endpoint,
                port=0,
                segment_bytes=500_000,
                retention_check_interval_ms=10,
            )
            server = RangeServer(settings)
            await server.start()
            running.push_async_callback(server.stop)
        async with AsyncClient(endpoint) as client:
            kept, gone = [
                each.stream_id
                for each in await client.create_streams(
                    [StreamSpec("kept", replica_count=3), StreamSpec("gone", replica_count=3)]
                )
            ]
            for _ in range(10):
                await client.append([AppendItem(gone, rows_batch(VALUES))])
                await client.append([AppendItem(kept, rows_batch([b"small"]))])
            txn = Transaction("p.0.x")
            await client.append([AppendItem(kept, rows_batch(VALUES))], transaction=txn)
            await client.commit_txn("p", 0, txn.parts(), record_count=4, digest=bytes(8))
            await client.commit_cursors("group", {kept: 1})
            await client.seal_streams([kept])
            await client.trim_streams({kept: 5})
            before = logs(folder)
            await client.delete_streams([gone])
            await asyncio.to_thread(until, lambda: not logs(folder) >= before, 60)


def test_a_used_data_directory_has_nothing_for_other_users(tmp_path, monkeypatch, no_umask):
    allow_small_segments(monkeypatch)
    seen: list[str] = []

    async def main():
        async def watch():
            while True:  # temporary files too, and those of SQLite that end with the server
                seen.extend(open_to_others(tmp_path / "data"))
                await asyncio.sleep(0.01)

        (tmp_path / "data").mkdir(mode=0o700)
        watching = asyncio.create_task(watch())
        await asyncio.wait_for(use(tmp_path / "data"), 100)
        watching.cancel()

    asyncio.run(main())
    assert seen == []
    assert open_to_others(tmp_path / "data") == []


def test_a_data_directory_of_before_is_tightened_at_its_start(tmp_path):
    folder = tmp_path / "data"
    with WarmCluster(folder) as cluster, Client(cluster.endpoint) as client:
        (stream,) = client.create_streams([StreamSpec("a")])
        client.append([AppendItem(stream.stream_id, rows_batch([b"a"]))])
    own = folder / "notes.txt"
    own.write_text("not a server's")
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    outside = tmp_path / "outside"
    outside.touch(mode=0o644)
    (folder / "range-server-0" / "log" / "link").symlink_to(outside)
    with WarmCluster(folder) as cluster, Client(cluster.endpoint) as client:
        assert client.list_streams() == [stream]
        ready, log = folder / "ready.json", folder / "serve.log"
        spared = {folder, own, ready, log, folder / "range-server-0" / "log" / "link"}
        paths = {folder, *folder.rglob("*")} - spared
        assert {stat.S_IMODE(path.stat().st_mode) for path in paths} == {0o700, 0o600}
        for path, mode in ((folder, 0o755), (own, 0o644), (outside, 0o644)):
            assert stat.S_IMODE(path.stat().st_mode) == mode
        assert "WARNING sbp_core.cli.serving: files made private" in log.read_text()
