"""Fixtures for all tests. Each fixture imports the heavy modules that it needs itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import TYPE_CHECKING

import effort  # noqa: F401 - it registers the profiles
import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
