"""The messages of a server to the service manager that started it, on a socket like systemd's."""

import asyncio
import os
import signal
import socket
import subprocess
import sys

import pytest

from sbp_core.cli.service_manager import ServiceManager

SERVE = [sys.executable, "-m", "sbp_core.cli.main", "serve"]
TIMEOUT_SECONDS = 60


class Manager:
    """The socket of a service manager; `name` is a path, or begins with @ for an abstract one."""

    def __init__(self, name: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(name.replace("@", "\0", 1))
        self._socket.settimeout(TIMEOUT_SECONDS)
        self.messages: list[list[str]] = []

    def wait_for(self, line: str) -> list[str]:
        """Read messages up to one with a line; return it."""
        while True:
            self.messages.append(self._socket.recv(4096).decode().split("\n"))
            if line in self.messages[-1]:
                return self.messages[-1]

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def name() -> str:
    return f"@sbp-test-{os.getpid()}"  # a path: test_a_watchdog_of_another_process_is_not_served


@pytest.fixture
def manager(name):
    made = Manager(name)
    yield made
    made.close()


def serve(folder, *words: str, **environ: str) -> subprocess.Popen[bytes]:
    ports = ["--pd-port", "0", "--range-server-port", "0"]
    return subprocess.Popen(
        [*SERVE, "--data-dir", str(folder / "data"), *ports, *words],
        env=os.environ | environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_a_server_reports_its_life_and_its_children_report_nothing(tmp_path, name, manager):
    words = ["--range-servers", "2"]
    with serve(tmp_path, *words, NOTIFY_SOCKET=name, WATCHDOG_USEC="400000") as process:
        ready = manager.wait_for("READY=1")
        assert manager.messages[0] == ["EXTEND_TIMEOUT_USEC=60000000"]
        assert any(line.startswith("STATUS=serving 127.0.0.1:") for line in ready)
        for _ in range(3):
            manager.wait_for("WATCHDOG=1")
        process.send_signal(signal.SIGHUP)
        reloading = manager.wait_for("RELOADING=1")
        assert reloading[1].startswith("MONOTONIC_USEC=")
        manager.wait_for("READY=1")
        process.send_signal(signal.SIGTERM)
        manager.wait_for("STOPPING=1")
        _, errors = process.communicate(timeout=TIMEOUT_SECONDS)
    assert process.returncode == 0, errors
    lines = [line for message in manager.messages for line in message]
    assert (lines.count("READY=1"), lines.count("STOPPING=1")) == (2, 1)


@pytest.mark.parametrize("watchdog_pid", ["1", "own"])
def test_a_watchdog_of_another_process_is_not_served(tmp_path, watchdog_pid):
    """WATCHDOG_PID names the process that has to report."""
    name = str(tmp_path / "socket")
    manager = Manager(name)
    pid = str(os.getpid()) if watchdog_pid == "own" else watchdog_pid
    own = ServiceManager({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "1000", "WATCHDOG_PID": pid})

    async def beat() -> None:
        own.serves("serving")
        task = asyncio.create_task(own.beat())
        await asyncio.sleep(0)  # it reports at once
        task.cancel()
        own.stops()

    asyncio.run(beat())
    manager.wait_for("STOPPING=1")
    manager.close()
    assert (["WATCHDOG=1"] in manager.messages) == (watchdog_pid == "own")
