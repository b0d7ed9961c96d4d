"""Which process may be a range server: restarts, moves, lost and copied data, older directories."""

from __future__ import annotations

import asyncio
import json
import shutil
from contextlib import asynccontextmanager

import pytest

from sbp_core.client import AppendItem, AsyncClient, StreamSpec, Transaction
from sbp_core.errors import (
    AlreadyExistsError,
    PermissionDeniedError,
    StatusCode,
)
from sbp_core.pd import PlacementDriver
from sbp_core.rangeserver.identity import DRIVER_COMMIT_NAME
from sbp_core.rangeserver.server import RangeServer
from sbp_core.settings.server_settings import PlacementDriverSettings, RangeServerSettings
from sbp_core.wire.headers import ClientRole, HeartbeatRequest
from sbp_core.wire.headers import RangeServer as RangeServerTable
from sbp_core.wire.opcodes import Opcode
from tests.support.appends import end
from tests.support.cluster import Known, core_cluster, rows_batch
from tests.support.machines import RangeServerProcess
from tests.support.metadata import altered_metadata
from tests.support.wire import RawClient

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


def test_a_server_whose_place_was_taken_while_it_stood_still_stops(tmp_path):
    async def body():
        async with placement_driver(tmp_path, heartbeat_timeout_ms=100) as driver:
            first = range_server(tmp_path / "rs", driver)
            await first.start()
            shutil.copytree(tmp_path / "rs", tmp_path / "copy")
            beating = first._membership._tasks
            for task in beating:
                task.cancel()
            copy = range_server(tmp_path / "copy", driver)
            await copy.start()
            first._membership._tasks = (asyncio.create_task(first._membership._keep_beating()),)
            assert isinstance(await first.failed, AlreadyExistsError)
            assert not copy.failed.done()
            await first.stop()
            await copy.stop()

    run(body)


def test_directories_of_an_earlier_version_get_a_secret_and_keep_it(tmp_path):
    async def before():
        async with core_cluster(tmp_path) as cluster:
            stream_id = await create(cluster.client)
            assert await append(cluster.client, stream_id) == 0
            return stream_id

    stream_id = asyncio.run(before())
    with altered_metadata(tmp_path / "pd") as connection:
        connection.execute("DELETE FROM server_secrets")
    (tmp_path / "rs" / DRIVER_COMMIT_NAME).unlink()  # an earlier version knows no commits
    path = tmp_path / "rs" / "identity.json"
    content = json.loads(path.read_text())
    del content["server_secret"]
    path.write_text(json.dumps(content))

    async def after(transaction_number):
        async with core_cluster(tmp_path) as cluster:
            transaction = Transaction(f"p.{transaction_number}.x")
            await cluster.client.append(
                [AppendItem(stream_id, rows_batch([b"t"]))], transaction=transaction
            )
            async with RawClient.at(cluster.server.endpoint) as raw:
                with pytest.raises(PermissionDeniedError):
                    await end(raw, stream_id, transaction.parts()[0].txn_id)
            decided = await cluster.client.commit_txn(
                "p", transaction_number, transaction.parts(), record_count=1, digest=b"12345678"
            )
            assert decided.is_published
            known = Known.of(tmp_path / "rs")
            async with RawClient.at(cluster.pd.endpoint) as raw:
                for secret in (None, "another"):
                    beat = HeartbeatRequest(
                        "forged",
                        ClientRole.RANGE_SERVER,
                        RangeServerTable(known.server_id, "127.0.0.1:9"),
                        cluster_id=known.cluster_id,
                        server_secret=secret,
                    )
                    (answer,) = await raw.ask(Opcode.HEARTBEAT, beat)
                    assert answer.status.code == StatusCode.PERMISSION_DENIED
            return known

    first = asyncio.run(after(1))
    assert asyncio.run(after(2)) == first
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_server_with_another_secret_stops_and_keeps_its_data(tmp_path):
    async def body():
        async with core_cluster(tmp_path):
            pass
        path = tmp_path / "rs" / "identity.json"
        content = json.loads(path.read_text()) | {"server_secret": "another"}
        path.write_text(json.dumps(content))
        async with placement_driver(tmp_path) as driver:
            server = range_server(tmp_path / "rs", driver)
            with pytest.raises(
                PermissionDeniedError, match=r"restore identity.json.*No data was changed"
            ):
                await server.start()
            await server.stop()
        assert json.loads(path.read_text()) == content

    run(body)
