"""More connections than a server can have: those that are there, its log and its peers go on."""

import asyncio
import resource
import socket
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from sbp_core import limits
from sbp_core.client import AppendItem, AsyncClient, Client, Connecting, RetryPolicy, StreamSpec
from sbp_core.errors import Outcome, ThrottledError
from sbp_core.wire.frame import FrameDecoder
from sbp_core.wire.headers import decode_system_error
from sbp_core.wire.opcodes import Opcode
from tests.support.cluster import core_cluster, rows_batch
from tests.support.listener import received
from tests.support.security import Authority
from tests.support.warm import WarmCluster
from tests.support.wire import RawClient

DESCRIPTORS = 96
FLOOD = 400
DEADLINE_SECONDS = 60


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module", params=["plain", "TLS"])
def tls(request, authority):
    """The files of clients, None without TLS."""
    return authority.client() if request.param == "TLS" else None


@pytest.fixture(scope="module")
def served(tls, authority, tmp_path_factory):
    """A real server whose log begins a new segment after three large batches."""
    folder = tmp_path_factory.mktemp("flood")
    config = folder / "server.toml"
    config.write_text(f"[range_server]\nsegment_bytes = {limits.SEGMENT_BYTES_MIN}\n")
    files = None if tls is None else authority.server()
    options = ("--config", str(config))
    with WarmCluster(folder / "data", options=options, tls=files) as cluster:
        yield cluster


def client_of(served, tls):
    return Client(served.endpoint, connecting=Connecting(tls=tls))


@contextmanager
def descriptors(pid, count):
    """Limit a process to `count` descriptors within the block."""
    usual = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (count, usual[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, usual)


def open_descriptors(pid):
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def address_of(endpoint):
    host, _, port = endpoint.rpartition(":")
    return host, int(port)


def farewell(connection):
    """The status of the GOAWAY with which the server closed a connection."""
    connection.settimeout(DEADLINE_SECONDS)
    decoder = FrameDecoder()
    while data := connection.recv(1 << 16):
        decoder.receive_data(data)
    (last,) = decoder.frames()
    assert last.opcode == Opcode.GOAWAY
    return decode_system_error(last.header).status


def wait_until(condition):
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_flood_takes_no_descriptors_from_the_log_and_its_end_admits_others(served, tls):
    address = address_of(served.range_servers[0])
    log = served.data_dir / "range-server-0" / "log"
    with client_of(served, tls) as client:
        (stream,) = client.create_streams([StreamSpec("flooded")])
        item = AppendItem(stream.stream_id, rows_batch([bytes(7 << 20)]))
        client.append([item])
        with descriptors(served.pid, DESCRIPTORS), ExitStack() as flood:
            connections = [
                flood.enter_context(socket.create_connection(address)) for _ in range(FLOOD)
            ]
            if tls is None:
                status = farewell(connections[-1])
                assert (status.code, "few more files" in status.message) == (1429, True)
            else:  # it is closed before there is a channel for a reason
                assert received(connections[-1]) == b""
            segments = set(log.glob("*.log"))
            for number in range(1, 5):
                (outcome,) = client.append([item])
                assert outcome.base_offset == number
            assert set(log.glob("*.log")) > segments
            assert open_descriptors(served.pid) < DESCRIPTORS
        with client_of(served, tls) as newcomer:
            assert newcomer.append([item])[0].base_offset == 5


def test_a_server_that_cannot_accept_can_be_stopped(tmp_path):
    with WarmCluster(tmp_path) as cluster:
        with descriptors(cluster.pid, 4), socket.create_connection(address_of(cluster.endpoint)):
            wait_until(lambda: "accept failed" in cluster.log_path.read_text())
        cluster.stop()
        assert "Traceback" not in cluster.log_path.read_text()
        cluster.restart()


def fill(cluster, count):
    """Let the running servers have `count` connections from now on."""
    for server in (cluster.pd, cluster.server):
        admission = server._listener._admission
        admission._connections_max, admission._reserved = count, 0


def test_clients_that_are_refused_at_accept_try_again(tmp_path, caplog):
    """An append that is not to be repeated is: the server looked at nothing."""

    async def body():
        async with core_cluster(tmp_path) as cluster:
            (stream,) = await cluster.client.create_streams([StreamSpec("s")])
            item = AppendItem(stream.stream_id, rows_batch([b"x"]))
            async with (
                RawClient.at(cluster.server.endpoint) as occupant,
                AsyncClient(cluster.pd.endpoint) as client,
            ):
                with Client(cluster.pd.endpoint) as blocking:
                    await occupant.call(Opcode.PING)
                    await client.list_streams()
                    await asyncio.to_thread(blocking.list_streams)
                    fill(cluster, 1)
                    appends = [
                        asyncio.create_task(client.append([item])),
                        asyncio.create_task(asyncio.to_thread(blocking.append, [item])),
                    ]
                    while "connection refused" not in caplog.text:
                        await occupant.call(Opcode.PING)
                    fill(cluster, 10)
                    offsets = {(await append)[0].base_offset for append in appends}
                    assert offsets == {0, 1}

    asyncio.run(asyncio.wait_for(body(), DEADLINE_SECONDS))


def test_a_client_that_is_refused_for_good_knows_that_nothing_was_done(tmp_path):
    async def body():
        async with core_cluster(tmp_path) as cluster:
            (stream,) = await cluster.client.create_streams([StreamSpec("s")])
            item = AppendItem(stream.stream_id, rows_batch([b"x"]))
            async with AsyncClient(cluster.pd.endpoint, retry=RetryPolicy(budget_ms=0)) as client:
                await client.list_ranges([stream.stream_id])
                fill(cluster, 0)
                with pytest.raises(ThrottledError, match="1 connection open already") as caught:
                    await client.append([item])
            assert caught.value.outcome is Outcome.NOT_APPLIED

    asyncio.run(asyncio.wait_for(body(), DEADLINE_SECONDS))
