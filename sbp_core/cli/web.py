"""The commands that serve HTTP: their options, and running them until a signal."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from sbp_core import __version__, tls, tls_expiry
from sbp_core.cli.client_options import ClientOptions, transfer_options
from sbp_core.cli.connect import connecting
from sbp_core.cli.server_options import LOG_FILE, Declare, Run, declared, path_option
from sbp_core.cli.serving import ReadyFile, announce, watch_signals
from sbp_core.cli.values import INTEGER
from sbp_core.errors import ConfigurationError, SbpError

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from sbp_core.cli.logs import ProcessLog
    from sbp_core.cli.service_manager import ServiceManager
    from sbp_core.client import AsyncClient, Connecting
    from sbp_core.web.callers import Callers
    from sbp_core.web.web_settings import WebSettings

_LOG: Final = logging.getLogger(__name__)
_GRACE_SECONDS: Final = 10.0
"""How long requests may take that are under way at a stop."""
HTTP_PORT: Final = 12381
CONSOLE_PORT: Final = 12380


def web_options(default_port: int) -> Declare:
    """Return what declares the options of every command that serves HTTP.

    The command gets them as two arguments: ClientOptions, and the others by name.
    """
    own = declared(
        [
            click.option(
                "--host",
                default="127.0.0.1",
                metavar="HOST",
                help="Interface to listen on. [default: 127.0.0.1]",
            ),
            click.option(
                "--port",
                type=INTEGER,
                default=default_port,
                metavar="PORT",
                help=f"Port to listen on; 0 picks a free one. [default: {default_port}]",
            ),
            path_option(
                "--https-cert",
                "Speak HTTPS only, with the certificate in this file, and its chain.",
            ),
            path_option("--https-key", "Key of that certificate."),
            click.option(
                "--insecure",
                is_flag=True,
                help="Listen where other machines connect to, though requests need no token.",
            ),
            path_option(
                "--ready-file", "JSON file with the address; it exists while the command serves."
            ),
            click.option(
                "--log-level",
                type=click.Choice(("debug", "info", "warning", "error")),
                default="warning",
                help="Lowest level that is logged. [default: warning]",
            ),
            click.option(
                "--log-format",
                type=click.Choice(("text", "json")),
                default="text",
                help="Lines of text, or an object per line. [default: text]",
            ),
            LOG_FILE,
        ]
    )

    def declare(run: Run) -> Run:
        return transfer_options(own(run))

    return declare


@dataclass(frozen=True, slots=True)
class WebService:
    """A command that serves HTTP until a signal.

    `name` is the word of the command, and the key in the ready file. `make` returns the
    application; its answers that have no end of their own end when the event is set. With
    `has_sessions`, browsers may log in. `make_client` is that of `Callers`.
    """

    name: str
    make: Callable[[WebSettings, Callers, asyncio.Event], ASGIApp]
    has_sessions: bool = False
    make_client: Callable[[str, Connecting], AsyncClient] | None = None

    def run(self, client: ClientOptions, options: Mapping[str, Any]) -> int:
        """Serve until a signal; return the exit code.

        Raises ConfigurationError for what the options have wrong.
        """
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until files can be read again
        from sbp_core.cli.logs import ProcessLog
        from sbp_core.cli.service_manager import ServiceManager
        from sbp_core.server import runtime
        from sbp_core.server.accepting import raise_descriptor_limit

        settings = _settings(client, options)
        ready = ReadyFile(None if options["ready_file"] is None else Path(options["ready_file"]))
        log_file = None if options["log_file"] is None else Path(options["log_file"])
        server = f"{self.name} {settings.host}:{settings.port}"
        log = ProcessLog(options["log_level"], options["log_format"], log_file, server=server)
        with contextlib.closing(log):
            manager = ServiceManager(os.environ)
            raise_descriptor_limit()
            try:
                runtime.run(self._serve(settings, ready, log, manager))
            except SbpError as error:
                if log.has_file:  # standard error gets it in any case
                    _LOG.critical("server ended: %s", error)
                raise
        return 0

    async def _serve(
        self, settings: WebSettings, ready: ReadyFile, log: ProcessLog, manager: ServiceManager
    ) -> None:
        from sbp_core.server.settings import join_address
        from sbp_core.web.browsers import Sessions, of_this_host
        from sbp_core.web.callers import Callers
        from sbp_core.web.http_listener import HttpListener
        from sbp_core.web.web_settings import LIMITS

        loop = asyncio.get_running_loop()
        stopping = loop.create_future()
        watch_signals(stopping)
        ready.remove()
        sessions = Sessions() if self.has_sessions else None
        callers = Callers(settings, sessions, make=self.make_client)
        is_stopping = asyncio.Event()
        app = callers.counting(self.make(settings, callers, is_stopping))
        host = settings.host if settings.is_local else None
        listener = HttpListener(
            *(of_this_host(app, host), LIMITS, settings.tls_contexts()),
            name=f"sbp {self.name}",
            port_name="--port",
        )
        async with contextlib.AsyncExitStack() as started:
            started.push_async_callback(callers.close)
            started.push_async_callback(listener.stop, _GRACE_SECONDS)
            started.callback(is_stopping.set)
            port = await listener.start(settings.host, settings.port, settings.exposure)
            loop.add_signal_handler(
                signal.SIGHUP, lambda: loop.run_in_executor(None, _reload, log, manager)
            )
            beating = asyncio.create_task(manager.beat())
            started.callback(beating.cancel)
            warning = asyncio.create_task(_warn_of_expiry())
            started.callback(warning.cancel)
            address = join_address(settings.host, port)
            ready.write({self.name: address})
            started.callback(ready.remove)
            started.callback(manager.stops)
            manager.serves(f"serving {address}")
            _LOG.info("server serves version=%s address=%s", __version__, address)
            scheme = "http" if settings.tls is None else "https"
            announce([f"{self.name:<17} {scheme}://{address}", "serving; Ctrl-C or SIGTERM stops"])
            await stopping
            _LOG.info("server stops address=%s", address)


def _settings(client: ClientOptions, options: Mapping[str, Any]) -> WebSettings:
    from sbp_core.web.web_settings import WebSettings

    files = (options["https_cert"], options["https_key"])
    if any(files) and not all(files):
        raise ConfigurationError("give --https-cert and --https-key, both or neither")
    if not 0 <= options["port"] <= 65_535:
        raise ConfigurationError(f"--port {options['port']} is not within 0..65535")
    return WebSettings(
        endpoint=client.endpoint,
        connecting=connecting(client),
        host=options["host"],
        port=options["port"],
        tls=tls.PublicTls(*files) if any(files) else None,
        is_insecure=options["insecure"],
    )


async def _warn_of_expiry() -> None:
    while True:
        await asyncio.to_thread(tls_expiry.warn)
        await asyncio.sleep(tls_expiry.INTERVAL_SECONDS)


def _reload(log: ProcessLog, manager: ServiceManager) -> None:
    """Read the files of TLS again, and open that of the log again."""
    manager.reloads()
    done = ["files of TLS read again"] if tls.reload_all() else []
    if log.has_file:
        log.reopen()
        done.append("log file opened again")
    log.report()
    _LOG.info("reloaded at SIGHUP: %s", ", ".join(done) or "nothing to read again")
    manager.reloaded()
