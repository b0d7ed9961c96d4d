"""Fixtures for all tests. Each fixture imports the heavy modules that it needs itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import TYPE_CHECKING

import effort  # noqa: F401 - it registers the profiles
import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession
    from store_homes import PostgresqlHome, PostgresqlServer, SqliteHome

    from sbp_core.client import Client
    from sbp_core.cluster import LocalCluster

settings.load_profile("untimed")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The one Spark session of the run."""
    from spark_session import spark_session

    with spark_session(tmp_path_factory.mktemp("spark")) as session:
        yield session


@pytest.fixture(scope="session")
def cluster() -> Iterator[LocalCluster]:
    """`sbp serve` as a process of its own. It must be running when a test that kills it ends."""
    from sbp_core.cluster import LocalCluster

    with LocalCluster() as running:
        yield running


@pytest.fixture(scope="session")
def foreign_cluster() -> Iterator[LocalCluster]:
    """`sbp serve` that speaks elasticstream-2023-04."""
    from sbp_core.cluster import LocalCluster

    with LocalCluster(options=["--dialect", "elasticstream-2023-04"]) as running:
        yield running


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
    from store_homes import PostgresqlServer

    server = PostgresqlServer()
    yield server
    server.stop()


@pytest.fixture(params=["sqlite", "postgresql"])
def new_home(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[Callable[[], SqliteHome | PostgresqlHome]]:
    """Makes homes of metadata stores: what every store does is tested in both kinds."""
    from store_homes import PostgresqlHome, SqliteHome

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
        home.close()


@pytest.fixture
def home(new_home: Callable[[], SqliteHome | PostgresqlHome]) -> SqliteHome | PostgresqlHome:
    """A home of a metadata store."""
    return new_home()
