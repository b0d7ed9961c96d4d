"""The receiving side of one connection: frames are read and handled while there is room for them.

Memory is bounded: while there is no room for more requests (budget.py), or the peer does not read
its answers (outgoing.py), or its identity is above its quota (quotas.py), the socket is not read.
Time is bounded too: for the first frame, and for completing a frame. A peer has less time while
others wait for the memory that it holds.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from sbp_core import limits
from sbp_core.record_sizes import RecordSizes
from sbp_core.server.budget import Budget, Held, Intake, memory_bytes
from sbp_core.server.outgoing import Echo, Outgoing, Unread
from sbp_core.server.quotas import LOOK_SECONDS, Allowance
from sbp_core.server.runtime import Clock, Turns
from sbp_core.session.connection import Connection
from sbp_core.session.states import Event
from sbp_core.sockets import AsyncSocket
from sbp_core.wire.frame import Frame
from sbp_core.wire.opcodes import Opcode

if TYPE_CHECKING:
    from sbp_core.server.peer import Peer

_LOG: Final = logging.getLogger(__name__)


class Incoming:
    """The receiving side of a connection, within the bounds of `budget`, in `turns` with others."""

    def __init__(
        self,
        peer: Peer,
        session: Connection,
        outgoing: Outgoing,
        *,
        budget: Budget,
        unread: Unread,
        turns: Turns,
        clock: Clock,
        allowance: Allowance,
        owner: str,
        sizes: RecordSizes,
    ) -> None:
        self._peer = peer
        self._session = session
        self._outgoing = outgoing
        self._unread = unread
        self._turns = turns
        self._clock = clock
        self._transport: asyncio.Transport | None = None
        self._socket: AsyncSocket | None = None
        self._allowance = allowance
        self._intake = Intake(
            budget, self.go_on, address=owner, sizes=sizes, on_hold=allowance.hold
        )
        self._quota_timer: asyncio.TimerHandle | None = None
        self._patience = FramePatience(session, self._intake, clock.monotonic())
        self.echo = Echo(unread, self._on_echo_room)
        self._waiting: tuple[Frame, Held] | None = None
        """A request for which there is no room yet."""
        self._kept: Event | None = None
        """An event that is handled when the quota allows it."""
        self._is_behind = False
        """Whether frames may be here that were not handled yet; then the socket is not read."""
        self._has_turn = False
        self._is_closed = False
        self.is_reading = True
        """Whether the socket is read."""
        self.received_at = 0.0
        """When the last bytes came, by the loop's clock."""

    def connect(self, transport: asyncio.Transport, connected: AsyncSocket) -> None:
        """Receive from `transport` from now on."""
        self._transport = transport
        self._socket = connected

    @property
    def has_work(self) -> bool:
        """Whether a request waits for room, or may be here unseen."""
        return self._is_behind or self._waiting is not None

    @property
    def is_receiving(self) -> bool:
        """Whether a large frame is on its way, for which there is or will be room."""
        return self._session.decoder.large_frame_bytes > 0 and not self.echo.is_awaited

    def late_ms(self, now: float) -> int:
        """Return the time within which a frame should have come; 0 while it may come yet."""
        return self._patience.late_ms(now) if self.is_reading else 0

    def received(self, count: int) -> None:
        """Handle the frames that are complete by `count` more bytes, when it is their turn."""
        if not self._session.buffer_updated(count):
            self._expect_frame()
            self._expect_more()
            return
        self.received_at = asyncio.get_running_loop().time()
        self._is_behind = True
        self.go_on()

    def begin(self, frame: Frame) -> None:
        """Serve a request as soon as there is room for it."""
        held = self._intake.begin(memory_bytes(frame))
        if held.is_waiting:
            self._waiting = frame, held
        else:
            self._peer.serve(frame, held)

    def go_on(self) -> None:
        """Handle what is here if there is room, and read more once that is done.

        Memory that is given back may let many connections continue at once. These connections take
        turns, so that the rest of the server runs between them.
        """
        if self._has_turn:
            return
        if self._is_due:
            self._has_turn = True
            self._turns.enter(self._take_turn)
        self._update_reading()

    def close(self) -> None:
        """The connection is closed: nothing is handled any longer."""
        self._is_closed = True
        if self._waiting is not None:
            self._waiting[1].end()
            self._waiting = None
        self._is_behind = False
        if self._quota_timer is not None:
            self._quota_timer.cancel()
        self._intake.close()
        self.echo.end()

    @property
    def _may_go_on(self) -> bool:
        return (
            self._intake.may_read
            and self._outgoing.has_room
            and not self.echo.is_awaited
            and self._allowance.is_open
        )

    @property
    def _is_granted(self) -> bool:
        """Whether there is room by now for the request that waited for it."""
        return self._waiting is not None and not self._intake.is_waiting

    @property
    def _is_due(self) -> bool:
        """Whether there is something to handle, and room for it."""
        return self._is_granted or (self._is_behind and self._may_go_on)

    def _take_turn(self) -> bool:
        """Handle the next frame; whether there may be another one to handle now."""
        try:
            if self._is_granted:
                self._serve_granted()
            elif self._is_behind:
                self._handle_next()
        except Exception:  # noqa: BLE001 - other connections still get their turn
            _LOG.exception("disconnected, a frame could not be handled peer=%s", self._peer.name)
            self._is_behind = False
            self._outgoing.abort()
        self._has_turn = self._is_due
        if not self._has_turn:
            self._update_reading()
            self._peer.note_rest()
        return self._has_turn

    def _serve_granted(self) -> None:
        if self._waiting is None:
            return
        (frame, held), self._waiting = self._waiting, None
        if self._outgoing.abort_if_broken():
            held.end()
        else:
            self._peer.serve(frame, held)

    def _handle_next(self) -> None:
        event, self._kept = self._kept or next(self._session.events(), None), None
        if event is not None and not self._peer.on_event(event):
            self._kept = event
            return
        if event is None or not self._session.decoder.is_mid_frame:
            self._is_behind = False
            self._expect_frame()
            self._expect_more()
            self._patience.note_progress(self._clock.monotonic())

    def _expect_frame(self) -> None:
        """Claim the room of a frame that outgrows the receive buffer; for a PING, of its echo."""
        size = self._session.decoder.large_frame_bytes
        is_ping = size and self._session.decoder.awaited_opcode == Opcode.PING
        if is_ping and not self.echo.may_receive(size):
            self.go_on()
        else:
            self._intake.expect_frame(size)

    def _on_echo_room(self) -> None:
        if not self._is_closed:
            self._expect_frame()
            self.go_on()

    def _expect_more(self) -> None:
        if self._socket is not None:
            self._socket.receiving.expect(self._session.decoder.missing_bytes)

    def _await_quota(self) -> None:
        """Look again when there may be memory, or debt may be paid off; rules change, so often."""
        self._allowance.when_memory(self._look_at_quota)
        wait_seconds = self._allowance.maybe_wait_seconds()
        if wait_seconds is not None and self._quota_timer is None:
            self._quota_timer = asyncio.get_running_loop().call_later(
                min(wait_seconds, LOOK_SECONDS), self._look_at_quota
            )

    def _look_at_quota(self) -> None:
        if self._quota_timer is not None:
            self._quota_timer.cancel()
            self._quota_timer = None
        self._allowance.look()
        self.received_at = asyncio.get_running_loop().time()
        self.go_on()

    def _update_reading(self) -> None:
        outgoing = self._outgoing
        if not self._allowance.is_open and not self._is_closed:
            self._await_quota()
        if not outgoing.has_room and outgoing.is_writable and not self._is_closed:
            self._unread.when_read(self.go_on)
        wanted = self._may_go_on and not self._is_behind
        if self._transport is None or wanted == self.is_reading or self._transport.is_closing():
            return
        self.is_reading = wanted
        if wanted:
            self._patience.resume(self._clock.monotonic())
            self._transport.resume_reading()
        else:
            self._patience.pause(self._clock.monotonic())
            self._transport.pause_reading()


class FramePatience:
    """The time that a peer has for the frame that is awaited, while its socket is read.

    Without a clock: times are seconds that the connection passes as `now`.
    """

    def __init__(self, session: Connection, intake: Intake, now: float) -> None:
        self._session = session
        self._intake = intake
        self._since: float | None = now
        self._paused_at = now
        self._seen_frame_count = 0
        self._mark: tuple[float, int] | None = None
        """A frame that others wait for: when it was looked at, and how much of it had arrived."""

    def note_progress(self, now: float) -> None:
        """Note when the frame began of which a part is here, if there is one."""
        frame_count = self._session.decoder.frame_count
        has_completed = frame_count > self._seen_frame_count
        self._seen_frame_count = frame_count
        if not frame_count:
            return
        if not self._session.decoder.is_mid_frame:
            self._since = None
        elif has_completed or self._since is None:
            self._since = now

    def pause(self, now: float) -> None:
        """The server does not read."""
        self._paused_at = now

    def resume(self, now: float) -> None:
        """Read again: the pause was not the peer's."""
        if self._since is not None:
            self._since += now - self._paused_at

    def late_ms(self, now: float) -> int:
        """Return the time within which the frame should have come; 0 while it may come yet."""
        if self._is_stalled(now):
            return limits.FRAME_STALLED_MS
        if self._intake.is_in_the_way:
            frames = max(1, self._session.decoder.large_frame_bytes / limits.FRAME_BYTES_MAX)
            bound_ms = min(round(frames * limits.FRAME_CONTENDED_MS), limits.FRAME_COMPLETION_MS)
        elif self._session.decoder.frame_count:
            bound_ms = limits.FRAME_COMPLETION_MS
        else:
            bound_ms = limits.FIRST_FRAME_MS
        return bound_ms if is_overdue(self._since, now, bound_ms) else 0

    def _is_stalled(self, now: float) -> bool:
        """Whether others wait for memory that a frame holds which hardly comes any further."""
        if not self._intake.is_in_the_way:
            self._mark = None
            return False
        here_bytes = self._session.decoder.pending_bytes
        if self._mark is not None:
            since, were_bytes = self._mark
            if here_bytes == were_bytes:  # a receiver is woken up for RECEIVE_WAKE_BYTES
                return is_overdue(since, now, limits.FRAME_STALLED_MS)
        self._mark = now, here_bytes
        return False


def is_overdue(since: float | None, now: float, bound_ms: int) -> bool:
    """Whether more than `bound_ms` passed; never while `since` is None."""
    return since is not None and now - since > bound_ms / 1000
