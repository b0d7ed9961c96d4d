"""Connections of the admin endpoint: how many, and how long a peer may keep one waiting."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from uvicorn import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

CONNECTIONS_MAX: Final = 64
REQUEST_BYTES_MAX: Final = 16 * 1024
"""Bytes of the first line and the headers of a request; bodies are not read."""
ARRIVAL_SECONDS: Final = 10.0
"""How long a request may take to arrive, and how long a connection stays open without one."""
ANSWER_SECONDS: Final = 30.0
"""How long an answer may take, until the system has all of it."""

CERTIFICATE: Final = "certificate"
"""Where the state of a request has the certificate that its peer has shown, in DER."""


class Connection(H11Protocol):
    """One connection. It is aborted when its peer is too slow."""

    def __init__(self, config: Config, server_state: ServerState) -> None:
        super().__init__(config=config, server_state=server_state, app_state={})
        self._deadline: asyncio.TimerHandle | None = None
        self.idle_since = self.loop.time()

    @property
    def is_idle(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Note the certificate of the peer, which the handshake has verified."""
        tls: Any = transport.get_extra_info("ssl_object")
        certificate = None if tls is None else tls.getpeercert(binary_form=True)
        self.app_state = {CERTIFICATE: certificate}
        super().connection_made(transport)
        self._allow(ARRIVAL_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the deadline."""
        self._allow(None)
        super().connection_lost(exc)

    def handle_events(self) -> None:
        """Begin to answer what has arrived."""
        was_idle = self.is_idle
        super().handle_events()
        if was_idle and not self.is_idle:
            self._allow(ANSWER_SECONDS)

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self.idle_since = self.loop.time()
        self._allow(ARRIVAL_SECONDS)
        super().on_response_complete()

    def end(self) -> None:
        """Close the connection at once."""
        if self.transport is not None:
            self.transport.abort()

    def _allow(self, seconds: float | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if seconds is None else self.loop.call_later(seconds, self.end)
