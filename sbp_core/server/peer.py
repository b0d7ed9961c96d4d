"""One accepted connection: octets through the session, requests to the dispatcher, backpressure.

Memory is bounded from both sides: while the requests being worked on hold more than
CONNECTION_IN_FLIGHT_BYTES_MAX, the socket is not read; while the peer does not read its answers,
handlers wait in `send_response`.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from typing import Final, cast

from sbp_core import limits
from sbp_core.errors import SbpError, StatusCode, ThrottledError
from sbp_core.server.clock import Clock
from sbp_core.server.dispatch import Dispatcher
from sbp_core.session.connection import Connection
from sbp_core.session.events import ConnectionBroken, Event, RequestReceived, RequestRefused
from sbp_core.wire.checksum import Octets
from sbp_core.wire.frame import Frame
from sbp_core.wire.opcodes import Opcode

_LOG: Final = logging.getLogger(__name__)

_JOIN_BYTES: Final = limits.RECEIVE_BUFFER_BYTES
"""Frames up to this size are sent in one piece; larger ones buffer by buffer, uncopied."""


class Peer(asyncio.BufferedProtocol):
    """The server's end of one connection."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        clock: Clock,
        on_closed: Callable[[Peer], None],
        *,
        is_full: bool = False,
    ) -> None:
        self.name = "unconnected"
        self._dispatcher = dispatcher
        self._clock = clock
        self._on_closed = on_closed
        self._session = Connection()
        self._transport: asyncio.Transport | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._in_flight_bytes = 0
        self._is_full = is_full
        self._is_reading = True
        self._writable = asyncio.Event()
        self._writable.set()
        self._closed = asyncio.Event()
        self._last_active = clock.monotonic()

    # asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept the connection."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=limits.WRITE_BUFFER_HIGH_BYTES)
        accepted: socket.socket = transport.get_extra_info("socket")
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        address = transport.get_extra_info("peername")
        self.name = f"{address[0]}:{address[1]}" if address else "unknown"
        if self._is_full:
            _LOG.warning("%s: refused, %d connections are open", self.name, limits.CONNECTIONS_MAX)
            self._write(
                self._session.send_farewell(
                    ThrottledError(
                        StatusCode.TOO_MANY_REQUESTS,
                        f"the server has {limits.CONNECTIONS_MAX} connections open already",
                    )
                )
            )
            self.close()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the next octets go."""
        return self._session.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Serve what the octets so far ask for."""
        self._session.buffer_updated(nbytes)
        for event in self._session.events():
            self._on_event(event)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel what was being served for the peer."""
        self._session.close()
        self._writable.set()
        for task in self._tasks:
            task.cancel()
        self._closed.set()
        self._on_closed(self)
        _LOG.debug("%s: closed (%s)", self.name, exc or "by either side")

    def pause_writing(self) -> None:
        """The peer does not read fast enough: answers wait."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """The peer reads again."""
        self._writable.set()

    # Responder

    async def send_response(
        self, request: Frame, header: bytes, payload: Sequence[Octets], *, is_end: bool
    ) -> None:
        """Send one response frame once the peer has room for it."""
        await self._writable.wait()
        self._write(self._session.send_response(request, header, payload, is_end=is_end))

    async def send_system_error(self, request: Frame, error: SbpError) -> None:
        """End a call with a system error frame."""
        await self._writable.wait()
        self._write(self._session.send_system_error(request, error))

    # The listener's view

    @property
    def idle_seconds(self) -> float:
        """How long nothing was asked and nothing was being answered."""
        return 0.0 if self._tasks else self._clock.monotonic() - self._last_active

    def go_away(self) -> None:
        """Announce that no new requests are taken."""
        self._write(self._session.send_goaway())

    async def finish(self) -> None:
        """Answer all that is being served, let it leave, and close."""
        while self._tasks:
            await asyncio.wait(self._tasks)
        self.close()
        await self._closed.wait()

    def close(self) -> None:
        """Close after what was sent has left."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once, whatever the peer has not read yet."""
        if self._transport is not None:
            self._transport.abort()

    # Inside

    def _on_event(self, event: Event) -> None:
        self._last_active = self._clock.monotonic()
        match event:
            case RequestReceived(frame) if frame.opcode == Opcode.PING:
                self._write(self._session.send_response(frame, frame.header, [frame.payload]))
            case RequestReceived(frame):
                self._start(frame)
            case RequestRefused(frame, error):
                self._write(self._session.send_system_error(frame, error))
            case ConnectionBroken(error):
                _LOG.warning("%s: closing: %s", self.name, error)
                self._write(self._session.send_farewell(error))
                self.close()
            case _:
                pass

    def _start(self, frame: Frame) -> None:
        size = len(frame.header) + len(frame.payload)
        self._in_flight_bytes += size
        self._update_reading()
        task = asyncio.create_task(self._dispatcher.serve(frame, self, self.name))
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._on_done(done, size))

    def _on_done(self, task: asyncio.Task[None], size: int) -> None:
        self._tasks.discard(task)
        self._in_flight_bytes -= size
        self._last_active = self._clock.monotonic()
        self._update_reading()
        if not task.cancelled() and (error := task.exception()) is not None:
            _LOG.error("%s: an answer could not be sent: %s", self.name, error)
            self.close()

    def _update_reading(self) -> None:
        wanted = self._in_flight_bytes <= limits.CONNECTION_IN_FLIGHT_BYTES_MAX
        if self._transport is None or wanted == self._is_reading or self._transport.is_closing():
            return
        self._is_reading = wanted
        if wanted:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def _write(self, buffers: Sequence[Octets]) -> None:
        if not buffers or self._transport is None or self._transport.is_closing():
            return
        if sum(len(part) for part in buffers) <= _JOIN_BYTES:
            self._transport.write(b"".join(buffers))
            return
        for part in buffers:
            self._transport.write(part)
