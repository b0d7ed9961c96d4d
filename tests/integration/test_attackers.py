"""The attacks of the benchmark, for a moment each, at servers that run as users start them.

A client that does no harm goes on beside them, with calls that must be answered in their time.
"""

import time

import psutil
import pytest

from benchmarks.core.attacks import ATTACKS, LONG_NAME, Attackers, Target
from sbp_core import limits
from sbp_core.client import AppendItem, Client, Connecting, StreamSpec
from tests.support.cluster import rows_batch
from tests.support.security import Authority
from tests.support.warm import WarmCluster

OLD_BATCHES = 64
LONG_NAMES = 3_000
ROUNDS = 50
RSS_BYTES_MAX = 512 * limits.MIB
WITH_TLS = {"slow-announcers", "unread-pings", "unread-fetches"}
"""Attacks on memory and on the sockets, where TLS is in between."""


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module", params=["plain", "TLS"])
def tls(request, authority):
    """The files of clients, None without TLS."""
    return authority.client() if request.param == "TLS" else None


@pytest.fixture(scope="module")
def served(tls, authority, tmp_path_factory):
    files = None if tls is None else authority.server()
    with WarmCluster(tmp_path_factory.mktemp("attacked") / "data", tls=files) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def target(served, tls):
    item_bytes = rows_batch([bytes(limits.MIB - 2048)])
    with connect(served, tls) as client:
        (old,) = client.create_streams([StreamSpec("old")])
        for _ in range(OLD_BATCHES):
            client.append([AppendItem(old.stream_id, item_bytes)])
        client.create_streams([StreamSpec(f"{LONG_NAME}-{at}") for at in range(LONG_NAMES)])
    ports = [int(at.rpartition(":")[2]) for at in (served.endpoint, served.range_servers[0])]
    ca_file = None if tls is None else tls.ca_file
    return Target(*ports, old.stream_id, OLD_BATCHES // 2, ca_file)


def connect(served, tls):
    return Client(served.endpoint, connecting=Connecting(tls=tls))


@pytest.mark.parametrize("name", ATTACKS)
def test_a_client_beside_an_attack_goes_on(served, target, tls, name):
    if tls is not None and name not in WITH_TLS:
        pytest.skip("the attack is on what is the same with TLS")
    process = psutil.Process(served.pid)
    with Attackers(name, target):
        wait_for_connections(process, ATTACKS[name].connection_count)
        with connect(served, tls) as client:  # a newcomer, while the attack is on
            (stream,) = client.create_streams([StreamSpec(f"beside-{name}")])
            item = AppendItem(stream.stream_id, rows_batch([b"small"]))
            for number in range(ROUNDS):
                (outcome,) = client.append([item])
                assert outcome.base_offset == number
                client.list_ranges([stream.stream_id])
                assert process.memory_info().rss < RSS_BYTES_MAX
    assert "Traceback" not in served.log_path.read_text()


def wait_for_connections(process, count):
    """Wait until half of the attackers were there; some attacks have hardly any at a time."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline and len(process.net_connections("tcp")) < count // 2:
        time.sleep(0.05)
