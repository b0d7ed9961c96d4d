"""Clients and range servers that were given a placement driver which does not lead."""

import asyncio
import threading
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from sbp_core.client import AppendItem, Client, RetryPolicy
from sbp_core.errors import ConnectError, NotLeaderError
from sbp_core.pd import PlacementDriver
from sbp_core.rangeserver.server import RangeServer
from sbp_core.server.dispatch import Response
from sbp_core.server.listener import Listener
from sbp_core.server.runtime import SystemClock
from sbp_core.server.trust import ServerRole
from sbp_core.settings.server_settings import PlacementDriverSettings, RangeServerSettings
from sbp_core.wire.headers import DescribePlacementDriverClusterResponse
from sbp_core.wire.opcodes import Opcode
from sbp_core.wire.status import SUCCESS
from tests.support.client import BlockingDriver
from tests.support.placement_driver import cluster_of, follower_pd

QUICK = RetryPolicy(budget_ms=20_000, backoff_ms=1, backoff_ms_max=20)


class Servers:
    """A placement driver that leads, and a range server that was given a follower."""

    def __init__(self, folder, follower):
        self._folder = folder
        self._follower = follower
        self.pd = None
        self.range_server = None

    async def lead(self):
        """Start the placement driver, on another port than before, and let the follower know."""
        self.pd = PlacementDriver(PlacementDriverSettings(data_dir=self._folder / "pd", port=0))
        self._follower.name(await self.pd.start())

    async def host(self, placement_driver=None):
        """Start the range server."""
        self.range_server = RangeServer(
            RangeServerSettings(
                data_dir=self._folder / "rs",
                placement_driver=placement_driver or self._follower.endpoint,
                port=0,
                heartbeat_interval_ms=20,
            )
        )
        await self.range_server.start()

    async def stop(self):
        if self.range_server is not None:
            await self.range_server.stop()
        if self.pd is not None:
            await self.pd.stop()


@asynccontextmanager
async def running(folder, follower):
    servers = Servers(folder, follower)
    try:
        await servers.lead()
        await servers.host()
        yield servers
    finally:
        await servers.stop()


def run(body, **follower_options):
    async def main():
        async with follower_pd(**follower_options) as follower:
            await asyncio.wait_for(body(follower), 60)

    asyncio.run(main())


async def with_driver(endpoint, work, **options):
    """Do blocking work with a client, outside of the servers' event loop."""

    def call():
        driver = BlockingDriver(endpoint, **{"retry": QUICK, **options})
        try:
            return work(driver)
        finally:
            driver.close()

    return await asyncio.to_thread(call)


def test_threads_that_share_a_client_share_what_it_learned(tmp_path):
    async def body(follower):
        async with running(tmp_path, follower):

            def work():
                with Client(follower.endpoint, retry=QUICK) as client:
                    client.list_streams()
                    threads = [threading.Thread(target=client.list_streams) for _ in range(8)]
                    for thread in threads:
                        thread.start()
                    for thread in threads:
                        thread.join(30)

            await asyncio.to_thread(work)
            assert follower.asked[Opcode.DESCRIBE_STREAMS] == 1

    run(body)


def test_a_range_server_joins_the_leader_and_beats_at_all_that_it_was_given(tmp_path):
    """The leader names no other node here: only the range server knows the list."""

    async def body(follower):
        async with follower_pd() as down:
            pass
        async with follower_pd() as other:
            servers = Servers(tmp_path, follower)
            await servers.lead()
            other.name(servers.pd.endpoint)
            given = [down.endpoint, follower.endpoint, other.endpoint, servers.pd.endpoint]
            try:
                await servers.host(",".join(given))
                assert servers.pd.live_server_count == 1
                for each in (follower, other):
                    await until(lambda: each.asked[Opcode.HEARTBEAT] > 2)  # noqa: B023
                    await until(lambda: each.asked[Opcode.REPORT_METRICS] > 1)  # noqa: B023
                await servers.pd.stop()
                beats = other.asked[Opcode.HEARTBEAT]
                await until(lambda: other.asked[Opcode.HEARTBEAT] > beats + 2)
                await servers.lead()
                other.name(servers.pd.endpoint)
                await until(lambda: servers.pd.live_server_count == 1)
                assert not servers.range_server.failed.done()
            finally:
                await servers.stop()

    run(body)


def test_messages_name_the_one_that_was_asked():
    async def body(follower):
        async with follower_pd() as gone:
            leader = gone.endpoint
        follower.name(leader)

        def work(driver):
            for operation, error, asked in (
                ("list_streams", NotLeaderError, follower.endpoint),
                ("ping", ConnectError, leader),
                ("ping", None, follower.endpoint),
            ):
                if error is None:
                    driver.do(operation)
                    continue
                with pytest.raises(error, match=f" at {asked}"):
                    driver.do(operation)
            driver.do("ping")
            with pytest.raises(
                NotLeaderError, match=f"APPEND: .*LIST_RANGES at {follower.endpoint}"
            ):
                driver.do("append", [AppendItem(1, b"x")])
            with pytest.raises(ConnectError, match=f"LIST_RANGES at {leader}.*running there"):
                driver.do("append", [AppendItem(1, b"x")])

        await with_driver(follower.endpoint, work, retry=RetryPolicy(budget_ms=0))

    run(body)


@asynccontextmanager
async def in_front_of(pd, cluster):
    """Another endpoint of a placement driver, which reports that it is one of `cluster`."""

    async def describe(call):
        return Response(DescribePlacementDriverClusterResponse(status=SUCCESS, cluster=cluster))

    handlers = {**pd._handlers.by_opcode(), Opcode.DESCRIBE_PD_CLUSTER: describe}
    listener = Listener(handlers, role=ServerRole.PLACEMENT_DRIVER, clock=SystemClock())
    try:
        yield f"127.0.0.1:{await listener.start('127.0.0.1', 0)}"
    finally:
        await listener.drain(timeout_ms=100)


async def until(condition):
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def test_range_servers_send_heartbeats_and_load_metrics_to_all_pd_nodes(tmp_path):
    """SPEC "DESCRIBE_PD_CLUSTER"; and if the leader is down they know which node to ask."""

    async def body(follower):
        servers = Servers(tmp_path, follower)
        await servers.lead()
        nodes = cluster_of("said.to.lead.example:1", follower.endpoint, "no address")
        try:
            async with AsyncExitStack() as stack:
                door = await stack.enter_async_context(in_front_of(servers.pd, nodes))
                await servers.host(door)
                await until(lambda: follower.asked[Opcode.HEARTBEAT] > 1)
                await until(lambda: follower.asked[Opcode.REPORT_METRICS] > 1)
            await servers.pd.stop()
            await servers.lead()
            await until(lambda: servers.pd.live_server_count == 1)
        finally:
            await servers.stop()

    run(body)
