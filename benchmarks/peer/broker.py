"""Kafka brokers as child processes: KRaft, broker and controller in one, a folder each."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
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


def broker_settings(
    folder: Path, *, port: int, controller_ports: Sequence[int], node: int = 1
) -> dict[str, str]:
    """Return the settings of a node, numbered from 1, that differ from Kafka's defaults.

    All nodes are brokers and controllers on this machine; this one keeps its data below `folder`.
    """
    count = len(controller_ports)
    voters = (f"{at}@{_LOOPBACK}:{each}" for at, each in enumerate(controller_ports, start=1))
    controller = f"CONTROLLER://{_LOOPBACK}:{controller_ports[node - 1]}"
    return {
        "process.roles": "broker,controller",
        "node.id": str(node),
        "controller.quorum.voters": ",".join(voters),
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://{_LOOPBACK}:{port},{controller}",
        "log.dirs": str(folder / "logs"),
        "auto.create.topics.enable": "false",
        "offsets.topic.replication.factor": str(count),
        "transaction.state.log.replication.factor": str(count),
        "transaction.state.log.min.isr": str(count // 2 + 1),
    }


@contextmanager
def open_brokers(
    folder: Path, jars: Sequence[Path], count: int = 1
) -> Iterator[tuple[Broker, ...]]:
    """Start brokers on new folders, give them once they answer, stop them in the end.

    Raises PeerAbsentError when one does not come up.
    """
    ports = _free_ports(2 * count)
    with ExitStack() as stack:
        started = [
            stack.enter_context(
                _node(
                    folder / str(node),
                    jars,
                    broker_settings(
                        folder / str(node),
                        port=ports[node - 1],
                        controller_ports=ports[count:],
                        node=node,
                    ),
                )
            )
            for node in range(1, count + 1)
        ]
        yield tuple(
            _answering(process, port, output)
            for (process, output), port in zip(started, ports[:count], strict=True)
        )


@contextmanager
def _node(
    folder: Path, jars: Sequence[Path], settings: Mapping[str, str]
) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Start one node; give its process and the file with its output."""
    folder.mkdir(parents=True)
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
            yield process, output
        finally:
            _stop(process)


def _answering(process: subprocess.Popen[bytes], port: int, output: Path) -> Broker:
    """Wait until a node accepts connections."""
    _wait_for(process, port, output)
    children = psutil.Process(process.pid).children()
    pid = next(child.pid for child in children if child.name() == "java")
    return Broker(f"{_LOOPBACK}:{port}", pid)


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
