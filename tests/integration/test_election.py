"""Two placement drivers on one PostgreSQL database: one serves, the other one names it."""

import asyncio
from contextlib import asynccontextmanager

import psycopg
import pytest
from sqlalchemy import make_url

from sbp_core.client import AsyncClient
from sbp_core.errors import NotLeaderError
from sbp_core.pd import PlacementDriver
from sbp_core.pd.metadata.postgresql_offline import check_database
from sbp_core.server.runtime import SystemClock
from sbp_core.settings.server_settings import PlacementDriverSettings
from sbp_core.wire.headers import (
    REQUEST_TABLES,
    DescribePlacementDriverClusterRequest,
    HeartbeatRequest,
)
from sbp_core.wire.opcodes import Opcode
from sbp_core.wire.status import check_status, maybe_cluster
from tests.support.placement_driver import Cluster
from tests.support.wire import RawClient

FOR_ALL = {Opcode.HEARTBEAT, Opcode.DESCRIBE_PD_CLUSTER}
ADDRESS = "127.0.0.1:10911"
DEADLINE_SECONDS = 60


class Pair:
    """Two placement drivers, `a` and `b`, of which `a` leads, and a connection to each."""

    def __init__(self, url, drivers, clients):
        self.url = url
        self.a, self.b = drivers
        self.at_a, self.at_b = clients
        self.leader = Cluster(self.a, self.at_a, SystemClock())

    async def nodes(self, client):
        request = DescribePlacementDriverClusterRequest()
        (answer,) = await client.ask(Opcode.DESCRIBE_PD_CLUSTER, request)
        return nodes_of(answer.cluster)

    async def secret_of(self, server_id):
        return await self.b._store.peek(lambda store: store.servers.maybe_secret(server_id))

    def allow_connections(self, *, allowed):
        """Let clients connect to the database or not; those that are connected are cut off."""
        name = make_url(self.url).database
        elsewhere = make_url(self.url).set(database="postgres").render_as_string(False)
        with psycopg.connect(elsewhere, autocommit=True) as connection:
            connection.execute(f"ALTER DATABASE {name} WITH ALLOW_CONNECTIONS {allowed}")
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name]
            )

    def execute(self, statement):
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(statement)


def nodes_of(cluster):
    return {each.name: (each.advertise_addr, each.is_leader) for each in cluster.nodes}


@pytest.fixture
def run(tmp_path, postgresql):
    def run_test(body):
        @asynccontextmanager
        async def driver(name):
            settings = PlacementDriverSettings(
                data_dir=tmp_path / name, port=0, name=name, store=url
            )
            running = PlacementDriver(settings)
            await running.start()
            try:
                yield running
            finally:
                await running.stop()

        async def main():
            async with (
                asyncio.timeout(DEADLINE_SECONDS),
                driver("a") as a,
                driver("b") as b,
                RawClient.at(a.endpoint) as at_a,
                RawClient.at(b.endpoint) as at_b,
            ):
                pair = Pair(url, (a, b), (at_a, at_b))
                await until(pair.nodes, at_a, {"a": (a.endpoint, True), "b": (b.endpoint, False)})
                await body(pair)

        url = postgresql.new_database()
        asyncio.run(main())

    return run_test


async def until(ask, client, expected):
    """Ask again until the answer is as expected; the test has a deadline."""
    while await ask(client) != expected:  # noqa: ASYNC110 - a server is asked, which sets no event
        await asyncio.sleep(0.05)


def test_the_one_that_does_not_lead_names_all_and_the_leader(run):
    async def body(pair):
        both = {"a": (pair.a.endpoint, True), "b": (pair.b.endpoint, False)}
        assert await pair.nodes(pair.at_b) == both
        assert (pair.a.unready(), pair.b.unready()) == ([], [])
        roles = [each.condition()["placement_driver"] for each in (pair.a, pair.b)]
        assert [each["role"] for each in roles] == ["leader", "follower"]
        assert [each["leader"] for each in roles] == [pair.a.endpoint] * 2
        leads = [
            {each.metric.name: each.value for each in await driver.read_metrics()}
            for driver in (pair.a, pair.b)
        ]
        assert [each["sbp_pd_leader"] for each in leads] == [1, 0]
        assert (await pair.at_b.ask(Opcode.HEARTBEAT, HeartbeatRequest()))[0].status.code == 0
        refused = set()
        for opcode in pair.b._listener._dispatcher._handlers.keys() - FOR_ALL:
            with pytest.raises(NotLeaderError, match=f"ask {pair.a.endpoint}") as caught:
                await pair.at_b.ask(opcode, REQUEST_TABLES[opcode]())
            assert nodes_of(maybe_cluster(caught.value.detail)) == both
            refused.add(opcode)
        assert {Opcode.CREATE_STREAMS, Opcode.COMMIT_TXN, Opcode.LIST_RANGES} < refused

    run(body)


def test_neither_is_ready_while_their_database_is_unavailable(run):
    async def body(pair):
        for allowed, expected in ((False, ["store_unreachable"]), (True, [])):
            pair.allow_connections(allowed=allowed)
            for driver in (pair.a, pair.b):
                while [each.code for each in driver.unready()] != expected:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)

    run(body)


def test_a_client_that_was_given_the_other_one_finds_the_leader(run):
    async def body(pair):
        async with AsyncClient(pair.b.endpoint) as client:
            assert await client.list_streams() == []
            assert {each.endpoint for each in await client.placement_drivers()} == {
                pair.a.endpoint,
                pair.b.endpoint,
            }

    run(body)


def test_a_range_server_is_noted_by_both_and_written_by_the_leader_only(run):
    async def body(pair):
        server_id = await pair.leader.add_server(ADDRESS)
        follower = Cluster(pair.b, pair.at_b, SystemClock())
        follower.secret_of = pair.secret_of
        commit = check_database(pair.url).commit
        for fields in (
            {"server_secret": "wrong"},
            {"address": "127.0.0.1:1"},
            {"cluster_id": "other"},
        ):
            assert (await follower.beat(server_id, **fields)).status.code != 0
            assert pair.b.live_server_count == 0
        with pytest.raises(NotLeaderError):
            check_status((await follower.beat(server_id, ADDRESS)).status)
        assert pair.b.live_server_count == 1
        assert check_database(pair.url).commit == commit

    run(body)
