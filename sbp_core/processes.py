"""Servers as child processes: how they start and end, and the ports that are kept for them.

A child has a pipe as its standard input, and stops when that ends: so it never survives its parent,
however that ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from pathlib import Path
from typing import BinaryIO, Final
from weakref import WeakSet

from sbp_core import limits
from sbp_core.errors import ConfigurationError, SbpError
from sbp_core.log.disk import OsDisk
from sbp_core.settings.declaration import setting_of
from sbp_core.settings.server_settings import RangeServerSettings
from sbp_core.tls import ServerTls

COMMAND: Final = [sys.executable, "-m", "sbp_core.cli.main"]
"""The words that run `sbp` with the interpreter and the packages of this process."""

STOP_SECONDS: Final = 2 * limits.DRAIN_TIMEOUT_MS / 1000
POLL_SECONDS: Final = 0.02
_ADMIN_WORD: Final = "admin "
"""Begins the line of the admin endpoint."""
_LINE_BYTES_MAX: Final = limits.MIB
CLUSTER_PORTS: Final = range(20_000, 32_000)
"""Ports of a LocalCluster, as long as it has not been given others."""


class RangeServerProcess:
    """`sbp range-server` as a child of this process, which starts and stops once.

    `failed` ends with the reason when the process ended with an error. `on_stopped` is called when
    it ended in good order without being asked: a signal was sent to it, or to the whole group. It
    logs as `log_options` say, which have the values of options such as "log_level".
    """

    def __init__(
        self,
        settings: RangeServerSettings,
        *,
        log_options: Mapping[str, str | Path | None],
        admin_port: int = -1,
        on_stopped: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._log_options = dict(log_options)
        self._admin_port = admin_port
        self.admin_endpoint: str | None = None
        """Where its admin endpoint is, "host:port", once it is started; None without one."""
        self._on_stopped = on_stopped
        self._process: asyncio.subprocess.Process | None = None
        self._config: BinaryIO | None = None
        """The configuration file of the process, in memory; it reads that again at SIGHUP."""
        self._watching: asyncio.Task[None] | None = None
        self._is_stopping = False
        self._has_to_reload = False
        self._endpoint = ""
        self._loop = asyncio.get_running_loop()
        self.failed: asyncio.Future[SbpError] = self._loop.create_future()
        _all_processes.add(self)

    @property
    def endpoint(self) -> str:
        """Where clients reach this server, "host:port", once it is started."""
        return self._endpoint

    async def start(self) -> list[str]:
        """Start the process and wait until it serves; return what it found in its log, in lines.

        Raises ConfigurationError or SbpError when it ends before that.
        """
        data_dir = self._settings.data_dir
        await _wait_until_unlocked(data_dir)
        try:
            self._config = os.fdopen(os.memfd_create("range-server.toml"), "wb")
            self._write_config()
            self._process = process = await self._spawn(self._config.fileno())
        except OSError as error:
            raise SbpError(
                f"the range server of {data_dir} cannot be started: {error.strerror}; see whether"
                " more processes may run"
            ) from error
        if self._is_stopping:
            _close_stdin(process)
        try:
            lines = await self._read_announcement(process)
        except asyncio.CancelledError:
            await self.stop()
            raise
        self._watching = asyncio.create_task(self._watch(process))
        self._endpoint, *found = lines
        if self._has_to_reload:
            self._signal_reload(process)
        return found

    async def stop(self) -> None:
        """Let the server finish what it does and end. Raises SbpError if it ends with an error."""
        self._is_stopping = True
        process = self._process
        if process is None:
            self._close_config()
            return
        _close_stdin(process)  # no signal: a second one, after Ctrl-C, would end it at once
        try:
            async with asyncio.timeout(STOP_SECONDS):
                exit_code = await process.wait()
        except TimeoutError:
            process.kill()
            exit_code = await process.wait()
        self._close_config()
        if self._watching is not None:
            await self._watching
            if exit_code != 0 and not self.failed.done():
                raise self._error(exit_code)

    def hang_up(self, log_level: str, log_format: str) -> None:
        """Let a process reload, and log in this way from now on. Any thread may call this.

        A process that still starts reloads once it serves: SIGHUP might end it before.
        """
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._hang_up, log_level, log_format)

    def _hang_up(self, log_level: str, log_format: str) -> None:
        self._log_options |= {"log_level": log_level, "log_format": log_format}
        if self._process is None or self._is_stopping:
            return
        self._write_config()
        self._has_to_reload = not self._endpoint
        if not self._has_to_reload:
            self._signal_reload(self._process)

    @staticmethod
    def _signal_reload(process: asyncio.subprocess.Process) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has ended
            process.send_signal(signal.SIGHUP)

    def _write_config(self) -> None:
        assert self._config is not None
        settings = _toml(self._settings, self._log_options)
        self._config.seek(0)
        self._config.write(settings.encode())
        self._config.truncate()
        self._config.flush()

    def _close_config(self) -> None:
        if self._config is not None:
            self._config.close()

    async def _spawn(self, config: int) -> asyncio.subprocess.Process:
        words = ["range-server", "--until-stdin-closes", "--config", f"/proc/self/fd/{config}"]
        for name in ("log_file", "audit_file"):
            path = self._log_options.get(name)
            words += [] if path is None else [f"--{name.replace('_', '-')}", str(path)]
        words += ["--admin-port", str(self._admin_port)]
        for each in fields(self._settings):
            path = getattr(self._settings, each.name)
            words += [setting_of(each).option, str(path)] if isinstance(path, Path) else []
        return await asyncio.create_subprocess_exec(
            *(*COMMAND, *words),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=_LINE_BYTES_MAX,
            pass_fds=(config,),
        )

    async def _read_announcement(self, process: asyncio.subprocess.Process) -> list[str]:
        """Return what it prints until it serves, without the word that each line begins with."""
        assert process.stdout is not None
        lines: list[str] = []
        while line := (await process.stdout.readline()).decode(errors="replace"):
            if line.startswith("serving "):
                return lines
            if line.startswith(_ADMIN_WORD):
                self.admin_endpoint = line.removeprefix(_ADMIN_WORD).strip()
            else:
                lines.append(line.removeprefix("range server").strip())
        raise self._error(await process.wait())

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        exit_code = await process.wait()
        if self._is_stopping:
            return
        if exit_code == 0:
            self._on_stopped()
        else:
            self.failed.set_result(self._error(exit_code))

    def _error(self, exit_code: int) -> SbpError:
        assert self._process is not None
        how = f"exit code {exit_code}" if exit_code >= 0 else signal.Signals(-exit_code).name
        kind = ConfigurationError if exit_code == 2 else SbpError
        return kind(
            f"the range server of {self._settings.data_dir} (process {self._process.pid}) ended"
            f" with {how}; the lines above say why, if it did"
        )


_all_processes: Final[WeakSet[RangeServerProcess]] = WeakSet()


def hang_up_all(log_level: str, log_format: str) -> None:
    """Let all range servers that are children of this process reload; see `hang_up`."""
    for each in list(_all_processes):
        each.hang_up(log_level, log_format)


def tls_options(tls: ServerTls | None) -> Iterator[str]:
    """Yield the options of a server that speaks TLS."""
    if tls is None:
        return
    for option in ("cert", "key", "ca", "client_ca"):
        path = getattr(tls, f"{option}_file")
        if path is not None:
            yield from (f"--tls-{option.replace('_', '-')}", str(path))
    if tls.is_client_optional:
        yield from ("--tls-client-certificates", "optional")


def _close_stdin(process: asyncio.subprocess.Process) -> None:
    assert process.stdin is not None
    process.stdin.close()


def _toml(settings: RangeServerSettings, log_options: Mapping[str, str | Path | None]) -> str:
    """Return the settings as a configuration file has them.

    Paths are options, as they may have bytes that are no UTF-8.
    """
    sections: dict[str, list[str]] = {
        "range_server": [f"log_level = {json.dumps(log_options['log_level'])}"],
        "log": [f"format = {json.dumps(log_options['log_format'])}"],
        **{name: [] for name in ("tls", "auth")},
    }
    for each in fields(settings):
        value = getattr(settings, each.name)
        if value is not None and not isinstance(value, Path):
            declared = setting_of(each)
            section = sections[declared.section or "range_server"]
            section.append(f"{declared.key or each.name} = {json.dumps(value)}")
    lines = [line for name, each in sections.items() for line in (f"[{name}]", *each)]
    return "\n".join([*lines, ""])


async def _wait_until_unlocked(data_dir: Path) -> None:
    """Wait while a process has the folder whose parent was killed; it ends soon.

    One that does not end is reported by the refusal of the next process.
    """
    with contextlib.suppress(OSError):
        async with asyncio.timeout(STOP_SECONDS):
            while True:
                try:
                    OsDisk().lock_directory(data_dir).release()
                    break
                except BlockingIOError:
                    await asyncio.sleep(POLL_SECONDS)


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a child that leads a group of processes, and its group, if it still runs."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)


def end_process(process: subprocess.Popen[bytes], owner_pid: int) -> None:
    """Kill a child that still runs and reap it; a fork of its parent leaves it alone."""
    if os.getpid() != owner_pid:
        return
    kill_group(process)
    process.wait()
    if process.stdin is not None:
        process.stdin.close()


@contextmanager
def reserved_ports(count: int) -> Iterator[int]:
    """Return the first of `count` consecutive ports that are neither bound nor reserved here.

    They are free while the cluster is down, and other clusters of this machine must not take them
    then. Names of abstract sockets reserve them, which end with their process, however that ends.
    """
    for _ in range(100):
        first = secrets.choice(CLUSTER_PORTS[:-count])
        with ExitStack() as reservations:
            try:
                with ExitStack() as probes:
                    for port in range(first, first + count):
                        name = reservations.enter_context(socket.socket(socket.AF_UNIX))
                        name.bind(f"\0sbp-local-cluster-{port}")
                        probe = probes.enter_context(socket.socket())
                        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                        probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            yield first
            return
    raise SbpError(
        f"no {count} consecutive ports in {CLUSTER_PORTS.start}..{CLUSTER_PORTS.stop - 1} are free"
    )
