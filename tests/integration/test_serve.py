"""`sbp serve` as a process: start, stop, crash, and conflicts with another process."""

import asyncio
import dataclasses
import fcntl
import json
import os
import pty
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from sbp_core import processes
from sbp_core.cli import serving
from sbp_core.client import AppendItem, AsyncClient, Client, RetryPolicy, StreamSpec
from sbp_core.cluster import Cluster, Endpoints, LocalCluster
from sbp_core.errors import ConfigurationError, SbpError
from sbp_core.records import encode_envelope
from sbp_core.settings.server_settings import ClusterSettings
from tests.support.warm import WarmCluster, WarmProcess

SERVE = [sys.executable, "-m", "sbp_core.cli.main", "serve"]
TIMEOUT_SECONDS = 60


def serve(data_dir, *words: str) -> WarmProcess:
    ports = ["--pd-port", "0", "--range-server-port", "0"]
    command = [*SERVE, "--data-dir", str(data_dir), *ports, *words]
    return WarmProcess(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def refused(process: WarmProcess, exit_code: int = 2) -> str:
    """The one line of a server that cannot start."""
    output, errors = process.communicate(timeout=TIMEOUT_SECONDS)
    error = errors.decode()
    assert (process.returncode, output) == (exit_code, b""), error
    assert error.startswith("sbp: ")
    assert error.count("\n") == 1
    return error


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def append(client: Client, stream_id: int, body: bytes) -> int:
    batch = encode_envelope(
        [body], stream_id=stream_id, record_count=1, base_timestamp_ms=0, encoding="test"
    )
    (outcome,) = client.append([AppendItem(stream_id, batch)])
    return outcome.base_offset


def test_serving_from_the_first_line_to_sigterm(tmp_path):
    ready_path = tmp_path / "ready.json"
    ready_path.write_text("stale")
    words = ["--ready-file", str(ready_path), "--range-servers", "2"]
    with serve(tmp_path / "data", *words) as process:
        lines = [process.stdout.readline().decode() for _ in range(4)]
        ready = json.loads(ready_path.read_text())
        assert lines == [
            f"placement driver  {ready['pd']}\n",
            f"range server 0    {ready['range_servers'][0]}\n",
            f"range server 1    {ready['range_servers'][1]}\n",
            f"serving {tmp_path / 'data'}; Ctrl-C or SIGTERM stops\n",
        ]
        assert list(ready) == ["pd", "range_servers"]
        assert names(tmp_path) == {"data", "ready.json"}
        with Client(ready["pd"], retry=RetryPolicy(budget_ms=0)) as client:
            infos = client.create_streams([StreamSpec("a"), StreamSpec("b")])
            ranges = client.list_ranges([info.stream_id for info in infos])
        servers = {server for pieces in ranges.values() for server in pieces[0].servers}
        assert servers == set(ready["range_servers"])
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_SECONDS) == 0
        assert (process.stdout.read(), process.stderr.read()) == (b"", b"")
    assert not ready_path.exists()
    assert names(tmp_path / "data") == {
        "placement-driver",
        "range-server-0",
        "range-server-1",
    }
    assert stat.S_IMODE((tmp_path / "data").stat().st_mode) == 0o700


def test_the_ports_of_a_cluster_that_is_down_are_given_to_no_other(tmp_path, monkeypatch):
    first = WarmCluster(tmp_path / "first")
    with first:
        first.stop()
        port = int(first.endpoint.rpartition(":")[2])
        monkeypatch.setattr(processes, "CLUSTER_PORTS", range(port, port + 3))
        with pytest.raises(SbpError, match="no 2 consecutive ports"):
            WarmCluster(tmp_path / "second").start()
        first.start()
    with WarmCluster(tmp_path / "second") as second:
        assert second.endpoint == first.endpoint


def test_a_folder_and_a_port_that_are_in_use(tmp_path):
    ready_path = tmp_path / "ready.json"
    with WarmCluster(tmp_path) as cluster:
        error = refused(serve(tmp_path, "--ready-file", str(ready_path)))
        assert "in use by another `sbp serve`" in error
        assert ready_path.exists()
        for option, endpoint in [
            ("--pd-port", cluster.endpoint),
            ("--range-server-port", cluster.range_servers[0]),
        ]:
            port = endpoint.rpartition(":")[2]
            assert port in refused(serve(tmp_path / "other", option, port))
        with Client(cluster.endpoint) as client:
            assert client.ping() > 0


def test_ports_of_a_configuration_file(tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = tmp_path / "server.toml"
    config.write_text(
        f'[serve]\ndata_dir = "{tmp_path}/data"\nlog_level = "info"\n'
        f"[placement_driver]\nport = {port}\n[range_server]\nport = 0\n"
    )
    command = [*SERVE, "--config", str(config)]
    with WarmProcess(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout.readline() == f"placement driver  127.0.0.1:{port}\n".encode()
        process.stdout.close()
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT_SECONDS) == 0
        assert b"INFO sbp_core" in process.stderr.read()


def test_a_second_signal_ends_the_process_at_once():
    program = (
        "import asyncio\n"
        "from sbp_core.cli.serving import watch_signals\n"
        "async def run():\n"
        "    stopping = asyncio.get_running_loop().create_future()\n"
        "    watch_signals(stopping)\n"
        "    print('serving', flush=True)\n"
        "    await stopping\n"
        "    print('draining', flush=True)\n"
        "    await asyncio.get_running_loop().create_future()\n"
        "asyncio.run(run())\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"serving\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == b"draining\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT_SECONDS) == 130


def test_the_server_ends_with_the_process_that_started_it(tmp_path):
    program = (
        "import os, signal, sys\n"
        "from sbp_core.cluster import LocalCluster\n"
        "cluster = LocalCluster(sys.argv[1]).start()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    parent = WarmProcess([sys.executable, "-c", program, str(tmp_path)])
    assert parent.wait(TIMEOUT_SECONDS) == -signal.SIGKILL
    directory = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)  # waits for the server, which holds it
    finally:
        os.close(directory)
    assert (tmp_path / "serve.log").read_text().count("serving") == 1
    assert not (tmp_path / "ready.json").exists()


def test_an_interpreter_that_ends_takes_its_server_along(tmp_path):
    program = (
        "import sys\n"
        "from sbp_core.cluster import LocalCluster\n"
        "cluster = LocalCluster().start()\n"
        "print(cluster.pid, cluster.data_dir)\n"
    )
    pipes = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
    parent = WarmProcess([sys.executable, "-c", program], text=True, **pipes)
    output, errors = parent.communicate(timeout=TIMEOUT_SECONDS)
    assert (parent.returncode, errors) == (0, "")
    pid, data_dir = output.split()
    assert not Path(data_dir).exists()
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)


def test_a_start_that_fails_shows_the_log():
    cluster = LocalCluster(options=["--log-level", "loud"])
    with pytest.raises(SbpError, match=r"exit code 2 before it was ready(.|\n)*'loud'"):
        cluster.start()
    with pytest.raises(RuntimeError):
        cluster.kill()
    with pytest.raises(RuntimeError):
        _ = cluster.endpoint


def test_an_error_in_the_body_ends_the_server_too():
    def fail_while_serving(clusters: list[LocalCluster]) -> None:
        with LocalCluster() as cluster:
            clusters.append(cluster)
            os.kill(cluster.pid, 0)
            raise ZeroDivisionError

    clusters: list[LocalCluster] = []
    with pytest.raises(ZeroDivisionError):
        fail_while_serving(clusters)
    with pytest.raises(RuntimeError, match="not running"):
        _ = clusters[0].pid
    assert not clusters[0].data_dir.exists()


def test_standard_input_that_cannot_be_watched(tmp_path):
    with open(os.devnull) as nothing:
        command = [*SERVE, "--data-dir", str(tmp_path), "--until-stdin-closes"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = WarmProcess(command, stdin=nothing, text=True, **pipes)
    output, errors = process.communicate(timeout=TIMEOUT_SECONDS)
    assert (process.returncode, output) == (2, "")
    assert errors == (
        "sbp: --until-stdin-closes: standard input is not a pipe or terminal; pass a pipe\n"
    )


def test_a_terminal_that_is_watched_stays_as_it_is(tmp_path):
    ours, theirs = pty.openpty()
    ports = ["--pd-port", "0", "--range-server-port", "0"]
    words = [*SERVE, "--data-dir", str(tmp_path), *ports, "--until-stdin-closes"]
    with WarmProcess(words, stdin=theirs, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout.readline().startswith("placement driver")
            assert os.get_blocking(theirs)
            os.write(ours, b"\4")  # the end of a terminal's input
            assert server.wait(TIMEOUT_SECONDS) == 0
        finally:
            server.kill()
    assert os.get_blocking(theirs)
    os.close(ours)
    os.close(theirs)


def test_a_cluster_that_cannot_start_leaves_nothing_behind(tmp_path):
    async def run(settings: ClusterSettings) -> Endpoints:
        cluster = Cluster(settings)
        await cluster.start()
        try:
            assert not cluster.failed.done()
            return cluster.endpoints
        finally:
            await cluster.stop()

    free = ClusterSettings(data_dir=tmp_path, pd_port=0, range_server_port=0, range_servers=2)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=str(port)):
            asyncio.run(run(dataclasses.replace(free, range_server_port=port)))
    endpoints = asyncio.run(run(free))
    assert len({endpoints.pd, *endpoints.range_servers}) == 3


def test_a_cluster_on_all_interfaces_prints_a_reachable_address(tmp_path):
    async def run() -> tuple[Endpoints, int]:
        cluster = Cluster(
            ClusterSettings(
                data_dir=tmp_path,
                host="0.0.0.0",
                insecure=True,
                advertise_host="localhost",
                pd_port=0,
                range_server_port=0,
            )
        )
        await cluster.start()
        try:
            async with AsyncClient(cluster.endpoints.pd) as client:
                (info,) = await client.create_streams([StreamSpec("a")])
                (bounds,) = await client.stream_bounds([info.stream_id])
                return cluster.endpoints, bounds.next_offset
        finally:
            await cluster.stop()

    endpoints, next_offset = asyncio.run(run())
    assert {each.partition(":")[0] for each in (endpoints.pd, *endpoints.range_servers)} == {
        "localhost"
    }
    assert next_offset == 0


def test_the_ready_file_is_never_seen_half_written(tmp_path, monkeypatch):
    ready = serving.ReadyFile(tmp_path / "ready.json")
    monkeypatch.setattr(serving.Path, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "")))
    with pytest.raises(ConfigurationError, match=r"ready\.json"):
        ready.write(dataclasses.asdict(Endpoints("a:1", ())))
    assert list(tmp_path.iterdir()) == []
