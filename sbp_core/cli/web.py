"""`sbp http` and `sbp console`: their options, and serving HTTP until a signal."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import click

from sbp_core import __version__, tls, tls_expiry
from sbp_core.cli.commands import Command
from sbp_core.cli.connect import connecting
from sbp_core.cli.lake import catalog_options
from sbp_core.cli.options import ClientOptions, Declare, declaring, transfer_options
from sbp_core.cli.server_options import settings_options
from sbp_core.cli.serving import ReadyFile, announce, logged_process, watch_signals
from sbp_core.lake.catalog import open_catalog
from sbp_core.settings.configuration import ProcessSettings, given_values, settings_of
from sbp_core.settings.web_settings import ConsoleSettings, HttpSettings, WebSettings

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from starlette.types import ASGIApp

    from sbp_core.cli.logs import ProcessLog
    from sbp_core.cli.service_manager import ServiceManager
    from sbp_core.client import AsyncClient, Connecting
    from sbp_core.web.callers import Callers

_LOG: Final = logging.getLogger(__name__)
_GRACE_SECONDS: Final = 10.0
"""How long requests may take that are under way at a stop."""


def _web_options(settings: type[WebSettings]) -> Declare:
    """Return a decorator that declares the options of a command that serves HTTP.

    The command gets ClientOptions, and the other options by name.
    """
    options = declaring(settings_options(settings, ProcessSettings))
    return lambda run: options(transfer_options(run))


W = TypeVar("W", bound=WebSettings)


@dataclass(frozen=True, slots=True)
class WebService(Generic[W]):
    """A command that serves HTTP until a signal.

    `name` is the word of the command, and the key in the ready file. `settings` declares the
    options of the command. `make` returns the application, whose endless answers end when the event
    is set. With `has_sessions`, browsers may log in. `make_client` is for `Callers`.
    """

    name: str
    settings: type[W]
    make: Callable[[W, Callers, asyncio.Event], ASGIApp]
    has_sessions: bool = False
    make_client: Callable[[str, Connecting], AsyncClient] | None = None

    def run(self, client: ClientOptions, options: Mapping[str, Any]) -> int:
        """Serve until a signal; return the exit code.

        Raises ConfigurationError for what the options have wrong.
        """
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until files can be read again
        from sbp_core.server import runtime

        given = given_values(settings_of(self.settings), options)
        how = connecting(client)
        settings = self.settings(endpoint=client.endpoint, connecting=how, **given)
        process = ProcessSettings(**given_values(settings_of(ProcessSettings), options))
        ready = ReadyFile(process.ready_file)
        server = f"{self.name} {settings.host}:{settings.port}"
        with logged_process(process, server) as (log, manager):
            runtime.run(self._serve(settings, ready, log, manager))
        return 0

    async def _serve(
        self, settings: W, ready: ReadyFile, log: ProcessLog, manager: ServiceManager
    ) -> None:
        from sbp_core.settings.listening import join_address
        from sbp_core.web.browsers import Sessions, of_this_host
        from sbp_core.web.callers import Callers
        from sbp_core.web.http_listener import CALLER_LIMITS, HttpListener

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
            *(of_this_host(app, host), CALLER_LIMITS, settings.tls_contexts()),
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


@click.command(cls=Command, example="sbp http --port 12381")
@_web_options(HttpSettings)
def http(client: ClientOptions, **given: Any) -> int:
    """Serve records over HTTP, so that programs in any language append and read them.

    The paths are below /v1/streams, described by /v1/openapi.json. Each request is executed with
    the identity of its token. SIGHUP reads the files of TLS again, and opens the file of the log
    again.
    """
    return _HTTP.run(client, given)


def _make_records(settings: HttpSettings, callers: Callers, stopping: asyncio.Event) -> ASGIApp:
    from sbp_core.web.records.api import records_app
    from sbp_core.web.records.record_answers import Tails
    from sbp_core.web.records.requests import Bodies

    return records_app(callers, Bodies(settings.body_bytes_max), Tails(stopping))


def _make_console(
    catalog: Catalog | None, settings: WebSettings, callers: Callers, stopping: asyncio.Event
) -> ASGIApp:
    from sbp_core.web.console.app import make_app
    from sbp_core.web.console.histories import Sampler
    from sbp_core.web.console.site import Site
    from sbp_core.web.console.tables import Tables

    sampler = Sampler(stopping, hold=callers.holding)
    own = callers.maybe_own()
    if own is not None:  # so that charts begin before somebody looks
        sampler.look(own)
    return make_app(Site(callers, sampler, settings.endpoint, Tables(catalog)))


def _make_client(endpoint: str, connecting: Connecting) -> AsyncClient:
    from sbp_core.web.console.site import make_client

    return make_client(endpoint, connecting)


_HTTP: Final = WebService("http", HttpSettings, _make_records)


@click.command(cls=Command, example="sbp console --port 12380")
@_web_options(ConsoleSettings)
@catalog_options
def console(
    client: ClientOptions, *, catalog: str | None, warehouse: str | None, **given: Any
) -> int:
    """Serve pages for a browser, about the cluster.

    The pages show rates, lag, streams and their records, groups, transactions, servers. The console
    is a client of the cluster, which decides what each user may see and do: by the token that the
    user signs in with, or else by the token or certificate of this command, on an address that only
    this machine reaches.
    """
    tables = open_catalog(catalog, warehouse) if catalog or warehouse else None
    make = partial(_make_console, tables)
    service = WebService(
        "console", ConsoleSettings, make, has_sessions=True, make_client=_make_client
    )
    return service.run(client, given)
