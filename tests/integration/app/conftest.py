"""A cluster and a connection for tests of the client of applications."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sbp_core import connect
from sbp_core.app import Connection
from tests.support.warm import WarmCluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmCluster]:
    """A cluster of one range server, for all tests of a module."""
    with WarmCluster(tmp_path_factory.mktemp("app") / "data") as cluster:
        yield cluster


@pytest.fixture
def sbp(cluster: WarmCluster) -> Iterator[Connection]:
    """A connection to it."""
    with connect(cluster.endpoint) as connection:
        yield connection
