"""`sbp http` in front of a cluster of its own, as processes, and streams of it."""

from __future__ import annotations

import pytest

from tests.support.warm import WarmCluster
from tests.support.web import TYPED, http_client, names, register, serving_http


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with WarmCluster(tmp_path_factory.mktemp("cluster") / "data") as served:
        yield served


@pytest.fixture(scope="module")
def served(tmp_path_factory, cluster):
    with serving_http(tmp_path_factory.mktemp("http"), cluster.endpoint) as process:
        yield process


@pytest.fixture(scope="module")
def http(served):
    with http_client(served) as client:
        yield client


@pytest.fixture
def stream(http):
    """The path of a new stream."""
    path = f"/v1/streams/{next(names)}"
    assert http.put(path).status_code == 201
    return path


@pytest.fixture
def typed(cluster, http, stream):
    """The path of a new stream with a schema."""
    register(cluster, stream, TYPED)
    return stream
