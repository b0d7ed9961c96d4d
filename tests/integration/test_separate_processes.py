"""`sbp pd` and `sbp range-server`: servers in processes of their own, on real disks."""

import asyncio
import json
import os
import signal
import socket
import subprocess
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE

import pytest

from sbp_core.cli.main import main
from sbp_core.client import EARLIEST, AppendItem, Client, FetchItem, StreamSpec
from sbp_core.errors import SbpError
from tests.support.cluster import rows_batch, values_of
from tests.support.placement_driver import follower_pd
from tests.support.warm import WarmCluster, sbp

TIMEOUT_SECONDS = 60


class Server:
    """One server as a process."""

    def __init__(self, folder: Path, command: str, *words: str) -> None:
        self.ready_path = folder / f"{command}.json"
        options = ["--data-dir", str(folder / command), "--ready-file", str(self.ready_path)]
        words = (*options, "--port", "0", *words)
        self.process = sbp(command, *words, stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True)

    def wait_until_ready(self) -> list[str]:
        """Return what it prints until it serves."""
        lines = []
        while not lines or not lines[-1].startswith("serving "):
            line = self.process.stdout.readline()
            assert line, self.process.communicate(timeout=TIMEOUT_SECONDS)[1]
            lines.append(line.rstrip("\n"))
        return lines

    @property
    def endpoint(self) -> str:
        return json.loads(self.ready_path.read_text())["endpoint"]

    def end(self, signal_number: int = signal.SIGTERM) -> tuple[int, str]:
        """Send a signal; return the exit code and what was logged."""
        self.process.send_signal(signal_number)
        errors = self.process.communicate(timeout=TIMEOUT_SECONDS)[1]
        return self.process.returncode, errors


@contextmanager
def running(folder: Path, command: str, *words: str):
    server = Server(folder, command, *words)
    try:
        server.lines = server.wait_until_ready()
        yield server
    finally:
        server.process.kill()
        server.process.communicate()


@pytest.fixture(scope="module")
def down():
    """The endpoint of a server that is down."""

    async def begin_and_end():
        async with follower_pd() as follower:
            return follower.endpoint

    return asyncio.run(begin_and_end())


def refused(*words: str) -> str:
    process = sbp(*words, stdout=PIPE, stderr=PIPE, text=True)
    output, errors = process.communicate(timeout=TIMEOUT_SECONDS)
    assert (process.returncode, output) == (2, "")
    return errors


def write_and_read(endpoint: str) -> None:
    with Client(endpoint) as client:
        (info,) = client.create_streams([StreamSpec("s")])
        client.append([AppendItem(info.stream_id, rows_batch([b"a"]))])
        (outcome,) = client.fetch([FetchItem(info.stream_id, EARLIEST, None, 1 << 20)])
        assert values_of(outcome.payload) == [(0, b"a")]


def test_both_from_the_first_line_to_the_last(tmp_path, down):
    with running(tmp_path, "pd", "--name", "one") as driver:
        assert driver.lines == [
            f"placement driver  {driver.endpoint}",
            f"serving {tmp_path / 'pd'}; Ctrl-C or SIGTERM stops",
        ]
        several = f"{down},{driver.endpoint}"
        with running(tmp_path, "range-server", "--pd", several) as server:
            assert server.lines == [
                f"range server      {server.endpoint}",
                f"serving {tmp_path / 'range-server'}; Ctrl-C or SIGTERM stops",
            ]
            for each in (driver, server):
                assert json.loads(each.ready_path.read_text()) == {"endpoint": each.endpoint}
            write_and_read(several)
            for command, folder in (("pd", "pd"), ("range-server", "range-server")):
                words = ["--pd", down] if command == "range-server" else []
                data_dir = str(tmp_path / folder)
                error = refused(command, "--data-dir", data_dir, "--port", "0", *words)
                assert f"in use by another `sbp {command}`" in error
            server.process.send_signal(signal.SIGHUP)
            assert server.end() == (0, "")
            assert not server.ready_path.exists()
        assert driver.end(signal.SIGINT) == (0, "")
        assert not driver.ready_path.exists()


def test_commands_accept_several_placement_drivers(tmp_path, down, monkeypatch, capsys):
    with running(tmp_path, "pd") as driver:
        monkeypatch.setenv("SBP_ENDPOINT", f"{down},{driver.endpoint}")
        assert main(["ping", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["endpoint"] == driver.endpoint


def test_separate_processes_serve_the_data_of_sbp_serve(tmp_path):
    """The folders are the same: a cluster of one process becomes one of several, and back."""
    with WarmCluster(tmp_path) as cluster:
        write_and_read(cluster.endpoint)
        endpoint = cluster.range_servers[0]
    driver_words = ["--data-dir", str(tmp_path / "placement-driver")]
    with running(tmp_path, "pd", *driver_words) as driver:
        server_words = ["--data-dir", str(tmp_path / "range-server-0"), "--pd", driver.endpoint]
        server_words += ["--port", endpoint.rpartition(":")[2]]
        with (
            running(tmp_path, "range-server", *server_words),
            Client(driver.endpoint) as client,
        ):
            (info,) = client.list_streams()
            (outcome,) = client.fetch([FetchItem(info.stream_id, EARLIEST, None, 1 << 20)])
            assert values_of(outcome.payload) == [(0, b"a")]


def test_settings_come_from_the_file_and_the_address_from_the_option(tmp_path):
    path = tmp_path / "pd.toml"
    path.write_text(f'[placement_driver]\nname = "two"\ndata_dir = "{tmp_path / "other"}"\n')
    words = ["--config", str(path), "--advertise", "pd.example.org:7"]
    with running(tmp_path, "pd", *words) as driver:
        assert driver.endpoint == "pd.example.org:7"
        assert (tmp_path / "pd" / "metadata.sqlite").exists()


def test_it_ends_with_its_standard_input(tmp_path):
    with running(tmp_path, "pd", "--until-stdin-closes") as driver:
        stdin, driver.process.stdin = driver.process.stdin, None
        stdin.close()
        assert driver.process.wait(TIMEOUT_SECONDS) == 0
        assert not driver.ready_path.exists()


def test_a_range_server_that_waits_for_its_placement_driver_can_be_stopped(tmp_path, down):
    server = Server(tmp_path, "range-server", "--pd", down)
    try:
        assert "waiting for the placement driver" in server.process.stderr.readline()
        assert not server.ready_path.exists()
        exit_code, _ = server.end()
        assert exit_code == 0
    finally:
        server.process.kill()
        server.process.communicate()


def lock(folder: Path) -> None:
    """Return when no process has the folder of a server; fails if that takes too long."""
    run = subprocess.run(["flock", str(folder), "true"], timeout=TIMEOUT_SECONDS, check=False)
    assert run.returncode == 0


def children_of(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_several_range_servers_are_processes_and_serve_the_same_data_again(tmp_path):
    names = [f"s{number}" for number in range(6)]
    with WarmCluster(tmp_path, range_servers=2) as cluster:
        endpoints = (cluster.endpoint, cluster.range_servers)
        assert len(set(cluster.range_servers)) == len(children_of(cluster.pid)) == 2
        with Client(cluster.endpoint) as client:
            infos = client.create_streams([StreamSpec(name) for name in names])
            ids = [info.stream_id for info in infos]
            placed = client.list_ranges(ids)
            assert {each[0].servers[0] for each in placed.values()} == {*cluster.range_servers}
            client.append([AppendItem(each, rows_batch([b"a"])) for each in ids])
            cluster.kill()
            cluster.restart()
            assert (cluster.endpoint, cluster.range_servers) == endpoints
            items = [FetchItem(each, EARLIEST, None, 1 << 20) for each in ids]
            found = [values_of(outcome.payload) for outcome in client.fetch(items)]
            assert found == [[(0, b"a")]] * len(ids)
    log = cluster.log_path.read_text()
    assert log.count("range server 1    ") == 2
    assert not [each for each in tmp_path.iterdir() if each.name.startswith(".")]


def test_no_range_server_survives_its_parent(tmp_path):
    words = ["serve", "--data-dir", str(tmp_path / "data"), "--range-servers", "2"]
    words += ["--pd-port", "0", "--range-server-port", "0"]
    with sbp(*words, stdout=PIPE, text=True) as process:
        while not process.stdout.readline().startswith("serving"):
            assert process.poll() is None
        assert len(children_of(process.pid)) == 2
        process.kill()
    for index in range(2):
        lock(tmp_path / "data" / f"range-server-{index}")


def test_a_range_server_that_crashes_ends_the_others_and_the_command(tmp_path):
    cluster = WarmCluster(tmp_path, range_servers=2).start()
    crashed, _ = children_of(cluster.pid)
    os.kill(crashed, signal.SIGKILL)
    cluster._process.wait(TIMEOUT_SECONDS)
    with pytest.raises(SbpError, match="exit code 1"):
        cluster.stop()
    last_line = cluster.log_path.read_text().splitlines()[-1]
    assert f"(process {crashed}) ended with SIGKILL" in last_line
    for index in range(2):
        lock(tmp_path / f"range-server-{index}")


@pytest.mark.parametrize("is_group", [False, True])
def test_a_signal_for_the_group_or_for_a_range_server_stops_all_in_good_order(tmp_path, is_group):
    cluster = WarmCluster(tmp_path, range_servers=2).start()
    if is_group:  # as Ctrl-C in a terminal does
        os.killpg(cluster.pid, signal.SIGINT)
    else:
        os.kill(children_of(cluster.pid)[0], signal.SIGTERM)
    cluster._process.wait(TIMEOUT_SECONDS)
    cluster.stop()
    assert "sbp: " not in cluster.log_path.read_text()
    assert not (tmp_path / "ready.json").exists()


def test_a_range_server_that_cannot_start_ends_the_command(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        words = ["--data-dir", str(tmp_path), "--range-servers", "2", "--pd-port", "0"]
        *reasons, error = refused("serve", *words, "--range-server-port", port).splitlines()
    assert any(port in reason for reason in reasons)
    assert f"the range server of {tmp_path / 'range-server-'}" in error
    assert "ended with exit code 2" in error
