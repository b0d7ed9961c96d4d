"""Connections of HTTP: how many, and how long a peer may keep one waiting."""

from __future__ import annotations

import asyncio
import enum
from dataclasses import dataclass
from typing import Any, Final

from uvicorn import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

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


class Phase(enum.Enum):
    """A step of a connection, by what it waits for."""

    REQUEST = "the head of a request"
    BODY = "the rest of its body"
    ANSWER = "the end of its answer"


class Connection(H11Protocol):
    """One connection. It is aborted when its peer is too slow."""

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
