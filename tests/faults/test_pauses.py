"""Stopped processes, lost connections, clocks that jump."""

import asyncio
import contextlib
import os
import random
import signal
import time

import pytest

from sbp_core.client import AppendItem, AsyncClient, Client, FetchItem, RetryPolicy, StreamSpec
from sbp_core.errors import NoRangeServerError
from sbp_core.pd import PlacementDriver
from sbp_core.rangeserver.server import RangeServer
from sbp_core.server.runtime import SystemClock
from sbp_core.settings.server_settings import PlacementDriverSettings, RangeServerSettings
from tests.support.cluster import rows_batch, values_of
from tests.support.faults.checker import assert_sound, chosen
from tests.support.faults.cluster import FaultCluster
from tests.support.faults.proxy import Direction, FaultProxy, Hold
from tests.support.faults.workload import Workload, list_streams, new_streams
from tests.support.machines import RangeServerProcess

HEARTBEAT_INTERVAL_MS = 50
HEARTBEAT_TIMEOUT_MS = 300
PAUSE_SECONDS = 0.5
TIMEOUT_MS = 1_000
QUICK = {
    "placement_driver": {"heartbeat_timeout_ms": HEARTBEAT_TIMEOUT_MS},
    "range_server": {"heartbeat_interval_ms": HEARTBEAT_INTERVAL_MS},
}
DAY_MS = 86_400_000
DEADLINE_SECONDS = 90
APPENDS_WHILE_CLOCKS_JUMP = 200


def test_a_server_that_stands_still(tmp_path, history, rng, rounds):
    """For longer than a heartbeat may take, and than its clients wait."""
    with FaultCluster(tmp_path, settings=QUICK) as cluster:
        stream_ids = new_streams(cluster.endpoint)
        with (
            Workload(
                *(cluster.endpoint, history, rng, stream_ids), timeout_ms=TIMEOUT_MS
            ) as workload,
            Client(cluster.endpoint) as client,
        ):
            for _ in range(rounds(3)):
                workload.wait_for_progress()
                history.fault("SIGSTOP")
                os.kill(cluster.pid, signal.SIGSTOP)
                time.sleep(PAUSE_SECONDS)
                wait_for_another_unknown(history)
                os.kill(cluster.pid, signal.SIGCONT)
                workload.wait_for_progress()
                client.create_streams([StreamSpec(None)])  # the range server is alive again
        list_streams(cluster.endpoint, history, stream_ids)
    operations = history.operations()
    assert_sound(operations)
    assert len(chosen(operations, "fault")) > 0
    assert len(chosen(operations, "append", "unknown")) > 0, "no client noticed"


def wait_for_another_unknown(history):
    """Wait until an append to a stopped server has timed out."""
    before = len(chosen(history.operations(), "append", "unknown"))
    deadline = time.monotonic() + DEADLINE_SECONDS
    while len(chosen(history.operations(), "append", "unknown")) == before:
        assert time.monotonic() < deadline, "no client noticed"
        time.sleep(0.05)


def test_a_range_server_that_stands_still_for_too_long(tmp_path):
    """It gets no new ranges while it is stopped; it keeps its ranges, and answers late."""

    async def main():
        settings = PlacementDriverSettings(
            data_dir=tmp_path / "pd", port=0, heartbeat_timeout_ms=HEARTBEAT_TIMEOUT_MS
        )
        driver = PlacementDriver(settings)
        server = RangeServerProcess(
            tmp_path / "rs", await driver.start(), heartbeat_interval_ms=HEARTBEAT_INTERVAL_MS
        )
        async with server, AsyncClient(driver.endpoint) as client:
            (stream,) = await client.create_streams([StreamSpec(None)])
            assert await append(client, stream.stream_id, b"before") == 0
            os.kill(server.pid, signal.SIGSTOP)
            late = asyncio.create_task(append(client, stream.stream_id, b"late"))
            await until(lambda: driver.live_server_count == 0)
            assert not late.done()
            async with AsyncClient(driver.endpoint, retry=RetryPolicy(budget_ms=0)) as hasty:
                with pytest.raises(NoRangeServerError):
                    await hasty.create_streams([StreamSpec(None)])
            os.kill(server.pid, signal.SIGCONT)
            assert await late == 1
            (later,) = await client.create_streams([StreamSpec(None)])
            assert await append(client, later.stream_id, b"new") == 0
            assert await read(client, stream.stream_id) == [(0, b"before"), (1, b"late")]
        await driver.stop()

    asyncio.run(main())


class JumpingClock(SystemClock):
    """The wall clock is wrong, differently each time, by up to a day; the monotonic one is frozen.

    So only code that uses the wall clock sees anything late.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._now = super().monotonic()
        self.jump_count = 0

    def monotonic(self) -> float:
        return self._now

    def wall_ms(self) -> int:
        self.jump_count += 1
        return super().wall_ms() + self._rng.randint(-DAY_MS, DAY_MS)


@contextlib.asynccontextmanager
async def servers(folder, clock, proxy=None):
    """A placement driver, and a range server that reaches it, perhaps through a proxy."""
    driver = PlacementDriver(
        PlacementDriverSettings(
            data_dir=folder / "pd", port=0, heartbeat_timeout_ms=HEARTBEAT_TIMEOUT_MS
        ),
        clock,
    )
    endpoint = await driver.start()
    if proxy is not None:
        proxy.target = endpoint
    server = RangeServer(
        RangeServerSettings(
            data_dir=folder / "rs",
            placement_driver=proxy.endpoint if proxy else endpoint,
            port=0,
            heartbeat_interval_ms=HEARTBEAT_INTERVAL_MS,
            retention_check_interval_ms=HEARTBEAT_INTERVAL_MS,
        ),
        clock=clock,
    )
    try:
        await server.start()
        async with AsyncClient(endpoint) as client:
            yield driver, client
    finally:
        await server.stop()
        await driver.stop()


async def append(client, stream_id, value):
    (outcome,) = await client.append([AppendItem(stream_id, rows_batch([value], stream_id))])
    return outcome.base_offset


async def read(client, stream_id):
    (outcome,) = [each async for each in client.fetch([FetchItem(stream_id, 0, None, 1 << 20)])]
    assert outcome.error is None
    return values_of(outcome.payload)


async def until(condition):
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not condition():  # noqa: ASYNC110 - a server is watched, which sets no event
            await asyncio.sleep(0.01)


def test_a_range_server_that_lost_its_placement_driver(tmp_path):
    """It goes on with its ranges; new streams have no server until both are connected again."""

    async def main():
        with FaultProxy() as proxy:
            async with servers(tmp_path, SystemClock(), proxy) as (driver, client):
                (stream,) = await client.create_streams([StreamSpec(None)])
                assert await append(client, stream.stream_id, b"before") == 0
                for direction in Direction:
                    proxy.inject(Hold(), direction)
                await until(lambda: driver.live_server_count == 0)
                assert await append(client, stream.stream_id, b"during") == 1
                async with AsyncClient(driver.endpoint, retry=RetryPolicy(budget_ms=0)) as hasty:
                    with pytest.raises(NoRangeServerError):
                        await hasty.create_streams([StreamSpec(None)])
                assert proxy.injected["Hold"] > 0
                proxy.heal()
                await until(lambda: driver.live_server_count == 1)
                (later,) = await client.create_streams([StreamSpec(None)])
                assert await append(client, later.stream_id, b"new") == 0
                assert await read(client, stream.stream_id) == [(0, b"before"), (1, b"during")]

    asyncio.run(main())


def test_a_wall_clock_that_jumps(tmp_path, rng):
    """Nothing but what people see depends on it: not liveness, order, nor what is there."""

    async def main():
        clock = JumpingClock(rng)
        async with servers(tmp_path, clock) as (driver, client):
            spec = StreamSpec(None, retention_period_ms=DAY_MS // 24)
            (stream,) = await client.create_streams([spec])
            count = APPENDS_WHILE_CLOCKS_JUMP
            for offset in range(count):
                assert await append(client, stream.stream_id, b"%d" % offset) == offset
                assert driver.live_server_count == 1
            assert clock.jump_count >= count
            expected = [(offset, b"%d" % offset) for offset in range(count)]
            assert (await read(client, stream.stream_id))[:count] == expected

    asyncio.run(main())
