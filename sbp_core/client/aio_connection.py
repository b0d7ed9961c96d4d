"""One asyncio connection. All methods belong to the loop it was made in."""

from __future__ import annotations

import asyncio
from typing import cast

from sbp_core import limits
from sbp_core.client.connecting import Connecting
from sbp_core.client.conversation import (
    Conversation,
    Phase,
    Sink,
    Ticket,
    connect_failed,
    lost,
)
from sbp_core.client.endpoint import parse_endpoint
from sbp_core.client.program import Call
from sbp_core.errors import SbpError
from sbp_core.sockets import AsyncSocket
from sbp_core.wire.checksum import Octets
from sbp_core.wire.opcodes import Opcode


class AsyncConnection(asyncio.BufferedProtocol):
    """A connection to `endpoint` that is being made while the first calls are queued already."""

    def __init__(self, endpoint: str, client_id: str, connecting: Connecting) -> None:
        self._address = parse_endpoint(endpoint)
        self._connect_seconds = connecting.timeout_ms / 1000
        self._conversation = Conversation(endpoint, client_id, connecting.all_wishes)
        self._queued: list[Octets] = self._conversation.greeting()
        self._transport: asyncio.Transport | None = None
        self._socket: AsyncSocket | None = None
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._ended = asyncio.Event()
        self._connecting = asyncio.get_running_loop().create_task(self._connect())

    @property
    def is_usable(self) -> bool:
        """Whether new calls may be started."""
        return self._conversation.is_usable

    @property
    def is_over(self) -> bool:
        """Whether its calls have ended and its socket is closed or closing."""
        return self._conversation.phase is Phase.CLOSED

    def start(self, call: Call, sink: Sink) -> Ticket:
        """Send a call, return its ticket. Raises SbpError when nothing was sent."""
        ticket, buffers = self._conversation.start(call, sink)
        self._send(buffers)
        return ticket

    @property
    def may_write(self) -> bool:
        """Whether `drain` would return at once."""
        return self._may_write.is_set()

    async def drain(self) -> None:
        """Wait until the transport wants more octets, or the connection is over."""
        await self._may_write.wait()

    def abandon(self, ticket: Ticket) -> None:
        """Stop listening to a call."""
        self._conversation.abandon(ticket)
        self._close_if_finished()

    def expire(self, ticket: Ticket, opcode: Opcode) -> SbpError:
        """Give up a call whose deadline passed, and the connection after its open calls."""
        error = self._conversation.expire(ticket, opcode)
        self._close_if_finished()
        return error

    def retire(self) -> None:
        """Take no new calls, and close after the open ones."""
        self._conversation.retire()
        self._close_if_finished()

    async def close(self) -> None:
        """End the connection; open calls fail. Octets not sent yet are dropped."""
        self._connecting.cancel()
        await asyncio.wait([self._connecting])
        self._end(lost(self._conversation.endpoint, "closed by this client"))
        if self._transport is not None:
            self._transport.abort()
            await self._ended.wait()

    # asyncio.BufferedProtocol.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send what is queued."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=limits.WRITE_BUFFER_HIGH_BYTES)
        self._socket = AsyncSocket(self._transport)
        if self._conversation.phase is Phase.CLOSED:
            self._transport.abort()
            return
        if self._conversation.phase is Phase.CONNECTING:
            self._conversation.phase = Phase.OPEN
        queued, self._queued = self._queued, []
        self._send(queued)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail what is open."""
        self._end(lost(self._conversation.endpoint, exc or "the server closed it"))
        self._ended.set()

    def pause_writing(self) -> None:
        """Let `drain` wait."""
        self._may_write.clear()

    def resume_writing(self) -> None:
        """Let `drain` return."""
        self._may_write.set()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where received octets go."""
        del sizehint
        return self._conversation.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Take in received octets."""
        if self._conversation.buffer_updated(nbytes):
            self._send(self._conversation.receive())
            self._close_if_finished()
        if self._socket is not None:
            self._socket.expect(self._conversation.missing_bytes)

    def eof_received(self) -> bool:
        """Close when the server does."""
        return False

    async def _connect(self) -> None:
        endpoint = self._conversation.endpoint
        host, port = self._address
        try:
            async with asyncio.timeout(self._connect_seconds):
                await asyncio.get_running_loop().create_connection(lambda: self, host, port)
        except (OSError, UnicodeError) as failure:
            self._end(connect_failed(endpoint, failure, self._connect_seconds))

    def _send(self, buffers: list[Octets]) -> None:
        if self._socket is None:
            self._queued += buffers
        elif buffers:
            self._socket.send(buffers)

    def _close_if_finished(self) -> None:
        if self._conversation.is_finished and self._transport is not None:
            self._transport.close()

    def _end(self, error: SbpError) -> None:
        self._queued = []
        self._may_write.set()
        self._conversation.end(error)
