"""Which process may be a range server: restarts, moves, lost and copied data, older directories."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import asynccontextmanager

from sbp_core.client import AppendItem, AsyncClient, StreamSpec
from sbp_core.pd import PlacementDriver
from sbp_core.rangeserver.server import RangeServer
from sbp_core.settings.server_settings import PlacementDriverSettings, RangeServerSettings
from tests.support.cluster import Known, rows_batch
from tests.support.machines import RangeServerProcess

SECONDS = 60
LONG_MS = 600_000
"""A silence longer than any test: nothing that happens is due to a timeout."""


@asynccontextmanager
async def placement_driver(folder, **settings):
    settings = {"heartbeat_timeout_ms": LONG_MS, **settings}
    driver = PlacementDriver(PlacementDriverSettings(data_dir=folder / "pd", port=0, **settings))
    await driver.start()
    try:
        yield driver
    finally:
        await driver.stop()


def range_server(folder, driver, port=0, **settings):
    return RangeServer(
        RangeServerSettings(
            data_dir=folder,
            placement_driver=driver.endpoint,
            port=port,
            heartbeat_interval_ms=20,
            **settings,
        )
    )


def run(body):
    asyncio.run(asyncio.wait_for(body(), SECONDS))


async def create(client, name="s"):
    (stream,) = await client.create_streams([StreamSpec(name)])
    return stream.stream_id


async def append(client, stream_id, value=b"x", batch_of=rows_batch):
    (outcome,) = await client.append([AppendItem(stream_id, batch_of([value]))])
    return outcome.base_offset


async def address_of(client, stream_id):
    ((*_, piece),) = (await client.list_ranges([stream_id])).values()
    return piece.servers[0]


def test_a_killed_server_comes_back_on_another_port_at_once(tmp_path):
    async def body():
        async with placement_driver(tmp_path) as driver, AsyncClient(driver.endpoint) as client:
            process = RangeServerProcess(tmp_path / "rs", driver.endpoint, heartbeat_interval_ms=50)
            async with process:
                stream_id = await create(client)
                assert await append(client, stream_id) == 0
                await process.kill()
            moved = range_server(tmp_path / "rs", driver)
            await moved.start()
            try:
                assert await append(client, stream_id) == 1
                assert await address_of(client, stream_id) == moved.endpoint
            finally:
                await moved.stop()

    run(body)


def test_a_server_that_lost_its_data_takes_the_place_of_its_former_self_at_once(tmp_path):
    async def body():
        async with placement_driver(tmp_path) as driver, AsyncClient(driver.endpoint) as client:
            former = range_server(tmp_path / "former", driver)
            await former.start()
            port = int(former.endpoint.rpartition(":")[2])
            await former.stop()
            fresh = range_server(tmp_path / "fresh", driver, port)
            await fresh.start()
            try:
                assert driver.live_server_count == 1
                assert await append(client, await create(client)) == 0
            finally:
                await fresh.stop()

    run(body)


def test_the_copy_of_a_data_directory_does_not_get_in_while_the_first_one_lives(tmp_path, caplog):
    async def body():
        async with placement_driver(tmp_path) as driver, AsyncClient(driver.endpoint) as client:
            first = range_server(tmp_path / "rs", driver)
            await first.start()
            stream_id = await create(client)
            assert await append(client, stream_id) == 0
            await asyncio.to_thread(shutil.copytree, tmp_path / "rs", tmp_path / "copy")
            copy = range_server(tmp_path / "copy", driver)
            starting = asyncio.create_task(copy.start())
            while "cannot replace it" not in caplog.text:
                assert not starting.done()
                await asyncio.sleep(0.01)
            (bounds,) = await client.stream_bounds([stream_id])  # an append would be missed later
            assert bounds.next_offset == 1
            assert await address_of(client, stream_id) == first.endpoint
            assert not first.failed.done()
            await first.stop()
            await starting  # the first one is gone, so the other gets in without a timeout
            assert driver.live_server_count == 1
            await copy.stop()
        secret = Known.of(tmp_path / "rs").secret
        assert secret not in caplog.text

    run(body)
