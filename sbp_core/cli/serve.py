"""`sbp serve`: a cluster with signals, a ready file and an exit code around it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import os
import secrets
import signal
import stat
import sys
import threading
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sbp_core import limits
from sbp_core.cli import output
from sbp_core.cli.output import OutputError, ReaderGoneError, escape, one_line
from sbp_core.cli.parsing import parse_integer, parse_path
from sbp_core.errors import ConfigurationError

if TYPE_CHECKING:
    from sbp_core.cli.config import ServeSettings
    from sbp_core.cluster import Endpoints
    from sbp_core.log.recovery.opening import RecoveryReport

_LOG: Final = logging.getLogger(__name__)
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_EXIT_INTERRUPTED: Final = 130
_GARBAGE_OBJECTS: Final = 10_000
"""New objects after which the young generation is collected; Python's default is 700."""


def add_serve(parser: ArgumentParser) -> None:
    """Declare `sbp serve`."""
    parser.description = (
        "Run a placement driver and range servers, durable in one folder, until SIGTERM or Ctrl-C;"
        " SIGHUP is logged and changes nothing. Options win over the configuration file, and that"
        " over the defaults."
    )
    add = parser.add_argument
    add("--data-dir", type=parse_path, metavar="DIR", help="folder of all data (default: sbp-data)")
    add("--host", help="address to listen on (default: 127.0.0.1)")
    add("--advertise-host", metavar="HOST", help="host that clients are told (default: --host)")
    add(
        "--dialect",
        metavar="NAME",
        help="specification or elasticstream-2023-04 (default: specification)",
    )
    add("--pd-port", type=parse_integer, metavar="PORT", help="0 picks a free one (default: 12378)")
    add(
        "--range-server-port",
        type=parse_integer,
        metavar="PORT",
        help="first of consecutive ports; 0 picks free ones (default: 10911)",
    )
    add(
        "--range-servers", type=parse_integer, metavar="N", help="range servers to run (default: 1)"
    )
    add(
        "--record-bytes-max",
        type=parse_integer,
        metavar="BYTES",
        help=f"largest record that is accepted, {limits.RECORD_BYTES_MAX} to"
        f" {limits.RECORD_BYTES_LARGEST} (default: {limits.RECORD_BYTES_MAX})",
    )
    add(
        "--ready-file",
        type=parse_path,
        metavar="PATH",
        help="JSON file with the endpoints; it exists while the server serves",
    )
    add("--log-level", metavar="LEVEL", help="debug, info, warning or error (default: warning)")
    add(
        "--config",
        type=parse_path,
        metavar="PATH",
        help="settings in TOML; conf/server.toml names all of them",
    )
    add(
        "--until-stdin-closes",
        action="store_true",
        help="also stop when standard input, a pipe, ends: for programs that start a server",
    )
    parser.set_defaults(run=serve)


def serve(options: Namespace) -> int:
    """Serve until a signal; return the exit code.

    Raises ConfigurationError when settings, addresses or folders cannot be used, and other
    SbpErrors for what ends a server that was good before.
    """
    # Blocked before the imports start threads, which inherit that: a hang-up never ends a server.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    from sbp_core.cli.config import load_settings
    from sbp_core.server import runtime
    from sbp_core.server.accepting import raise_descriptor_limit

    settings = load_settings(options)
    _start_log(settings.log_level)
    _watch_hangups()
    raise_descriptor_limit()
    with _owned(settings.cluster.data_dir):
        ready = ReadyFile(settings.ready_file)
        ready.remove()
        runtime.run(_serve(settings, ready, until_stdin_closes=options.until_stdin_closes))
    return 0


class _SafeLines(logging.Formatter):
    """Each event in one line, whatever the text of a peer in it; behind it the trace, if any."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - overrides
        return one_line(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802 - overrides
        return escape(super().formatException(ei), spared="\n")


def _start_log(level: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_SafeLines("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler])


def _watch_hangups() -> None:
    """Log each SIGHUP. It is blocked in all other threads, so it never ends the server."""

    def watch() -> None:
        while True:
            signal.sigwait({signal.SIGHUP})
            _LOG.warning(
                "SIGHUP ignored: settings are read at start only, restart the server to change them"
            )

    threading.Thread(target=watch, name="hang-ups", daemon=True).start()


class ReadyFile:
    """A file that is there, whole, exactly while the server serves. Without a path it is none."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def write(self, endpoints: Endpoints) -> None:
        """Put the endpoints there in one step. Raises ConfigurationError when that cannot be."""
        if self._path is None:
            return
        # An unpredictable name: another user may have put a link to a file of this user there.
        fresh = self._path.with_name(f".{self._path.name}.{secrets.token_hex(8)}")
        try:
            with fresh.open("x", encoding="utf-8") as file:
                file.write(json.dumps(asdict(endpoints)) + "\n")
            fresh.replace(self._path)
        except OSError as error:
            fresh.unlink(missing_ok=True)
            raise ConfigurationError(
                f"ready_file {self._path} cannot be written: {error.strerror}"
            ) from error

    def remove(self) -> None:
        """Remove the file, or a link of that name. Raises ConfigurationError if it is neither.

        A device or a FIFO is never meant, and the superuser could remove /dev/null.
        """
        if self._path is None:
            return
        try:
            mode = self._path.lstat().st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
                raise ConfigurationError(f"ready_file {self._path} is not a regular file")
            self._path.unlink(missing_ok=True)
        except FileNotFoundError:
            return
        except OSError as error:
            raise ConfigurationError(
                f"ready_file {self._path} cannot be replaced: {error.strerror}"
            ) from error


@contextlib.contextmanager
def _owned(data_dir: Path) -> Iterator[None]:
    """Make and lock the folder, so that what is done before the cluster starts is safe too."""
    from sbp_core.log.disk import OsDisk

    disk = OsDisk()
    try:
        disk.make_directory(data_dir)
        lock = disk.lock_directory(data_dir)
    except BlockingIOError as error:
        raise ConfigurationError(
            f"data_dir {data_dir} is in use by another `sbp serve`; stop that one, or choose"
            " another folder"
        ) from error
    except OSError as error:
        raise ConfigurationError(
            f"data_dir {data_dir} cannot be used: {error.strerror}; choose a folder that this user"
            " can write"
        ) from error
    mode = stat.S_IMODE(data_dir.stat().st_mode)
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        _LOG.warning(
            "other users can write to data_dir %s (mode %04o) and so replace its files;"
            " run chmod 700 on it",
            data_dir,
            mode,
        )
    try:
        yield
    finally:
        lock.release()


async def _serve(settings: ServeSettings, ready: ReadyFile, *, until_stdin_closes: bool) -> None:
    from sbp_core.cluster import Cluster

    stopping = asyncio.get_running_loop().create_future()
    _watch_signals(stopping)
    if until_stdin_closes:
        _watch_stdin(stopping)
    cluster = Cluster(settings.cluster)
    starting = asyncio.create_task(cluster.start())
    await asyncio.wait({starting, stopping, cluster.failed}, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        if cluster.failed.done():
            raise cluster.failed.result()
        return
    reports = starting.result()
    _settle_garbage()
    try:
        ready.write(cluster.endpoints)
        _announce(settings, cluster.endpoints, reports)
        await asyncio.wait({stopping, cluster.failed}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        try:
            ready.remove()
        finally:
            await cluster.stop()
    if cluster.failed.done():
        raise cluster.failed.result()


def _settle_garbage() -> None:
    """Exempt what is loaded by now from collections, and have fewer: requests make few cycles.

    A full one would hold all answers up while it walks everything that is there to stay.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GARBAGE_OBJECTS)


def _watch_signals(stopping: asyncio.Future[None]) -> None:
    """Let the first signal end `stopping`, and the second one the process."""
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        for each in _SIGNALS:
            loop.remove_signal_handler(each)
            signal.signal(each, lambda *_: os._exit(_EXIT_INTERRUPTED))
        _end(stopping)

    for each in _SIGNALS:
        loop.add_signal_handler(each, on_signal)


def _watch_stdin(stopping: asyncio.Future[None]) -> None:
    """Let the end of standard input end `stopping`. Raises ConfigurationError without a pipe."""
    loop = asyncio.get_running_loop()

    def on_readable() -> None:
        if not os.read(0, 4096):
            loop.remove_reader(0)
            _end(stopping)

    try:
        is_blocking = os.get_blocking(0)
        loop.add_reader(0, on_readable)
        os.set_blocking(
            0, is_blocking
        )  # uvloop changes it, also for other processes on the terminal
    except OSError as error:
        raise ConfigurationError(
            "--until-stdin-closes: standard input is not a pipe or terminal; pass a pipe"
        ) from error


def _end(stopping: asyncio.Future[None]) -> None:
    if not stopping.done():
        stopping.set_result(None)


def _announce(settings: ServeSettings, endpoints: Endpoints, reports: list[RecoveryReport]) -> None:
    lines = [f"placement driver  {endpoints.pd}"]
    for index, (endpoint, report) in enumerate(zip(endpoints.range_servers, reports, strict=True)):
        lines.append(f"range server {index}    {endpoint}")
        if report.torn_tail is not None:
            tail = report.torn_tail
            lines.append(
                f"range server {index}    cut {tail.cut_bytes} bytes that were never synced"
                f" off {tail.path}, at log position {tail.position}: {tail.reason}"
            )
        if report.lost_tail is not None:
            lost = report.lost_tail
            lines.append(
                f"range server {index}    {lost.path} lost its end, log positions"
                f" [{lost.position}, {lost.end}): restore the file, or see `sbp log check`"
            )
            lines += [f"range server {index}    lost: {records}" for records in lost.records]
        if report.damaged_snapshot is not None:
            snapshot = report.damaged_snapshot
            lines.append(
                f"range server {index}    {snapshot.path} is damaged at log position"
                f" {snapshot.position}: nothing is lost, its ranges are known from other entries"
            )
        lines += [
            f"range server {index}    {damaged.path} is damaged at log position"
            f" {damaged.position}: {damaged.records} cannot be served"
            for damaged in report.damaged_batches
        ]
    lines.append(f"serving {settings.cluster.data_dir.absolute()}; Ctrl-C or SIGTERM stops")
    with contextlib.suppress(OutputError, ReaderGoneError):  # the server needs no reader of this
        output.write_lines(lines)
