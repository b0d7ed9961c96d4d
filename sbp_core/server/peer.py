"""One accepted connection: octets through the session, requests to the dispatcher, backpressure.

Memory is bounded from both sides: while there is no room for more requests (see intake.py), or the
peer does not read its answers, the socket is not read; meanwhile handlers wait in `send_response`
or `reserve`. Time is bounded too: a peer gets so long to send its first frame, to complete one that
it began, and to read what was sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, cast

from sbp_core import limits
from sbp_core.errors import DeadlineExceededError, SbpError
from sbp_core.failpoints import failpoint
from sbp_core.server.budget import Budget
from sbp_core.server.clock import Clock
from sbp_core.server.dispatch import Deferred, Dispatcher, Serving
from sbp_core.server.intake import Intake, memory_bytes
from sbp_core.server.trust import Standing
from sbp_core.server.turns import Turns
from sbp_core.session.connection import Connection, Payload
from sbp_core.session.events import (
    ConnectionBroken,
    Event,
    GoawayReceived,
    RequestReceived,
    RequestRefused,
)
from sbp_core.session.negotiation import NOTHING, Agreement, accept
from sbp_core.sockets import AsyncSocket
from sbp_core.wire.checksum import Octets
from sbp_core.wire.frame import Frame
from sbp_core.wire.headers import Feature
from sbp_core.wire.opcodes import Opcode

_LOG: Final = logging.getLogger(__name__)


class Peer(asyncio.BufferedProtocol):
    """The server's end of one connection."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        clock: Clock,
        on_closed: Callable[[Peer], None],
        *,
        budget: Budget,
        turns: Turns,
        connection_id: int,
    ) -> None:
        self.name = f"connection {connection_id}"
        self._connection_id = connection_id
        self._dispatcher = dispatcher
        self._speech = dispatcher.speech
        self._clock = clock
        self._on_closed = on_closed
        self._session = Connection()
        self._transport: asyncio.Transport | None = None
        self._socket: AsyncSocket | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._deferred_count = 0
        self._intake = Intake(budget, self._on_room)
        self._turns = turns
        self._has_turn = False
        self._is_from_this_host = False
        self.standing = Standing()
        """What the peer has proven to be."""
        self._waiting: Frame | None = None
        """A request for which there is no room yet."""
        self._is_behind = False
        """Whether frames may be here that were not handled yet; then the socket is not read."""
        self._received_at = 0.0
        self._seen_frame_count = 0
        self._is_reading = True
        self._paused_at = 0.0
        self._writable = asyncio.Event()
        self._writable.set()
        self._reservations = asyncio.Semaphore(limits.RESPONSES_RESERVED_MAX)
        self._at_rest = asyncio.Event()
        self._at_rest.set()
        self._closed = asyncio.Event()
        self._last_active = clock.monotonic()
        self._frame_since: float | None = self._last_active
        self._unread_since: float | None = None
        self._leave_at: float | None = None
        """After GOAWAY of either side: when to close, once nothing is being served."""

    # asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept the connection."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=limits.WRITE_BUFFER_HIGH_BYTES)
        self._socket = AsyncSocket(self._transport)
        address = transport.get_extra_info("peername")
        own_address = transport.get_extra_info("sockname")
        if address:
            self._is_from_this_host = bool(own_address) and address[0] == own_address[0]
            self.name = f"{address[0]}:{address[1]}, {self.name}"

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the next octets go."""
        return self._session.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Handle the frames that are complete, when it is this connection's turn."""
        if not self._session.buffer_updated(nbytes):
            self._expect_more()
            return
        self._received_at = asyncio.get_running_loop().time()
        self._is_behind = True
        self._at_rest.clear()
        self._go_on()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the tasks that serve the peer; calls without one end in their own time."""
        self._session.close()
        self._waiting = None
        self._is_behind = False
        self._intake.close()
        self._writable.set()
        for task in self._tasks:
            task.cancel()
        self._note_rest()
        self._closed.set()
        self._on_closed(self)
        _LOG.debug("%s: closed (%s)", self.name, exc or "by either side")

    def pause_writing(self) -> None:
        """The peer does not read fast enough: answers wait."""
        self._writable.clear()
        self._unread_since = self._clock.monotonic()
        self._go_on()

    def resume_writing(self) -> None:
        """The peer reads again."""
        self._writable.set()
        if not self._is_closing:
            self._unread_since = None
        self._go_on()

    # Responder

    @property
    def agreement(self) -> Agreement:
        """The features that hold on this connection."""
        return self._session.agreement

    @property
    def is_from_this_host(self) -> bool:
        """Whether the peer has the address that it connected to."""
        return self._is_from_this_host

    def negotiate(self, offered: Sequence[Feature]) -> tuple[Agreement, tuple[Feature, ...]]:
        """Return what to agree on and how to answer an offer; a second offer changes nothing."""
        agreement, features = accept(offered, self._connection_id)
        if self.agreement is not NOTHING:
            return self.agreement, ()
        return agreement, features

    def adopt(self, agreement: Agreement) -> None:
        """Use what was agreed on, now that the peer was told."""
        self._session.adopt(agreement, is_client=False)

    def pack(self, parts: Sequence[Octets], crc32: int | None = None) -> Payload:
        """Return a payload as it is to be sent; `crc32` is that of its parts where it is known."""
        return self._session.pack(parts, crc32)

    async def send_response(
        self, request: Frame, header: bytes, payload: Payload, *, is_end: bool
    ) -> None:
        """Send one response frame once the peer has room for it."""
        await self._wait_writable()
        self.send_now(request, header, payload, is_end=is_end)

    async def send_system_error(self, request: Frame, error: SbpError) -> None:
        """End a call with a system error frame."""
        await self._wait_writable()
        self._refuse(request, error)

    @property
    def has_room(self) -> bool:
        """Whether the peer reads what it is sent."""
        return self._writable.is_set()

    @asynccontextmanager
    async def reserve(self) -> AsyncIterator[None]:
        """Wait for room for one response frame, and keep it."""
        async with self._reservations:
            await self._wait_writable()
            yield

    def send_now(self, request: Frame, header: bytes, payload: Payload, *, is_end: bool) -> None:
        """Send one response frame for which room is reserved."""
        failpoint("server.before_answer")
        self._write(self._session.send_response(request, header, payload, is_end=is_end))

    # The listener's view

    def close_if_overdue(self, idle_seconds_max: float) -> None:
        """Close the connection if the peer made the server wait for longer than it may."""
        now = self._clock.monotonic()
        if _is_overdue(self._unread_since, now, limits.WRITE_STALL_MS):
            _LOG.warning("%s: cut off, it does not read what it is sent", self.name)
            self.abort()
        elif self._is_closing:
            return
        elif self._is_reading and _is_overdue(self._frame_since, now, self._frame_ms):
            _LOG.warning("%s: closing, no whole frame within %d ms", self.name, self._frame_ms)
            self._part(DeadlineExceededError(f"no whole frame arrived within {self._frame_ms} ms"))
        elif self._leave_at is not None:
            self._close_if_left()
        elif not self._has_work and now - self._last_active > idle_seconds_max:
            _LOG.debug("%s: idle, sending it away", self.name)
            self.go_away()

    def go_away(self) -> None:
        """Announce that no new requests are taken, and let the peer close the connection.

        A request that is under way already is refused, so the peer knows that it had no effect. A
        peer that does not close is left to wait for GOAWAY_GRACE_MS.
        """
        self._write(self._session.send_goaway())
        if self._leave_at is None:
            self._leave_at = self._clock.monotonic() + limits.GOAWAY_GRACE_MS / 1000

    async def finish(self) -> None:
        """After `go_away`: answer all that is being served, let it leave, and close.

        What the peer sends before it knows that the server goes away is refused meanwhile: it need
        not wonder whether that was done.
        """
        await self._at_rest.wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limits.GOAWAY_GRACE_MS / 1000):
                await self._closed.wait()
        self.close()
        await self._closed.wait()

    def close(self) -> None:
        """Close after what was sent has left, for which the peer has to read it."""
        if self._transport is not None:
            self._transport.close()
            if self._unread_since is None:
                self._unread_since = self._clock.monotonic()

    def abort(self) -> None:
        """Close at once, whatever the peer has not read yet."""
        if self._transport is not None:
            self._transport.abort()

    # Inside

    @property
    def _is_closing(self) -> bool:
        return self._transport is not None and self._transport.is_closing()

    @property
    def _has_work(self) -> bool:
        """Whether requests are served, wait for room, or may be here unseen."""
        is_serving = bool(self._tasks) or self._deferred_count > 0
        return is_serving or self._waiting is not None or self._is_behind

    @property
    def _frame_ms(self) -> int:
        """How long the frame that is awaited may take."""
        if self._intake.is_in_the_way:
            return limits.FRAME_CONTENDED_MS
        if self._session.received_frame_count:
            return limits.FRAME_COMPLETION_MS
        return limits.FIRST_FRAME_MS

    def _note_frame_progress(self) -> None:
        """Note when the frame began of which a part is here, if there is one."""
        frame_count = self._session.received_frame_count
        has_completed = frame_count > self._seen_frame_count
        self._seen_frame_count = frame_count
        if not frame_count:
            return
        if not self._session.is_mid_frame:
            self._frame_since = None
        elif has_completed or self._frame_since is None:
            self._frame_since = self._clock.monotonic()

    async def _wait_writable(self) -> None:
        while not self._writable.is_set():  # whoever is woken first may fill the buffer again
            await self._writable.wait()

    def _on_event(self, event: Event) -> None:
        self._last_active = self._clock.monotonic()
        match event:
            case RequestReceived(frame) if frame.opcode == Opcode.PING:
                self._write(self._session.send_response(frame, frame.header, [frame.payload]))
            case RequestReceived(frame):
                self._start(frame)
            case RequestRefused(frame, error):
                self._refuse(frame, error)
            case GoawayReceived(frame):
                if self._speech.is_foreign:
                    self._write(self._session.answer_goaway(frame))
                self._leave_at = self._clock.monotonic()
                self._close_if_left()
            case ConnectionBroken(error):
                _LOG.warning("%s: closing: %s", self.name, error)
                self._part(error)
            case _:
                pass

    def _start(self, frame: Frame) -> None:
        size = memory_bytes(frame)
        self._intake.begin(size)
        if self._intake.is_waiting:
            self._waiting = frame
        else:
            self._serve(frame, size)

    def _serve(self, frame: Frame, size: int) -> None:
        rest = self._dispatcher.begin(frame, self, self.name, self._received_at)
        self._go_on_serving(rest, size)

    def _go_on_serving(self, rest: Serving | None, size: int) -> None:
        """Do what is left of a request that counts for `size` octets."""
        if rest is None:
            self._intake.end(size)
        elif isinstance(rest, Deferred):
            self._deferred_count += 1
            rest.when_due(partial(self._on_due, rest, size))
        else:
            task = asyncio.create_task(rest)
            self._tasks.add(task)
            task.add_done_callback(partial(self._on_done, size))

    def _on_due(self, deferred: Deferred, size: int) -> None:
        rest = deferred.finish()
        self._deferred_count -= 1
        self._go_on_serving(rest, size)
        self._last_active = self._clock.monotonic()
        self._note_rest()

    def _on_done(self, size: int, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._intake.end(size)
        self._last_active = self._clock.monotonic()
        self._note_rest()
        if not task.cancelled() and (error := task.exception()) is not None:
            _LOG.error("%s: an answer could not be sent: %s", self.name, error)
            self.close()

    def _note_rest(self) -> None:
        if not self._has_work:
            self._at_rest.set()
            self._close_if_left()

    def _close_if_left(self) -> None:
        is_due = self._leave_at is not None and self._leave_at <= self._clock.monotonic()
        if is_due and not self._has_work:
            self.close()

    @property
    def _may_go_on(self) -> bool:
        return self._intake.may_read and self._writable.is_set()

    def _on_room(self) -> None:
        if self._waiting is not None and not self._intake.is_waiting:
            frame, self._waiting = self._waiting, None
            self._serve(frame, memory_bytes(frame))
            self._note_rest()
        self._go_on()

    def _go_on(self) -> None:
        """Handle what is here if there is room, and read more once that is done."""
        if self._has_turn:
            return
        if self._is_behind and self._may_go_on:
            self._has_turn = True
            self._turns.enter(self._take_turn)
        self._update_reading()

    def _take_turn(self) -> bool:
        """Handle the next frame; whether there may be another one to handle now."""
        if self._is_behind:
            try:
                self._handle_next()
            except Exception:  # noqa: BLE001 - a mistake keeps no one else from their turn
                _LOG.exception("%s: closing", self.name)
                self._is_behind = False
                self.abort()
        self._has_turn = self._is_behind and self._may_go_on
        if not self._has_turn:
            self._update_reading()
            self._note_rest()
        return self._has_turn

    def _handle_next(self) -> None:
        event = next(self._session.events(), None)
        if event is not None:
            self._on_event(event)
        if event is None or not self._session.is_mid_frame:
            self._is_behind = False
            self._intake.expect_frame(self._session.large_frame_bytes)
            self._expect_more()
            self._note_frame_progress()

    def _expect_more(self) -> None:
        if self._socket is not None:
            self._socket.expect(self._session.missing_bytes)

    def _update_reading(self) -> None:
        wanted = self._may_go_on and not self._is_behind
        if self._transport is None or wanted == self._is_reading or self._transport.is_closing():
            return
        self._is_reading = wanted
        if wanted:
            if self._frame_since is not None:  # the pause was not the peer's
                self._frame_since += self._clock.monotonic() - self._paused_at
            self._transport.resume_reading()
        else:
            self._paused_at = self._clock.monotonic()
            self._transport.pause_reading()

    def _refuse(self, request: Frame, error: SbpError) -> None:
        self._write(self._session.send_system_error(request, self._speech.error(error)))

    def _part(self, reason: SbpError) -> None:
        """Say why, and close."""
        self._write(self._session.send_farewell(self._speech.error(reason)))
        self.close()

    def _write(self, buffers: Sequence[Octets]) -> None:
        if buffers and self._socket is not None:
            self._socket.send(buffers)


def _is_overdue(since: float | None, now: float, bound_ms: int) -> bool:
    return since is not None and now - since > bound_ms / 1000
