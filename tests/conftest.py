"""Fixtures for all tests. Each fixture imports the heavy modules that it needs itself."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from tests.support.clock import examples  # noqa: F401 - it registers the profiles

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sbp_core.client import Client
    from sbp_core.cluster import LocalCluster
    from tests.support.client import AsyncDriver
    from tests.support.metadata import PostgresqlHome, PostgresqlServer, SqliteHome
    from tests.support.scripted_peer import ScriptedPeer

pytest_plugins = ["sbp_spark.testing"]
settings.load_profile("untimed")

LONGEST_FIRST = ("faults", "docs", "notebooks", "spark", "integration", "simulation", "fuzz")
"""Folders whose files take long: two workers end at the same time if these files start first."""

TESTS = Path(__file__).parent
ROOT = TESTS.parent
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
"""Processes that tests start, Spark's workers among them, import `tests.support`."""


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The one Spark session of the run."""
    from tests.support.spark import spark_session

    with spark_session(tmp_path_factory.mktemp("spark")) as session:
        yield session


@pytest.fixture(scope="session")
def cluster(sbp_cluster: LocalCluster) -> LocalCluster:
    """`sbp serve` as a process of its own. It must be running when a test that kills it ends."""
    return sbp_cluster


@pytest.fixture(scope="session")
def client(cluster: LocalCluster) -> Iterator[Client]:
    """A client of the cluster."""
    from sbp_core.client import Client

    with Client(cluster.endpoint) as connected:
        yield connected


@pytest.fixture(scope="session")
def new_streams(client: Client) -> Callable[[int], list[str]]:
    """Creates streams that no other test knows, and returns their names."""
    from sbp_core.client import StreamSpec

    numbers = count()

    def create(how_many: int = 1) -> list[str]:
        names = [f"test-{next(numbers)}" for _ in range(how_many)]
        client.create_streams([StreamSpec(name) for name in names])
        return names

    return create


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgresqlServer]:
    """The PostgreSQL server of the run."""
    from tests.support.metadata import PostgresqlServer

    server = PostgresqlServer()
    yield server
    server.stop()


@pytest.fixture(params=["sqlite", "postgresql"])
def new_home(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[Callable[[], SqliteHome | PostgresqlHome]]:
    """Makes homes of metadata stores: what every store does is tested in both kinds."""
    from tests.support.metadata import PostgresqlHome, SqliteHome

    homes: list[SqliteHome | PostgresqlHome] = []

    def make() -> SqliteHome | PostgresqlHome:
        if request.param == "sqlite":
            homes.append(SqliteHome(tmp_path / f"home-{len(homes)}"))
        else:
            server = request.getfixturevalue("postgresql")
            homes.append(PostgresqlHome(server.new_database()))
        return homes[-1]

    yield make
    for home in homes:
        home.check()


@pytest.fixture
def home(new_home: Callable[[], SqliteHome | PostgresqlHome]) -> SqliteHome | PostgresqlHome:
    """A home of a metadata store."""
    return new_home()


@pytest.fixture
def peers() -> Iterator[Callable[[], ScriptedPeer]]:
    """Start scripted servers; a fault in the script of one fails the test."""
    from tests.support.scripted_peer import ScriptedPeer

    made: list[ScriptedPeer] = []

    def make() -> ScriptedPeer:
        made.append(ScriptedPeer())
        return made[-1]

    yield make
    for peer in made:
        peer.close()
        assert not peer.faults


@pytest.fixture
def peer(peers: Callable[[], ScriptedPeer]) -> ScriptedPeer:
    """One scripted server."""
    return peers()


@pytest.fixture
def make() -> Iterator[Callable[..., AsyncDriver]]:
    """Connect clients, which leave no task behind."""
    from tests.support.client import QUICK, AsyncDriver

    made: list[AsyncDriver] = []

    def build(endpoint: str, **options: Any) -> AsyncDriver:
        made.append(AsyncDriver(endpoint, **{"retry": QUICK, **options}))
        return made[-1]

    yield build
    for driver in made:
        driver.close()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the tests by folder. The order within a folder stays."""
    order = {name: index for index, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: order.get(item.path.relative_to(TESTS).parts[0], len(order)))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """Show logs as text: Spark gives the handler of pytest a formatter of JSON."""
    plugin = item.config.pluginmanager.get_plugin("logging-plugin")
    if plugin is not None:
        plugin.caplog_handler.setFormatter(plugin.formatter)
