"""The command `sbp`, parsed without running it or run as processes, each a machine to lose."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from zipfile import ZipFile

import click
import pytest

from sbp_core.cli import main
from sbp_core.processes import COMMAND, reserved_ports
from tests.support.clock import until
from tests.support.faults.proxy import FaultProxy
from tests.support.programs import program
from tests.support.warm import WarmProcess


def parsed(name: str, *words: str) -> dict[str, Any]:
    """Return the options of a subcommand of `sbp`, by name."""
    sbp = main.command()
    command = sbp.get_command(click.Context(sbp), name)
    assert command is not None
    return command.make_context(name, [*words]).params


START_SECONDS = 90


class ServerProcess:
    """Starts and kills the process; it comes back on the same data and port."""

    def __init__(self, *words: str) -> None:
        self.endpoint = ""
        self._words = words
        self._port = "0"
        self._process: WarmProcess | None = None

    @property
    def pid(self) -> int:
        """The process id while it runs."""
        assert self._process is not None
        return self._process.pid

    async def start(self) -> None:
        """Return once it serves; of a range server the placement driver then knows."""
        self._process = await asyncio.to_thread(
            WarmProcess,
            program("server", *self._words, self._port),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        async with asyncio.timeout(START_SECONDS):
            line = await asyncio.to_thread(self._process.stdout.readline)
        self.endpoint = line.decode().strip()
        assert self.endpoint, "the server did not start"
        self._port = self.endpoint.rpartition(":")[2]

    async def kill(self) -> None:
        """SIGKILL: no GOAWAY, no last words."""
        assert self._process is not None
        process, self._process = self._process, None
        process.kill()
        await asyncio.to_thread(process.wait)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is not None:
            await self.kill()


class RangeServerProcess(ServerProcess):
    """A range server."""

    def __init__(self, folder: Path, placement_driver: str, *, heartbeat_interval_ms: int) -> None:
        super().__init__("range-server", str(folder), placement_driver, str(heartbeat_interval_ms))


class PlacementDriverProcess(ServerProcess):
    """A placement driver, alone, or one of several on the database `store`."""

    def __init__(
        self, folder: Path, *, store: str | None = None, name: str = "placement-driver"
    ) -> None:
        super().__init__("pd", str(folder), store or "", name)


END_SECONDS = 60


class Machine:
    """One server on a data directory and a port of its own. Its log is a file beside the data.

    If it is `proxied`, others reach it through `proxy`.
    """

    def __init__(
        self, folder: Path, command: str, name: str, port: int, *words: str, proxied: bool = False
    ) -> None:
        listens_at = f"127.0.0.1:{port}"
        self.name = name
        self.proxy = FaultProxy(listens_at) if proxied else None
        self.endpoint = listens_at if self.proxy is None else self.proxy.endpoint
        """Where others reach it."""
        self.data_dir = folder / name
        self._ready_path = folder / f"{name}.json"
        self._log_path = folder / f"{name}.log"
        data = ["--data-dir", str(self.data_dir), "--ready-file", str(self._ready_path)]
        self.release: Sequence[str] = COMMAND
        """The words that run `sbp`, from the next start on."""
        self.options: Sequence[str] = ()
        """Further words of the command, from the next start on."""
        place = ["--port", str(port), "--advertise", self.endpoint]
        self._words = [command, *data, *place, *words]
        self._process: WarmProcess | subprocess.Popen[bytes] | None = None

    @property
    def is_running(self) -> bool:
        """Whether there is a process, stopped or not."""
        return self._process is not None

    @property
    def is_alive(self) -> bool:
        """Whether its process has not ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        """The output since the first start."""
        return self._log_path.read_text(errors="replace") if self._log_path.exists() else ""

    def start(self) -> None:
        """Start, and return when it serves."""
        self.launch()
        self.wait_until_ready()

    def launch(self) -> None:
        """Start, and return at once."""
        self._ready_path.unlink(missing_ok=True)
        with self._log_path.open("ab") as log:
            words = [*self.release, *self._words, *self.options, "--until-stdin-closes"]
            popen = WarmProcess if self.release == COMMAND else subprocess.Popen
            self._process = popen(words, stdin=subprocess.PIPE, stdout=log, stderr=log)

    def wait_until_ready(self) -> None:
        """Return when it serves."""
        until(self._is_ready, START_SECONDS)

    def starts(self) -> bool:
        """Start; whether it serves, or ends by itself before."""
        self.launch()
        process = self._process
        assert process is not None
        until(lambda: process.poll() is not None or self._is_ready(), START_SECONDS)
        if process.poll() is not None:
            self.kill()
        return self.is_running

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

    def _is_ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log
        with contextlib.suppress(FileNotFoundError, ValueError):
            return bool(json.loads(self._ready_path.read_text())["endpoint"] == self.endpoint)
        return False


class Machines:
    """Range servers, and one placement driver or, on a `store`, two; started on entering.

    If they are `proxied`, all others reach each of them through its proxy. `settings` are further
    words for the range servers, `driver_settings` for the placement drivers. `release` runs `sbp`.
    """

    def __init__(
        self,
        folder: Path,
        range_servers: int = 3,
        settings: Sequence[str] = (),
        *,
        driver_settings: Sequence[str] = (),
        proxied: bool = False,
        store: str | None = None,
        release: Sequence[str] = COMMAND,
    ) -> None:
        names = ["pd"] if store is None else ["pd0", "pd1"]
        shared = [] if store is None else ["--store", store]
        self._ports = ExitStack()
        port = self._ports.enter_context(reserved_ports(len(names) + range_servers))
        self.drivers = [
            Machine(
                *(folder, "pd", name, port + at, "--name", name),
                *(*shared, *driver_settings),
                proxied=proxied,
            )
            for at, name in enumerate(names)
        ]
        self.endpoint = ",".join(each.endpoint for each in self.drivers)
        """Where clients connect."""
        self.servers = [
            Machine(
                *(folder, "range-server", f"rs{at}", port + len(names) + at),
                *("--pd", self.endpoint, *settings),
                proxied=proxied,
            )
            for at in range(range_servers)
        ]
        for machine in (*self.drivers, *self.servers):
            machine.release = release

    @property
    def driver(self) -> Machine:
        """The only placement driver, or the first one."""
        return self.drivers[0]

    def at(self, endpoint: str) -> Machine:
        """Return the range server with this address."""
        return next(each for each in self.servers if each.endpoint == endpoint)

    def start(self) -> None:
        """Start all: the placement drivers, then the range servers."""
        start_all(self.drivers)
        start_all(self.servers)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for machine in (*self.servers, *self.drivers):
            if machine.is_running:
                machine.kill()
            if machine.proxy is not None:
                machine.proxy.close()
        self._ports.close()


def start_all(machines: Sequence[Machine]) -> None:
    """Start at the same time; return when all serve."""
    for each in machines:
        each.launch()
    for each in machines:
        each.wait_until_ready()


ROOT = Path(__file__).parents[2]
BUILDS = ROOT / ".cache" / "previous-release"

PREVIOUS = "v0.1.0", "1ad000462a687633afe08735acc83e253e6bef06"
"""Its tag, and the commit of that, which counts where tags were not copied."""


class Release:
    """A release of which `folder` has the packages; dependencies are those of the tests."""

    def __init__(self, folder: Path) -> None:
        self._python = ["env", f"PYTHONPATH={folder}", sys.executable, "-P"]
        self.command = [*self._python, "-m", "sbp_core.cli.main"]
        """The words that run `sbp`."""
        found = Path(self.evaluate("sbp_core", "sbp_core.__file__"))
        assert found.is_relative_to(folder), found

    def evaluate(self, module: str, expression: str) -> str:
        """Return what an expression is there, as `print` writes it."""
        code = f"import {module}; print({expression})"
        return output([*self._python, "-c", code]).decode().strip()


def previous_release() -> Release:
    """Build it, or find it built. Skips the test if the repository does not have it."""
    commit = _commit()
    folder = BUILDS / commit
    if not folder.exists():
        BUILDS.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=BUILDS, prefix="building-") as made:
            _build(commit, Path(made))
            with suppress(OSError):  # another run was first
                (Path(made) / "packages").rename(folder)
    return Release(folder)


def this_release() -> Release:
    """The one that is tested."""
    return Release(ROOT)


def output(words: Sequence[str | Path], cwd: Path | None = None) -> bytes:
    """Return what a command prints; fail with its errors if it does."""
    run = subprocess.run(words, cwd=cwd, capture_output=True, check=False)
    assert run.returncode == 0, run.stderr.decode(errors="replace")
    return run.stdout


def _commit() -> str:
    for revision in PREVIOUS if shutil.which("git") else ():
        words = ["git", "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}"]
        run = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
        if run.returncode == 0:
            return run.stdout.strip()
    pytest.skip(f"the release before this one is not in the repository: {' or '.join(PREVIOUS)}")


def _build(commit: str, folder: Path) -> None:
    source = folder / "source"
    with tarfile.open(fileobj=io.BytesIO(output(["git", "archive", commit], cwd=ROOT))) as archive:
        archive.extractall(source, filter="data")
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index"]
    output([*pip, "--wheel-dir", folder, "."], cwd=source)
    (wheel,) = folder.glob("*.whl")
    with ZipFile(wheel) as packages:
        packages.extractall(folder / "packages")
