"""Commands that serve clients of their own, as clients of the cluster, until a signal."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from sbp_core import __version__, tls, tls_expiry
from sbp_core.cli.connect import connecting
from sbp_core.cli.options import ClientOptions, Declare, declaring, transfer_options
from sbp_core.cli.server_options import settings_options
from sbp_core.cli.serving import ReadyFile, announce, logged_process, settle_garbage, watch_signals
from sbp_core.settings.configuration import ProcessSettings, given_values, settings_of
from sbp_core.settings.web_settings import WebSettings

if TYPE_CHECKING:
    from sbp_core.cli.logs import ProcessLog
    from sbp_core.cli.service_manager import ServiceManager
    from sbp_core.client import AsyncClient, Connecting
    from sbp_core.settings.listening import Exposure
    from sbp_core.web.callers import Callers

_LOG: Final = logging.getLogger(__name__)
_GRACE_SECONDS: Final = 10.0
"""How long requests may take that are under way at a stop."""


def gateway_options(settings: type[WebSettings]) -> Declare:
    """Return a decorator that declares the options of a command that serves clients of its own.

    The command gets ClientOptions, and the other options by name.
    """
    options = declaring(settings_options(settings, ProcessSettings))
    return lambda run: options(transfer_options(run))


W = TypeVar("W", bound=WebSettings)


class Listener(Protocol):
    """Accepts connections of clients."""

    async def start(self, host: str, port: int, exposure: Exposure) -> int:
        """Listen; return the port. Raises ConfigurationError if that cannot be."""

    async def stop(self, grace_seconds: float) -> None:
        """Close the port and all connections; requests may take a while to end."""


@dataclass(frozen=True, slots=True)
class GatewayService(Generic[W]):
    """A command that serves clients of its own, as a client of the cluster, until a signal.

    `name` is the word of the command, and the key in the ready file. `settings` declares the
    options of the command, `schemes` what an address begins with, without and with TLS. `make`
    returns the listener, whose endless answers end when the event is set. With `has_sessions`,
    browsers may log in. `make_client` is for `Callers`.
    """

    name: str
    settings: type[W]
    make: Callable[[W, Callers, asyncio.Event], Listener]
    schemes: tuple[str, str] = ("http://", "https://")
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
        from sbp_core.web.browsers import Sessions
        from sbp_core.web.callers import Callers

        loop = asyncio.get_running_loop()
        stopping = loop.create_future()
        watch_signals(stopping)
        ready.remove()
        sessions = Sessions() if self.has_sessions else None
        callers = Callers(settings, sessions, make=self.make_client)
        is_stopping = asyncio.Event()
        listener = self.make(settings, callers, is_stopping)
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
            scheme = self.schemes[settings.tls is not None]
            settle_garbage()
            announce([f"{self.name:<17} {scheme}{address}", "serving; Ctrl-C or SIGTERM stops"])
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
