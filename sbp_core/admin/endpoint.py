"""The admin endpoint as a whole: a thread, its loop, and what it listens on."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Final

from uvicorn import Config
from uvicorn.server import ServerState

from sbp_core.admin.connections import (
    ARRIVAL_SECONDS,
    CONNECTIONS_MAX,
    REQUEST_BYTES_MAX,
    Connection,
)
from sbp_core.admin.pacing import paced_loop
from sbp_core.admin.pages import Pages
from sbp_core.errors import ConfigurationError
from sbp_core.server.accepting import Acceptor, is_spare
from sbp_core.server.runtime import SystemClock
from sbp_core.server.served import Served
from sbp_core.server.settings import Exposure, ListenerSettings, join_address

_LOG: Final = logging.getLogger(__name__)


class AdminEndpoint:
    """Serves HTTP about `servers` from `start` to `stop`.

    `settings` has the host, TLS and identities; `config` returns what `/config` shows.
    """

    def __init__(
        self,
        servers: Served,
        settings: ListenerSettings,
        port: int,
        config: Callable[[], Mapping[str, object]],
    ) -> None:
        self._settings = settings
        self._port = port
        self._tls = settings.tls_contexts()
        self._gate = settings.gate()
        loop = asyncio.get_running_loop()
        host = settings.host if settings.exposure is Exposure.NOBODY else None
        pages = Pages(servers, loop, self._gate, config, SystemClock().wall_ms, host=host)
        self._http = Config(
            pages.app(),
            log_config=None,
            log_level="error",  # peers that send no HTTP are no events of the server
            access_log=False,
            lifespan="off",
            ws="none",
            http="h11",
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=int(ARRIVAL_SECONDS),
            h11_max_incomplete_event_size=REQUEST_BYTES_MAX,
        )
        self._thread = threading.Thread(target=self._run, name="sbp-admin", daemon=True)
        self._bound: Future[int] = Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event
        self._state = ServerState()
        self._connecting: dict[asyncio.Task[None], float] = {}
        """The connections whose handshake is not over, and since when."""

    async def start(self) -> str:
        """Listen; return the endpoint, "host:port".

        Raises ConfigurationError when the address cannot be listened on, or must not be.
        """
        self._http.load()
        self._thread.start()
        port = await asyncio.wrap_future(self._bound)
        settings = self._settings
        host = settings.host if settings.advertise_host is None else settings.advertise_host
        return join_address(host, port)

    async def stop(self) -> None:
        """Close the port and all connections."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._stopping.set)
        if self._thread.ident is not None:  # it was started
            await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=paced_loop) as runner:
                runner.run(self._serve())
        except Exception as error:  # noqa: BLE001 - it is raised by `start`, or logged
            if self._bound.done():
                _LOG.exception("the admin endpoint has ended")
            else:
                self._bound.set_exception(error)

    async def _serve(self) -> None:
        self._stopping = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        await self._gate.fetch_keys()
        acceptor = Acceptor(self._on_accepted)
        host, port = self._settings.host, self._port
        try:
            bound = await acceptor.start(host, port, self._settings.exposure)
        except OSError as error:
            code = error.errno or 0
            reason = os.strerror(code) if code > 0 else error.strerror
            raise ConfigurationError(
                f"the admin endpoint cannot listen on {host}:{port}: {reason}; choose another"
                " admin_port (0 picks a free one)"
            ) from error
        self._bound.set_result(bound)
        await self._stopping.wait()
        acceptor.close()
        for connection in self._connections:
            connection.end()
        for task in list(self._connecting):
            task.cancel()

    @property
    def _connections(self) -> list[Connection]:
        """The connections that are open."""
        return [each for each in self._state.connections if isinstance(each, Connection)]

    def _on_accepted(self, accepted: socket.socket, address: str) -> None:
        if is_spare(accepted) or not self._has_room():
            _LOG.debug("admin connection refused address=%s: too many are open", address)
            accepted.close()
            return
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._connect(accepted))
        self._connecting[task] = loop.time()

        def on_done(task: asyncio.Task[None]) -> None:
            self._connecting.pop(task, None)
            if task.cancelled():
                accepted.close()

        task.add_done_callback(on_done)

    def _has_room(self) -> bool:
        """Whether there is room for a connection; the one that is idle for longest makes it."""
        connections = self._connections
        if len(connections) + len(self._connecting) < CONNECTIONS_MAX:
            return True
        idle = min((each for each in connections if each.is_idle), key=_idle_since, default=None)
        task = next(iter(self._connecting), None)
        if task is not None and (idle is None or self._connecting[task] < idle.idle_since):
            del self._connecting[task]
            task.cancel()
            return True
        if idle is not None:
            self._state.connections.discard(idle)
            idle.end()
        return idle is not None

    async def _connect(self, accepted: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        context = None if self._tls is None else self._tls.current()
        timeout = None if context is None else ARRIVAL_SECONDS
        try:
            await loop.connect_accepted_socket(
                lambda: Connection(self._http, self._state),
                accepted,
                ssl=context,
                ssl_handshake_timeout=timeout,
            )
        except (OSError, TimeoutError) as error:  # also what is no TLS
            _LOG.debug("admin connection lost at once: %s", error)
            accepted.close()


def _idle_since(connection: Connection) -> float:
    return connection.idle_since
