"""A listener for HTTP: its connections, how many there are, and how long a peer may keep one."""

from __future__ import annotations

import asyncio
import enum
import logging
import os
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from uvicorn import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from sbp_core.errors import ConfigurationError
from sbp_core.server.accepting import Acceptor, is_spare
from sbp_core.settings.listening import Exposure
from sbp_core.tls import Contexts
from sbp_core.web.problems import Problem

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send


CERTIFICATE: Final = "certificate"
"""Where the state of a request has the certificate that its peer has shown, in DER."""


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """How much the peers of one listener may use.

    `head_bytes_max` bounds the first line and the headers of a request. `arrival_seconds` is how
    long these may take to arrive, and how long a connection stays open without a request;
    `body_seconds` how long the body may take; `answer_seconds` how long the answer may take, until
    the system has all of it, None for no limit; `stall_seconds` how long the peer may accept none
    of it.
    """

    connections_max: int
    head_bytes_max: int
    arrival_seconds: float
    body_seconds: float
    answer_seconds: float | None
    stall_seconds: float


CALLER_LIMITS: Final = HttpLimits(
    connections_max=1024,
    head_bytes_max=32 * 1024,
    arrival_seconds=20.0,
    body_seconds=120.0,
    answer_seconds=None,  # tails have no end; the server of an answer has deadlines of its own
    stall_seconds=60.0,
)
"""The limits of `sbp http` and `sbp console`."""


class Phase(enum.Enum):
    """A step of a connection, by what it waits for."""

    REQUEST = "the head of a request"
    BODY = "the rest of its body"
    ANSWER = "the end of its answer"


class Connection(H11Protocol):
    """One connection, which is aborted when its peer is too slow."""

    def __init__(self, config: Config, server_state: ServerState, limits: HttpLimits) -> None:
        super().__init__(config=config, server_state=server_state, app_state={})
        self._limits = limits
        self._deadline: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None
        self.idle_since = self.loop.time()

    @property
    def phase(self) -> Phase:
        """The step that it is in."""
        if self.cycle is None or self.cycle.response_complete:
            return Phase.REQUEST
        return Phase.BODY if self.cycle.more_body else Phase.ANSWER

    @property
    def is_idle(self) -> bool:
        """Whether no request is being answered."""
        return self.phase is Phase.REQUEST

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Note the certificate of the peer, which the handshake has verified."""
        tls: Any = transport.get_extra_info("ssl_object")
        certificate = None if tls is None else tls.getpeercert(binary_form=True)
        self.app_state = {CERTIFICATE: certificate}
        super().connection_made(transport)
        self._allow(self._limits.arrival_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the deadlines."""
        self._allow(None)
        self._end_stall()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        """Begin to answer what has arrived."""
        before = self.phase
        super().handle_events()
        if self.phase is before or self.transport.is_closing():
            return
        if self.phase is Phase.BODY:
            self._allow(self._limits.body_seconds)
        elif self.phase is Phase.ANSWER:
            self._allow(self._limits.answer_seconds)

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self.idle_since = self.loop.time()
        self._allow(self._limits.arrival_seconds)
        super().on_response_complete()

    def pause_writing(self) -> None:
        """Give the peer a time to accept what it was sent."""
        super().pause_writing()
        self._end_stall()
        self._stall = self.loop.call_later(self._limits.stall_seconds, self.end)

    def resume_writing(self) -> None:
        """Note that the peer has accepted most of it."""
        self._end_stall()
        super().resume_writing()

    def end(self) -> None:
        """Close the connection at once."""
        if self.transport is not None:
            self.transport.abort()

    def _allow(self, seconds: float | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if seconds is None else self.loop.call_later(seconds, self.end)

    def _end_stall(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None


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
        """Close the port and all connections; a connection with a request after its answer.

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
        """Whether there is room for a connection; the connection idle for longest makes it."""
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
        except (OSError, TimeoutError) as error:  # also if the peer speaks no TLS
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
