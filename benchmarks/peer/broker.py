"""One Kafka broker as a child process: KRaft, broker and controller in one, a folder of its own."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

import psutil

from benchmarks.peer.jars import PeerAbsentError

HEAP: Final = ("-Xms1g", "-Xmx1g")
"""The heap of Kafka's own start script."""
JAVA_OPTIONS: Final = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)
"""The script's too, but for the last one: warnings go to standard error."""
START_TIMEOUT_S: Final = 60
STOP_TIMEOUT_S: Final = 30

_LOOPBACK: Final = "127.0.0.1"
_PORTS: Final = range(20_000, 30_000)
_UNTIL_STDIN_CLOSES: Final = 'exec 3<&0; "$@" & java=$!; (read -r _ <&3; kill $java) & wait $java'
"""Runs a command that ends when this process does, however that ends."""
_CLUSTER_ID: Final = "c2JwLWJlbmNobWFya3MtLQ"
_POLL_INTERVAL_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Broker:
    """A running broker: its "host:port", and its Java."""

    address: str
    pid: int


def broker_settings(folder: Path, *, port: int, controller_port: int) -> dict[str, str]:
    """Return the settings that differ from Kafka's defaults: one node, alone, below `folder`."""
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@{_LOOPBACK}:{controller_port}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://{_LOOPBACK}:{port},CONTROLLER://{_LOOPBACK}:{controller_port}",
        "log.dirs": str(folder / "logs"),
        "auto.create.topics.enable": "false",
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
    }


@contextmanager
def open_broker(folder: Path, jars: Sequence[Path]) -> Iterator[Broker]:
    """Start a broker on a new folder, give it once it answers, stop it in the end.

    Raises PeerAbsentError when it does not come up.
    """
    folder.mkdir(parents=True)
    port, controller_port = _free_ports(2)
    settings = broker_settings(folder, port=port, controller_port=controller_port)
    file = _write_settings(folder / "server.properties", settings)
    java = str(Path(os.environ["JAVA_HOME"], "bin", "java"))
    command = [java, *HEAP, *JAVA_OPTIONS, "-cp", os.pathsep.join(map(str, jars))]
    output = folder / "output"
    with output.open("wb") as sink:
        _format_storage([*command, "kafka.tools.StorageTool"], file, sink, output)
        process = subprocess.Popen(
            ["sh", "-c", _UNTIL_STDIN_CLOSES, "sh", *command, "kafka.Kafka", str(file)],
            stdin=subprocess.PIPE,
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            _wait_for(process, port, output)
            children = psutil.Process(process.pid).children()
            pid = next(child.pid for child in children if child.name() == "java")
            yield Broker(f"{_LOOPBACK}:{port}", pid)
        finally:
            _stop(process)


def _free_ports(count: int) -> list[int]:
    """Return free ports outside of the range from which systems assign ports.

    Spark keeps producers for minutes. When their broker is gone they go on calling, and must not
    reach a server that was given its port.
    """
    free: list[int] = []
    for port in random.sample(_PORTS, len(_PORTS)):
        try:
            socket.create_server((_LOOPBACK, port)).close()
        except OSError:
            continue
        free.append(port)
        if len(free) == count:
            return free
    raise PeerAbsentError(f"no free ports from {_PORTS.start} to {_PORTS.stop - 1}")


def _write_settings(path: Path, settings: Mapping[str, str]) -> Path:
    lines = (f"{name}={value}\n" for name, value in settings.items())
    path.write_text("".join(lines), encoding="utf-8")
    return path


def _format_storage(command: Sequence[str], settings: Path, sink: IO[bytes], output: Path) -> None:
    """Give the empty log folder its identity, without which a broker refuses it."""
    try:
        subprocess.run(
            [*command, "format", "-t", _CLUSTER_ID, "-c", str(settings)],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            timeout=START_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise PeerAbsentError(f"its storage was not formatted: {_last_line(output)}") from error


def _wait_for(process: subprocess.Popen[bytes], port: int, output: Path) -> None:
    give_up_at = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < give_up_at:
        if process.poll() is not None:
            raise PeerAbsentError(f"the broker ended at its start: {_last_line(output)}")
        try:
            socket.create_connection((_LOOPBACK, port), timeout=1).close()
        except OSError:
            time.sleep(_POLL_INTERVAL_S)
        else:
            return
    raise PeerAbsentError(f"the broker takes no connections after {START_TIMEOUT_S} s")


def _last_line(output: Path) -> str:
    lines = output.read_text(encoding="utf-8", errors="replace").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "it says nothing")


def _stop(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
