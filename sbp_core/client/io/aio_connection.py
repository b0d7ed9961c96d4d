"""A connection of the client: the socket and the timers of one conversation.

A connection belongs to the event loop that made it. The protocol is in conversation.py.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from typing import Final, cast

from sbp_core import limits
from sbp_core.client.connecting import Connecting, parse_endpoint
from sbp_core.client.io.answer_limits import Ticket
from sbp_core.client.io.conversation import Conversation, Phase, connect_failed, lost, unread
from sbp_core.client.operations.open_calls import Call, Sink
from sbp_core.errors import SbpError
from sbp_core.sockets import AsyncSocket, TlsLink
from sbp_core.tls import Channel, ready
from sbp_core.tls_errors import PlainTextError, tls_error
from sbp_core.wire.checksum import Buffer
from sbp_core.wire.opcodes import Opcode

_LOG: Final = logging.getLogger(__name__)


class AsyncConnection(asyncio.BufferedProtocol):
    """A connection to `endpoint`. The first calls are queued while the connection is being made.

    `_ended` is done once the socket is closed, or will never be opened. A connection that was just
    made is aborted, not cancelled: uvloop forgets `connection_lost` if `create_connection` is
    cancelled after `connection_made`.
    """

    def __init__(self, endpoint: str, client_id: str, connecting: Connecting) -> None:
        self._address = parse_endpoint(endpoint)
        self._connect_seconds = connecting.timeout_ms / 1000
        self._tls = connecting.tls
        self._loop = asyncio.get_running_loop()
        self._conversation = Conversation(
            endpoint,
            client_id,
            connecting.all_features,
            connecting.credentials,
            identity=connecting.shown_identity,
            clock=self._loop.time,
        )
        self._queued: list[Buffer] = self._conversation.greeting()
        self._transport: asyncio.Transport | None = None
        self._socket: AsyncSocket | None = None
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._stall_timer: asyncio.TimerHandle | None = None
        self._resume_timer: asyncio.TimerHandle | None = None
        self._connecting = self._loop.create_task(self._connect())

    @property
    def is_usable(self) -> bool:
        """Whether new calls may be started."""
        return self._conversation.is_usable

    @property
    def is_over(self) -> bool:
        """Whether all calls have ended, and the socket is closed or closing."""
        return self._conversation.phase is Phase.CLOSED

    def start(self, call: Call, sink: Sink) -> Ticket:
        """Send a call, return its ticket. Raises SbpError when nothing was sent."""
        ticket, buffers = self._conversation.start(call, sink, self._unsent_bytes)
        self._send(buffers)
        return ticket

    @property
    def may_write(self) -> bool:
        """Whether `drain` would return at once."""
        return self._may_write.is_set()

    async def drain(self) -> None:
        """Wait until the transport wants more bytes, or the connection is over."""
        await self._may_write.wait()

    def abandon(self, ticket: Ticket) -> None:
        """Stop listening to a call."""
        self._conversation.abandon(ticket)
        self._close_if_finished()

    def extension_ms(self, ticket: Ticket) -> float:
        """Return the waits that the server asked for since the deadline of a call was set last."""
        return self._conversation.extension_ms(ticket)

    def expire(self, ticket: Ticket, opcode: Opcode) -> SbpError:
        """Give up a call whose deadline passed, and retire the connection."""
        error = self._conversation.expire(ticket, opcode)
        self._close_if_finished()
        return error

    def retire(self) -> None:
        """Accept no new calls, and close when the open calls have ended."""
        self._conversation.retire()
        self._close_if_finished()

    def abort(self, reason: object = "closed by this client") -> None:
        """End the connection; open calls fail. Bytes not sent yet are dropped."""
        self._end(lost(self._conversation.endpoint, reason))
        if self._transport is not None:
            self._transport.abort()
        else:
            self._connecting.cancel()

    async def close(self) -> None:
        """Abort the connection; return when the socket is closed, or after CLOSE_TIMEOUT_MS."""
        self.abort()
        waiting = {self._connecting, self._ended}
        _, pending = await asyncio.wait(waiting, timeout=limits.CLOSE_TIMEOUT_MS / 1000)
        if pending:
            _LOG.warning(
                "connection not closed: server=%s waited_ms=%d; it is abandoned",
                self._conversation.endpoint,
                limits.CLOSE_TIMEOUT_MS,
            )

    # asyncio.BufferedProtocol.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the queued calls."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=limits.WRITE_BUFFER_HIGH_BYTES)
        self._socket = AsyncSocket(self._transport)
        if self._conversation.phase is Phase.CLOSED:
            self._transport.abort()
            return
        queued, self._queued = self._queued, []
        self._send([*queued, *self._conversation.on_connected()])

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the open calls."""
        endpoint, link = self._conversation.endpoint, self._transport
        error: SbpError = lost(endpoint, exc or "the server closed it")
        if isinstance(exc, ssl.SSLError) and isinstance(link, TlsLink) and link.is_unanswered:
            error = tls_error(endpoint, self._address[0], exc)
        self._end(error)
        self._note_ended()

    def pause_writing(self) -> None:
        """Make `drain` wait."""
        self._may_write.clear()

    def resume_writing(self) -> None:
        """Let `drain` return."""
        self._may_write.set()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where received bytes go."""
        del sizehint
        return self._conversation.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Handle received bytes."""
        if self._conversation.buffer_updated(nbytes):
            self._send(self._conversation.receive(self._unsent_bytes))
            self._close_if_finished()
            if self._conversation.throttling.is_on:
                self._resume_later()
        if self._socket is not None:
            self._socket.receiving.expect(self._conversation.missing_bytes)

    def eof_received(self) -> bool:
        """Close when the server does."""
        return False

    async def _connect(self) -> None:
        host, port = self._address
        deadline = self._loop.call_later(self._connect_seconds, self._on_connect_timeout)
        try:
            if self._tls is None:
                await self._loop.create_connection(lambda: self, host, port)
            else:
                await self._connect_securely(ready(self._tls).client_channel(host))
        except (PlainTextError, ssl.SSLError) as failure:
            self._end(tls_error(self._conversation.endpoint, host, failure))
        except (OSError, UnicodeError, RuntimeError) as failure:  # the last: a closed executor
            self._fail_to_connect(failure)
        except asyncio.CancelledError:  # perhaps from outside, when a connection was just made
            self._end(lost(self._conversation.endpoint, "the making of it was cancelled"))
            self._transport = self._socket = None
            raise
        finally:
            deadline.cancel()
            if self._transport is None:
                self._note_ended()

    async def _connect_securely(self, channel: Channel) -> None:
        """Connect, and return after the handshake. Raises the error that ends it."""
        link = TlsLink(self, channel)
        await self._loop.create_connection(lambda: link, *self._address)
        try:
            await link.opened
        finally:
            if self._transport is None:
                link.abort()

    def _on_connect_timeout(self) -> None:
        if self._transport is None:
            self._fail_to_connect(TimeoutError())
            self._connecting.cancel()

    def _fail_to_connect(self, failure: Exception) -> None:
        self._end(connect_failed(self._conversation.endpoint, failure, self._connect_seconds))

    @property
    def _unsent_bytes(self) -> int:
        return sum(map(len, self._queued)) if self._socket is None else self._socket.unsent_bytes

    def _send(self, buffers: list[Buffer]) -> None:
        if self._conversation.phase is Phase.CLOSED:
            return
        if self._socket is None:
            self._queued += buffers
        elif buffers:
            self._socket.send(buffers)
            if self._stall_timer is None and self._socket.unsent_bytes:
                self._watch_for_stall(self._socket)

    def _watch_for_stall(self, sending: AsyncSocket) -> None:
        """Check later whether the server has read any of the unsent bytes."""
        sent_bytes = sending.sent_bytes

        def look() -> None:
            self._stall_timer = None
            if not sending.unsent_bytes or self._conversation.phase is Phase.CLOSED:
                return
            read_since = self._conversation.throttling.until
            is_stalled = self._loop.time() - read_since > limits.WRITE_STALL_MS / 1000
            if sending.sent_bytes == sent_bytes and is_stalled:
                self.abort(unread(sending.unsent_bytes))
            else:
                self._watch_for_stall(sending)

        self._stall_timer = self._loop.call_later(limits.WRITE_STALL_MS / 1000, look)

    def _resume_later(self) -> None:
        """Send the held calls when the server reads again."""
        if self._resume_timer is None:
            self._resume_timer = self._loop.call_at(
                self._conversation.throttling.until, self._resume
            )

    def _resume(self) -> None:
        self._resume_timer = None
        self._send(self._conversation.resume())
        if self._conversation.throttling.is_on and not self.is_over:
            self._resume_later()

    def _close_if_finished(self) -> None:
        if self._conversation.is_finished:
            self.abort()  # unsent bytes belong to calls that were given up

    def _note_ended(self) -> None:
        for timer in (self._stall_timer, self._resume_timer):
            if timer is not None:
                timer.cancel()
        if not self._ended.done():
            self._ended.set_result(None)

    def _end(self, error: SbpError) -> None:
        self._queued = []
        self._may_write.set()
        self._conversation.end(error)
