"""How long a server waits for a connection's next frame, and what makes a connection spare.

Without I/O and without a clock: times are seconds that the connection passes as `now`.
"""

from __future__ import annotations

from sbp_core import limits
from sbp_core.server.intake import Intake
from sbp_core.session.connection import Connection


class FramePatience:
    """The time that a peer has for the frame that is awaited; while it is read, that is."""

    def __init__(self, session: Connection, intake: Intake, now: float) -> None:
        self._session = session
        self._intake = intake
        self._since: float | None = now
        self._paused_at = now
        self._seen_frame_count = 0
        self._mark: tuple[float, int] | None = None
        """Of a frame in the way of others: when it was looked at, and how much of it was there."""

    def note_progress(self, now: float) -> None:
        """Note when the frame began of which a part is here, if there is one."""
        frame_count = self._session.received_frame_count
        has_completed = frame_count > self._seen_frame_count
        self._seen_frame_count = frame_count
        if not frame_count:
            return
        if not self._session.is_mid_frame:
            self._since = None
        elif has_completed or self._since is None:
            self._since = now

    def pause(self, now: float) -> None:
        """The server does not read."""
        self._paused_at = now

    def resume(self, now: float) -> None:
        """It reads again; the pause was not the peer's."""
        if self._since is not None:
            self._since += now - self._paused_at

    def late_ms(self, now: float) -> int:
        """Return the time within which the frame should have come; 0 while it may come yet."""
        if self._is_stalled(now):
            return limits.FRAME_STALLED_MS
        if self._intake.is_in_the_way:
            bound_ms = limits.FRAME_CONTENDED_MS
        elif self._session.received_frame_count:
            bound_ms = limits.FRAME_COMPLETION_MS
        else:
            bound_ms = limits.FIRST_FRAME_MS
        return bound_ms if is_overdue(self._since, now, bound_ms) else 0

    def _is_stalled(self, now: float) -> bool:
        """Whether others wait for memory that a frame holds which hardly comes any further."""
        if not self._intake.is_in_the_way:
            self._mark = None
            return False
        here_bytes = self._session.pending_bytes
        if self._mark is not None:
            since, were_bytes = self._mark
            if here_bytes == were_bytes:  # a receiver is woken up for RECEIVE_WAKE_BYTES
                return is_overdue(since, now, limits.FRAME_STALLED_MS)
        self._mark = now, here_bytes
        return False


class Use:
    """When a connection was used last. PING and the HEARTBEAT of a client are no use of it."""

    def __init__(self, now: float) -> None:
        self._at = now
        self._was_used = False

    def note(self, now: float) -> None:
        """A request begins or ends."""
        self._at = now
        self._was_used = True

    def idle_ms(self, now: float) -> float:
        """Return for how long nothing was asked for, in ms."""
        return 1000 * (now - self._at)

    def spare_ms(self, now: float) -> float:
        """Return for how long a newcomer could have had its place, in ms; negative before that."""
        spared_ms = limits.SPARED_CONNECTION_MS if self._was_used else limits.UNUSED_CONNECTION_MS
        return self.idle_ms(now) - spared_ms


def is_overdue(since: float | None, now: float, bound_ms: int) -> bool:
    """Whether more than `bound_ms` passed; never while `since` is None."""
    return since is not None and now - since > bound_ms / 1000
