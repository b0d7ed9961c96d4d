"""Running servers: signals, a ready file, the lock of the data directory, logs and an exit code."""

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
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sbp_core import __version__
from sbp_core.cli import output
from sbp_core.cli.output import OutputError, ReaderGoneError
from sbp_core.errors import ConfigurationError, SbpError
from sbp_core.regular_files import tighten
from sbp_core.settings.configuration import Configuration, ProcessSettings, ServeSettings

if TYPE_CHECKING:
    from sbp_core.cli.logs import ProcessLog
    from sbp_core.cli.reloading import Reloader
    from sbp_core.cli.service_manager import ServiceManager
    from sbp_core.server.line_file import LineFile
    from sbp_core.server.served import Served

_LOG: Final = logging.getLogger(__name__)
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_EXIT_INTERRUPTED: Final = 130
_STORED: Final = (
    *("metadata.*", "pd.lock", "identity.json*", "driver-commit.json*"),
    *("log", "log/*"),
)
"""Names in the data folder of a server."""
LOG_OPTIONS: Final = ("log_level", "log_format", "log_file", "audit_file")
"""Settings of a command that its children have, too; each is an option of theirs."""
_GARBAGE_OBJECTS: Final = 10_000
"""New objects after which the young generation is collected; Python's default is 700."""


@dataclass(frozen=True, slots=True)
class Service:
    """A command that runs servers until a signal.

    `make` gets the settings, and a function
    that stops all as a signal would. `describe` gets the servers and what their start returned; it
    returns the content of the ready file, and lines to print.
    """

    configuration: Configuration[Any]
    make: Callable[[ServeSettings[Any], Callable[[], None]], Served]
    describe: Callable[[Any, Any], tuple[dict[str, Any], list[str]]]

    def run(self, options: Mapping[str, Any]) -> int:
        """Serve until a signal; return the exit code.

        Raises ConfigurationError when settings, addresses or folders cannot be used, and other
        SbpErrors for what ends a server that was good before.
        """
        # Blocked before the imports start threads, which inherit that: a hang-up never ends a
        # server. The command `sbp` has done so already, as it began.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
        from sbp_core.server.allocator import use_one_arena

        use_one_arena()  # before the imports, too: the first thread decides how many there may be
        from sbp_core.cli.reloading import Reloader

        configuration = self.configuration
        settings = configuration.load(options)
        server = f"{configuration.command} {settings.servers.data_dir.absolute()}"
        with logged_process(settings, server) as (log, manager), contextlib.ExitStack() as stack:
            audit_file = _maybe_audit_file(settings.audit_file)
            if audit_file is not None:
                stack.callback(audit_file.close)
            reloader = Reloader(
                *(configuration, options, settings, log), audit_file=audit_file, manager=manager
            )
            stack.callback(reloader.stop)
            reloader.watch()
            self._run(settings, reloader, manager, options)
        return 0

    def _run(
        self,
        settings: ServeSettings[Any],
        reloader: Reloader,
        manager: ServiceManager,
        options: Mapping[str, Any],
    ) -> None:
        from sbp_core.server import quota_rules, runtime

        data_dir, configuration = settings.servers.data_dir, self.configuration
        with _owned(data_dir, configuration.command):
            ready = ReadyFile(settings.ready_file)
            ready.remove()
            _LOG.info(
                "server starts version=%s pid=%d data_dir=%s",
                *(__version__, os.getpid(), data_dir.absolute()),
            )

            def shown() -> Mapping[str, object]:
                return configuration.shown(reloader.current, quota_rules.current())

            serving = _serve(
                *(self, settings, ready, shown),
                manager=manager,
                until_stdin_closes=options["until_stdin_closes"],
            )
            runtime.run(serving)
            _LOG.info("server stopped pid=%d", os.getpid())


@contextlib.contextmanager
def logged_process(
    settings: ProcessSettings, server: str
) -> Iterator[tuple[ProcessLog, ServiceManager]]:
    """Let the body serve: its events are logged, and its service manager can be told its states.

    The log calls the process `server`. An error that ends the body is in the log file, too.
    """
    from sbp_core.cli.logs import ProcessLog
    from sbp_core.cli.service_manager import ServiceManager
    from sbp_core.server.accepting import raise_descriptor_limit

    log = ProcessLog(settings.log_level, settings.log_format, settings.log_file, server=server)
    with contextlib.closing(log):
        raise_descriptor_limit()
        try:
            yield log, ServiceManager(os.environ)
        except SbpError as error:
            if log.has_file:  # standard error gets it in any case
                _LOG.critical("server ended: %s", error)
            raise


def _maybe_audit_file(path: Path | None) -> LineFile | None:
    """Let the audit trail go to a file. Raises ConfigurationError if that cannot be opened."""
    if path is None:
        return None
    from sbp_core.cli.logs import open_lines
    from sbp_core.server.audit import EVENTS

    file = open_lines(path, "audit file")
    EVENTS.setLevel(logging.DEBUG)
    EVENTS.propagate = False
    EVENTS.addHandler(file)
    return file


class ReadyFile:
    """A file that is there, whole, exactly while the server serves. Without a path it is none."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def write(self, endpoints: Mapping[str, Any]) -> None:
        """Put the endpoints there in one step. Raises ConfigurationError when that cannot be."""
        if self._path is None:
            return
        # An unpredictable name: another user may have put a link to a file of this user there.
        fresh = self._path.with_name(f".{self._path.name}.{secrets.token_hex(8)}")
        try:
            with fresh.open("x", encoding="utf-8") as file:
                file.write(json.dumps(endpoints) + "\n")
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
def _owned(data_dir: Path, command: str) -> Iterator[None]:
    """Make and lock the folder, so that what is done before the servers start is safe too.

    Files in it that earlier releases, or a copy, left readable to other users are made private.
    """
    from sbp_core.log.disk import OsDisk

    disk = OsDisk()
    try:
        disk.make_directory(data_dir)
        lock = disk.lock_directory(data_dir)
    except BlockingIOError as error:
        raise ConfigurationError(
            f"data_dir {data_dir} is in use by another `sbp {command}`; stop that one, or choose"
            " another folder"
        ) from error
    except OSError as error:
        reason = "it is not a folder" if isinstance(error, FileExistsError) else error.strerror
        raise ConfigurationError(
            f"data_dir {data_dir} cannot be used: {reason}; choose a folder that this user"
            " can write"
        ) from error
    mode = stat.S_IMODE(data_dir.stat().st_mode)
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        _LOG.warning(
            "folder open to other users data_dir=%s mode=%04o: they can replace its files; run"
            " chmod 700 on it",
            data_dir,
            mode,
        )
    count = tighten(_stored_in(data_dir))
    if count:
        _LOG.warning(
            "files made private data_dir=%s count=%d: other users could open them; they have modes"
            " 0700 and 0600 now",
            data_dir,
            count,
        )
    try:
        yield
    finally:
        lock.release()


def _stored_in(data_dir: Path) -> Iterator[Path]:
    """Yield what servers store below a folder.

    Not the folder itself, nor all that is in it: it may be one that has other uses, too.
    """
    parts = [data_dir / "placement-driver", *data_dir.glob("range-server-*")]
    yield from parts
    for folder in (data_dir, *parts):
        for pattern in _STORED:
            yield from folder.glob(pattern)


async def _serve(
    service: Service,
    settings: ServeSettings[Any],
    ready: ReadyFile,
    shown: Callable[[], Mapping[str, object]],
    *,
    manager: ServiceManager,
    until_stdin_closes: bool,
) -> None:
    """Run the servers until a signal, or the end of standard input."""
    stopping = asyncio.get_running_loop().create_future()
    watch_signals(stopping)
    if until_stdin_closes:
        _watch_stdin(stopping)
    beating = asyncio.create_task(manager.beat())
    servers = service.make(settings, partial(end, stopping))
    async with contextlib.AsyncExitStack() as started:
        started.callback(beating.cancel)
        admin = None
        if settings.admin_port >= 0:  # it answers before the servers have started
            from sbp_core.admin.endpoint import AdminEndpoint

            endpoint = AdminEndpoint(servers, settings.listening, settings.admin_port, shown)
            started.push_async_callback(endpoint.stop)
            admin = await endpoint.start()
        await _serve_until(
            *(stopping, service, servers, settings, ready),
            manager=manager,
            admin=admin,
        )


async def _serve_until(
    stopping: asyncio.Future[None],
    service: Service,
    servers: Served,
    settings: ServeSettings[Any],
    ready: ReadyFile,
    *,
    manager: ServiceManager,
    admin: str | None,
) -> None:
    """Run the servers; `admin` is where their admin endpoint is."""
    from sbp_core import tls_expiry

    starting: asyncio.Task[Any] = asyncio.create_task(servers.start())
    ends: set[asyncio.Future[Any]] = {stopping, servers.failed}
    async with stopped_at_end(servers):
        await asyncio.wait({starting, *ends}, return_when=asyncio.FIRST_COMPLETED)
        try:
            if starting.done():
                content, lines = service.describe(servers, starting.result())
                if admin is not None:
                    content["admin"] = admin
                    lines.append(f"admin             {admin}")
                tls_expiry.warn()
                settle_garbage()
                ready.write(content)
                addresses = ", ".join(_addresses(content))
                manager.serves(f"serving {addresses}")
                _LOG.info("server serves addresses=%s", addresses)
                announce([*lines, serving_line(settings.servers.data_dir)])
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            _LOG.info("server stops")
            manager.stops()
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            ready.remove()
        if servers.failed.done():
            raise servers.failed.result()


@contextlib.asynccontextmanager
async def stopped_at_end(servers: Served) -> AsyncIterator[None]:
    """Stop the servers behind the body. An error of the body is not hidden by one of the stop."""
    try:
        yield
    except BaseException:
        try:
            await servers.stop()
        except SbpError as error:
            _LOG.error("server not stopped in order: %s", error)
        raise
    await servers.stop()


def _addresses(content: Mapping[str, Any]) -> Iterator[str]:
    for value in content.values():
        yield from [value] if isinstance(value, str) else value


def settle_garbage() -> None:
    """Exempt what is loaded by now from collections, and have fewer: requests make few cycles.

    A full one would hold all answers up while it walks everything that is there to stay.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GARBAGE_OBJECTS)


def watch_signals(stopping: asyncio.Future[None]) -> None:
    """Let the first signal end `stopping`, and the second one the process."""
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        for each in _SIGNALS:
            loop.remove_signal_handler(each)
            signal.signal(each, lambda *_: os._exit(_EXIT_INTERRUPTED))
        end(stopping)

    for each in _SIGNALS:
        loop.add_signal_handler(each, on_signal)


def _watch_stdin(stopping: asyncio.Future[None]) -> None:
    """Let the end of standard input end `stopping`. Raises ConfigurationError without a pipe."""
    loop = asyncio.get_running_loop()

    def on_readable() -> None:
        if not os.read(0, 4096):
            loop.remove_reader(0)
            end(stopping)

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


def end(stopping: asyncio.Future[None]) -> None:
    """End a process that waits for this."""
    if not stopping.done():
        stopping.set_result(None)


def serving_line(data_dir: Path) -> str:
    """Return the last line that is printed when the servers serve."""
    return f"serving {data_dir.absolute()}; Ctrl-C or SIGTERM stops"


def announce(lines: list[str]) -> None:
    """Print where the servers are, if anything reads that."""
    with contextlib.suppress(OutputError, ReaderGoneError):  # the server needs no reader of this
        output.write_lines(lines)
