"""One accepted connection: bytes through the session, requests to the dispatcher, backpressure.

Memory is bounded from both sides: while there is no room for more requests (see intake.py), or the
peer does not read its answers (see unread.py), the socket is not read; handlers wait in
`send_response` or `reserve` then. Time is bounded too: a peer gets so long to send its first frame,
to complete one that it began, and to read what was sent; less while others wait for what it holds.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Final, cast

from sbp_core import limits
from sbp_core.errors import DeadlineExceededError, SbpError
from sbp_core.failpoints import failpoint
from sbp_core.server.budget import Budget
from sbp_core.server.dispatch import Deferred, Dispatcher, Serving
from sbp_core.server.intake import Held, Intake, memory_bytes
from sbp_core.server.outgoing import Outgoing
from sbp_core.server.patience import FramePatience, Use, is_overdue
from sbp_core.server.runtime import Clock, Turns
from sbp_core.server.trust import Standing
from sbp_core.server.unread import Echo, Unread
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
        unread: Unread,
        turns: Turns,
        connection_id: int,
        owner: str = "",
    ) -> None:
        self.owner = owner
        """Whom the connection is counted for: its address, or network."""
        self.name = f"connection {connection_id}"
        self._connection_id = connection_id
        self._dispatcher = dispatcher
        self._speech = dispatcher.speech
        self._clock = clock
        self._on_closed = on_closed
        self._session = Connection()
        self._transport: asyncio.Transport | None = None
        self._socket: AsyncSocket | None = None
        self._tasks: dict[asyncio.Task[None], Held] = {}
        self._deferred_count = 0
        self._intake = Intake(budget, self._go_on, address=owner)
        self._unread = unread
        self._outgoing = Outgoing(unread)
        self._echo = Echo(unread, self._on_echo_room)
        self._turns = turns
        self._has_turn = False
        self._is_from_this_host = False
        self.standing = Standing()
        """What the peer has proven to be."""
        self._waiting: tuple[Frame, Held] | None = None
        """A request for which there is no room yet."""
        self._is_behind = False
        """Whether frames may be here that were not handled yet; then the socket is not read."""
        self._received_at = 0.0
        self._is_reading = True
        self._at_rest = asyncio.Event()
        self._at_rest.set()
        now = clock.monotonic()
        self._use = Use(now)
        self._patience = FramePatience(self._session, self._intake, now)
        self._lost_at: float | None = None
        self._leave_at: float | None = None
        """After GOAWAY of either side: when to close, once nothing is being served."""

    # asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept the connection."""
        self._transport = cast("asyncio.Transport", transport)
        self._socket = self._outgoing.connect(self._transport)
        address, own_address = map(transport.get_extra_info, ("peername", "sockname"))
        if address:
            self._is_from_this_host = bool(own_address) and address[0] == own_address[0]
            self.name = f"{address[0]}:{address[1]}, {self.name}"

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the next octets go."""
        return self._session.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Handle the frames that are complete, when it is this connection's turn."""
        if not self._session.buffer_updated(nbytes):
            self._expect_frame()
            self._expect_more()
            return
        self._received_at = asyncio.get_running_loop().time()
        self._is_behind = True
        self._at_rest.clear()
        self._go_on()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the tasks that serve the peer; calls without one end in their own time."""
        self._session.close()
        self._lost_at = self._clock.monotonic()
        if self._waiting is not None:
            self._waiting[1].end()
            self._waiting = None
        self._is_behind = False
        self._intake.close()
        self._echo.end()
        for task in self._tasks:
            task.cancel()
        self._note_rest()
        self._outgoing.lose()
        self._on_closed(self)
        _LOG.debug("%s: closed (%s)", self.name, exc or "by either side")

    def pause_writing(self) -> None:
        """The peer does not read fast enough: answers wait."""
        self._outgoing.pause()
        self._go_on()

    def resume_writing(self) -> None:
        """The peer reads again."""
        self._outgoing.resume()
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
        if self.agreement is not NOTHING:
            return self.agreement, ()
        return accept(offered, self._connection_id)

    def adopt(self, agreement: Agreement) -> None:
        """Use what was agreed on, now that the peer was told."""
        self._session.adopt(agreement, is_client=False)

    def pack(self, parts: Sequence[Octets], crc32: int | None = None) -> Payload:
        """Return a payload as it is to be sent; `crc32` is that of its parts where it is known."""
        return self._session.pack(parts, crc32)

    def note_use(self) -> None:
        """Note that the connection is in use, though no request says so."""
        self._use.note(self._clock.monotonic())

    async def send_response(
        self, request: Frame, header: bytes, payload: Payload, *, is_end: bool
    ) -> None:
        """Send one response frame once there is room for it."""
        size = len(header) + sum(map(len, payload.parts))
        if self.has_room_for(size):
            self.send_now(request, header, payload, is_end=is_end)
            return
        async with self._outgoing.room(size):
            self.send_now(request, header, payload, is_end=is_end)

    async def send_system_error(self, request: Frame, error: SbpError) -> None:
        """End a call with a system error frame."""
        async with self._outgoing.room(0):
            self._refuse(request, error)

    @property
    def has_room(self) -> bool:
        """Whether the peer reads what it is sent."""
        return self._outgoing.has_room

    def has_room_for(self, size: int) -> bool:
        """Whether a frame of `size` bytes need not wait."""
        return self._outgoing.has_room_for(size)

    def reserve(self, size: int) -> AbstractAsyncContextManager[None]:
        """Wait for room for one response frame of about `size` bytes, and keep it."""
        return self._outgoing.reserve(size)

    def send_now(self, request: Frame, header: bytes, payload: Payload, *, is_end: bool) -> None:
        """Send one response frame for which room is reserved."""
        failpoint("server.before_answer")
        self._outgoing.send(self._session.send_response(request, header, payload, is_end=is_end))

    # The listener's view

    def spare_ms(self) -> float:
        """Return for how long the connection could have been closed without harm, in ms.

        Negative while it is too young for that, in use, or at work.
        """
        is_receiving = self._session.large_frame_bytes and not self._echo.is_awaited
        if self._has_work or is_receiving or self._leave_at is not None:
            return -1.0
        return self._use.spare_ms(self._clock.monotonic())

    def close_if_overdue(self, idle_seconds_max: float) -> None:
        """Close the connection if the peer made the server wait for longer than it may."""
        now = self._clock.monotonic()
        if self._outgoing.is_overdue(now):
            waiting_bytes = self._outgoing.waiting_bytes
            _LOG.warning(
                "%s: cut off, it does not read: %d bytes wait for it", self.name, waiting_bytes
            )
            self.abort()
        elif self._outgoing.is_closing or (
            not self._is_reading and self._outgoing.abort_if_broken()
        ):
            return
        elif self._is_reading and (late_ms := self._patience.late_ms(now)):
            _LOG.warning("%s: closing, no whole frame within %d ms", self.name, late_ms)
            self._part(DeadlineExceededError(f"no whole frame arrived within {late_ms} ms"))
        elif self._leave_at is not None:
            self._close_if_left()
        elif not self._has_work and self._use.idle_ms(now) > 1000 * idle_seconds_max:
            _LOG.debug("%s: idle, sending it away", self.name)
            self.go_away()

    def forsake_if_overdue(self) -> bool:
        """After the end of the connection: whether nothing is done for it any longer.

        Work that ignores its end is a mistake; what it counts for is given back all the same.
        """
        now = self._clock.monotonic()
        if self._tasks and not is_overdue(self._lost_at, now, limits.HANDLER_CANCEL_MS):
            return False
        for task, held in self._tasks.items():
            _LOG.error(
                "%s: left to itself, it does not end by being cancelled: %r", self.name, task
            )
            held.end()
        return True

    def go_away(self) -> None:
        """Announce that no new requests are taken, and let the peer close the connection.

        A request that is under way already is refused, so the peer knows that it had no effect. It
        has GOAWAY_GRACE_MS to close.
        """
        self._outgoing.send(self._session.send_goaway())
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
                await self._outgoing.wait_closed()
        self.close()
        await self._outgoing.wait_closed()

    def close(self) -> None:
        """Close after what was sent has left, for which the peer has to read it."""
        self._outgoing.close()

    def abort(self) -> None:
        """Close at once, whatever the peer has not read yet."""
        self._outgoing.abort()

    @property
    def _has_work(self) -> bool:
        """Whether requests are served, wait for room, or may be here unseen."""
        is_serving = bool(self._tasks) or self._deferred_count > 0
        return is_serving or self._waiting is not None or self._is_behind

    def _on_event(self, event: Event) -> None:
        match event:
            case RequestReceived(frame) if frame.opcode == Opcode.PING:
                self._answer_ping(frame)
            case RequestReceived(frame):
                if frame.opcode != Opcode.HEARTBEAT:
                    self.note_use()
                self._start(frame)
            case RequestRefused(frame, error):
                self._refuse(frame, error)
            case GoawayReceived(frame):
                if self._speech.is_foreign:
                    self._outgoing.send(self._session.answer_goaway(frame))
                self._leave_at = self._clock.monotonic()
                self._close_if_left()
            case ConnectionBroken(error):
                _LOG.warning("%s: closing: %s", self.name, error)
                self._part(error)
            case _:
                pass

    def _answer_ping(self, frame: Frame) -> None:
        refusal = self._echo.maybe_refusal(len(frame.header) + len(frame.payload))
        if refusal is not None:
            self._refuse(frame, refusal)
            return
        self._outgoing.send(self._session.send_response(frame, frame.header, [frame.payload]))
        self._echo.end()

    def _start(self, frame: Frame) -> None:
        held = self._intake.begin(memory_bytes(frame))
        if held.is_waiting:
            self._waiting = frame, held
        else:
            self._serve(frame, held)

    def _serve(self, frame: Frame, held: Held) -> None:
        rest = self._dispatcher.begin(frame, self, self.name, self._received_at, held)
        self._go_on_serving(rest, held, is_use=frame.opcode != Opcode.HEARTBEAT)

    def _go_on_serving(self, rest: Serving | None, held: Held, *, is_use: bool) -> None:
        """Do what is left of a request that counts for what is `held`."""
        if rest is None:
            held.end()
        elif isinstance(rest, Deferred):
            self._deferred_count += 1
            rest.when_due(partial(self._on_due, rest, held))
        else:
            task = asyncio.create_task(rest)
            self._tasks[task] = held
            task.add_done_callback(partial(self._on_done, is_use))

    def _on_due(self, deferred: Deferred, held: Held) -> None:
        rest = deferred.finish()
        self._deferred_count -= 1
        self._go_on_serving(rest, held, is_use=True)
        self.note_use()
        self._note_rest()

    def _on_done(self, is_use: bool, task: asyncio.Task[None]) -> None:  # noqa: FBT001
        self._tasks.pop(task).end()
        if is_use:
            self.note_use()
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
        return self._intake.may_read and self._outgoing.has_room and not self._echo.is_awaited

    @property
    def _is_granted(self) -> bool:
        """Whether there is room by now for the request that waited for it."""
        return self._waiting is not None and not self._intake.is_waiting

    @property
    def _is_due(self) -> bool:
        """Whether there is something to handle, and room for it."""
        return self._is_granted or (self._is_behind and self._may_go_on)

    def _go_on(self) -> None:
        """Handle what is here if there is room, and read more once that is done.

        Room that is given back lets many connections go on at once. They take turns: the rest of
        the server goes on between them.
        """
        if self._has_turn:
            return
        if self._is_due:
            self._has_turn = True
            self._turns.enter(self._take_turn)
        self._update_reading()

    def _take_turn(self) -> bool:
        """Handle the next frame; whether there may be another one to handle now."""
        try:
            if self._is_granted:
                self._serve_granted()
            elif self._is_behind:
                self._handle_next()
        except Exception:  # noqa: BLE001 - a mistake keeps no one else from their turn
            _LOG.exception("%s: closing", self.name)
            self._is_behind = False
            self.abort()
        self._has_turn = self._is_due
        if not self._has_turn:
            self._update_reading()
            self._note_rest()
        return self._has_turn

    def _serve_granted(self) -> None:
        if self._waiting is None:
            return
        (frame, held), self._waiting = self._waiting, None
        if self._outgoing.abort_if_broken():
            held.end()
        else:
            self._serve(frame, held)

    def _handle_next(self) -> None:
        event = next(self._session.events(), None)
        if event is not None:
            self._on_event(event)
        if event is None or not self._session.is_mid_frame:
            self._is_behind = False
            self._expect_frame()
            self._expect_more()
            self._patience.note_progress(self._clock.monotonic())

    def _expect_frame(self) -> None:
        """Claim the room of a frame that outgrows the receive buffer; for a PING, of its echo."""
        size = self._session.large_frame_bytes
        is_ping = size and self._session.awaited_opcode == Opcode.PING
        if is_ping and not self._echo.may_receive(size):
            self._go_on()
        else:
            self._intake.expect_frame(size)

    def _on_echo_room(self) -> None:
        if self._lost_at is None:
            self._expect_frame()
            self._go_on()

    def _expect_more(self) -> None:
        if self._socket is not None:
            self._socket.expect(self._session.missing_bytes)

    def _update_reading(self) -> None:
        outgoing = self._outgoing
        if not outgoing.has_room and outgoing.is_writable and self._lost_at is None:
            self._unread.when_read(self._go_on)
        wanted = self._may_go_on and not self._is_behind
        if self._transport is None or wanted == self._is_reading or self._transport.is_closing():
            return
        self._is_reading = wanted
        if wanted:
            self._patience.resume(self._clock.monotonic())
            self._transport.resume_reading()
        else:
            self._patience.pause(self._clock.monotonic())
            self._transport.pause_reading()

    def _refuse(self, request: Frame, error: SbpError) -> None:
        self._outgoing.send(self._session.send_system_error(request, self._speech.error(error)))

    def _part(self, reason: SbpError) -> None:
        """Say why, and close."""
        self._outgoing.send(self._session.send_farewell(self._speech.error(reason)))
        self.close()
