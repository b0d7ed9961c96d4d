"""A placement driver and range servers as `sbp` commands of their own: each is a machine to lose.

with Machines(folder, range_servers=3) as machines:
    machines.servers[0].kill()
    machines.servers[0].start()
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from fault_proxy import FaultProxy
from waiting import until

from sbp_core.processes import COMMAND, reserved_ports

START_SECONDS = 90
END_SECONDS = 60


class Machine:
    """One server on a data directory and a port of its own. Its log is a file beside the data."""

    def __init__(self, folder: Path, command: str, name: str, port: int, *words: str) -> None:
        self.endpoint = f"127.0.0.1:{port}"
        """Where others reach it."""
        self.data_dir = folder / name
        self._ready_path = folder / f"{name}.json"
        self._log_path = folder / f"{name}.log"
        data = ["--data-dir", str(self.data_dir), "--ready-file", str(self._ready_path)]
        self.release: Sequence[str] = COMMAND
        """The words that run `sbp`, from the next start on."""
        self.options: Sequence[str] = ()
        """Further words of the command, from the next start on."""
        self._words = [command, *data, "--port", str(port), *words]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_running(self) -> bool:
        """Whether there is a process, stopped or not."""
        return self._process is not None

    @property
    def log(self) -> str:
        """The output since the first start."""
        return self._log_path.read_text(errors="replace") if self._log_path.exists() else ""

    def start(self) -> None:
        """Start, and return when it serves."""
        self._ready_path.unlink(missing_ok=True)
        with self._log_path.open("ab") as log:
            self._process = process = subprocess.Popen(
                [*self.release, *self._words, *self.options, "--until-stdin-closes"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
            )
        until(lambda: self._is_ready(process), START_SECONDS)

    def kill(self) -> None:
        """SIGKILL: no last words."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM: it stops in good order."""
        assert self._end(signal.SIGTERM) == 0, self.log

    def pause(self) -> None:
        """Let the process take no step, with its connections open."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """Let it take steps again."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)

    def _end(self, signal_number: signal.Signals) -> int:
        process, self._process = self._process, None
        assert process is not None
        process.send_signal(signal_number)
        process.send_signal(signal.SIGCONT)
        exit_code = process.wait(END_SECONDS)
        assert process.stdin is not None
        process.stdin.close()
        return exit_code

    def _is_ready(self, process: subprocess.Popen[bytes]) -> bool:
        assert process.poll() is None, self.log
        with contextlib.suppress(FileNotFoundError, ValueError):
            return bool(json.loads(self._ready_path.read_text())["endpoint"] == self.endpoint)
        return False


class Machines:
    """One placement driver and some range servers, started on entering.

    With `proxied` range servers, all others reach each of them through one of `proxies`. They reach
    the placement driver, and each other's proxy, directly.
    """

    def __init__(
        self,
        folder: Path,
        range_servers: int = 3,
        settings: Sequence[str] = (),
        *,
        proxied: bool = False,
        release: Sequence[str] = COMMAND,
    ) -> None:
        self._ports = ExitStack()
        port = self._ports.enter_context(reserved_ports(1 + range_servers))
        self.driver = Machine(folder, "pd", "pd", port)
        self.servers = [
            Machine(
                *(folder, "range-server", f"rs{at}", port + 1 + at),
                *("--pd", self.driver.endpoint),
                *settings,
            )
            for at in range(range_servers)
        ]
        self.proxies = [
            self._ports.enter_context(FaultProxy(each.endpoint))
            for each in (self.servers if proxied else ())
        ]
        for each in (self.driver, *self.servers):
            each.release = release
        for server, proxy in zip(self.servers, self.proxies, strict=False):
            server.options = ["--advertise", proxy.endpoint]
            server.endpoint = proxy.endpoint

    @property
    def endpoint(self) -> str:
        """Where clients connect."""
        return self.driver.endpoint

    def at(self, endpoint: str) -> Machine:
        """Return the range server with this address."""
        return next(each for each in self.servers if each.endpoint == endpoint)

    def start(self) -> None:
        """Start all, range servers at the same time."""
        self.driver.start()
        with ThreadPoolExecutor() as threads:
            for _ in threads.map(Machine.start, self.servers):
                pass

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for machine in (*self.servers, self.driver):
            if machine.is_running:
                machine.kill()
        self._ports.close()
