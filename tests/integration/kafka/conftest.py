"""`sbp kafka` in front of a cluster of its own, as processes, and topics of it."""

from __future__ import annotations

import itertools

import pytest

from sbp_core.client import Client, StreamSpec
from tests.support.kafka import KafkaProcess
from tests.support.warm import WarmCluster

_NUMBERS = itertools.count()


@pytest.fixture(scope="package")
def cluster(tmp_path_factory):
    with WarmCluster(tmp_path_factory.mktemp("cluster") / "data") as served:
        yield served


@pytest.fixture(scope="package")
def gateway(tmp_path_factory, cluster):
    folder = tmp_path_factory.mktemp("kafka")
    log = ("--log-file", str(folder / "kafka.log"), "--log-level", "debug")
    with KafkaProcess.serving(folder, cluster.endpoint, *log) as process:
        yield process
        assert process.process.poll() is None
    assert "Traceback" not in (folder / "kafka.log").read_text()


@pytest.fixture(scope="package")
def client(cluster):
    with Client(cluster.endpoint) as connected:
        yield connected


@pytest.fixture
def topic():
    """A name that no other test uses."""
    return f"topic{next(_NUMBERS)}"


@pytest.fixture
def stream_id(client, topic):
    """The only partition of `topic`, as a stream."""
    (created,) = client.create_streams([StreamSpec(topic)])
    return created.stream_id
