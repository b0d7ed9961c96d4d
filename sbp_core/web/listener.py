"""A listener for HTTP: what it listens on, and which connections it keeps."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from typing import TYPE_CHECKING, Final

from uvicorn import Config
from uvicorn.server import ServerState

from sbp_core.errors import ConfigurationError
from sbp_core.server.accepting import Acceptor, is_spare
from sbp_core.settings.listening import Exposure
from sbp_core.tls import Contexts
from sbp_core.web.connections import Connection, HttpLimits
from sbp_core.web.problems import Problem

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

_LOG: Final = logging.getLogger(__name__)


class HttpListener:
    """Answers requests by `app`, on the loop that `start` is called on.

    `name` and `port_name` are for messages: of what listens, and of the option of its port.
    """

    def __init__(
        self,
        app: ASGIApp,
        limits: HttpLimits,
        tls: Contexts | None,
        *,
        name: str,
        port_name: str,
    ) -> None:
        self._limits = limits
        self._tls = tls
        self._name = name
        self._port_name = port_name
        self._http = Config(
            _of_one_length(app),
            log_config=None,
            log_level="error",  # peers that send no HTTP are no events of the server
            access_log=False,
            lifespan="off",
            ws="none",
            http="h11",
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=int(limits.arrival_seconds),
            h11_max_incomplete_event_size=limits.head_bytes_max,
        )
        self._http.load()
        self._state = ServerState()
        self._acceptor: Acceptor | None = None
        self._connecting: dict[asyncio.Task[None], float] = {}
        """The connections whose handshake is not over, and since when."""

    async def start(self, host: str, port: int, exposure: Exposure) -> int:
        """Listen; return the port.

        Raises ConfigurationError when the address cannot be listened on, or must not be.
        """
        acceptor = Acceptor(self._on_accepted)
        try:
            bound = await acceptor.start(host, port, exposure)
        except OSError as error:
            code = error.errno or 0
            reason = os.strerror(code) if code > 0 else error.strerror
            raise ConfigurationError(
                f"{self._name} cannot listen on {host}:{port}: {reason}; choose another"
                f" {self._port_name} (0 picks a free one)"
            ) from error
        self._acceptor = acceptor
        return bound

    async def stop(self, grace_seconds: float = 0.0) -> None:
        """Close the port, and all connections; those with a request when that is answered.

        A request that takes longer than `grace_seconds` is cut off.
        """
        if self._acceptor is not None:
            self._acceptor.close()
        for task in list(self._connecting):
            task.cancel()
        for connection in self._connections:
            if connection.is_idle:
                connection.end()
            else:
                connection.shutdown()  # it closes behind the answer
        answering = set(self._state.tasks)
        if answering and grace_seconds:
            await asyncio.wait(answering, timeout=grace_seconds)
        for connection in self._connections:
            connection.end()

    @property
    def _connections(self) -> list[Connection]:
        """The connections that are open."""
        return [each for each in self._state.connections if isinstance(each, Connection)]

    def _on_accepted(self, accepted: socket.socket, address: str) -> None:
        if is_spare(accepted) or not self._has_room():
            _LOG.debug("HTTP connection refused address=%s: too many are open", address)
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
        if len(connections) + len(self._connecting) < self._limits.connections_max:
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
        timeout = None if context is None else self._limits.arrival_seconds
        try:
            await loop.connect_accepted_socket(
                lambda: Connection(self._http, self._state, self._limits),
                accepted,
                ssl=context,
                ssl_handshake_timeout=timeout,
            )
        except (OSError, TimeoutError) as error:  # also what is no TLS
            _LOG.debug("HTTP connection lost at once: %s", error)
            accepted.close()


def _of_one_length(app: ASGIApp) -> ASGIApp:
    """Return an application that refuses requests with two lengths, and closes their connections.

    A proxy may believe Content-Length where h11 believes Transfer-Encoding: then the rest of the
    body is a request of somebody else (RFC 9112, 6.3).
    """

    async def checked(scope: Scope, receive: Receive, send: Send) -> None:
        names = {name for name, _ in scope["headers"]}
        if {b"content-length", b"transfer-encoding"} <= names:
            detail = "the request has Content-Length and Transfer-Encoding: send one of them"
            problem = Problem(400, "bad-request", detail, headers={"Connection": "close"})
            await problem.response()(scope, receive, send)
        else:
            await app(scope, receive, send)

    return checked


def _idle_since(connection: Connection) -> float:
    return connection.idle_since
