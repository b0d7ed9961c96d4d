"""What one connection holds of the server's memory, and whether it may send more.

Requests that are being worked on count, and so does a large frame while it is received: its room is
claimed when its length is known. A small request claims its room when it is there. Until a claim is
granted nothing more of the connection is looked at.
"""

from __future__ import annotations

from collections.abc import Callable

from sbp_core import limits
from sbp_core.server.budget import Budget, Claim
from sbp_core.wire.frame import Frame


def memory_bytes(request: Frame) -> int:
    """Return what a request counts for while it is worked on."""
    octets = limits.HEADER_IN_FLIGHT_FACTOR * len(request.header) + len(request.payload)
    return octets + limits.REQUEST_OVERHEAD_BYTES


class Intake:
    """The octets of one connection; `on_change` is called when `may_read` may have changed."""

    def __init__(self, budget: Budget, on_change: Callable[[], None]) -> None:
        self._budget = budget
        self._on_change = on_change
        self._request_bytes = 0
        self._frame_bytes = 0
        self._claim: Claim | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether a frame or a request waits for room."""
        return self._claim is not None

    @property
    def may_read(self) -> bool:
        """Whether there is room for more of what the peer sends."""
        is_small = self._request_bytes <= limits.CONNECTION_IN_FLIGHT_BYTES_MAX
        return is_small and self._claim is None

    @property
    def is_in_the_way(self) -> bool:
        """Whether others wait for memory while this connection's frame holds some of it."""
        return self._frame_bytes > 0 and self._claim is None and self._budget.is_contended

    def begin(self, size: int) -> None:
        """A request of `size` octets is there; while `is_waiting` it must not be worked on.

        For one that came as a large frame there is room already, but for what it takes besides.
        """
        could_read = self.may_read
        self._request_bytes += size
        if self._frame_bytes:
            self._budget.take(size)
            self._drop_frame()
        else:
            self._claim = self._budget.maybe_wait(size, self._on_granted)
        self._tell_if_changed(could_read=could_read)

    def end(self, size: int) -> None:
        """It is done."""
        could_read = self.may_read
        self._request_bytes -= size
        self._budget.give_back(size)
        self._tell_if_changed(could_read=could_read)

    def expect_frame(self, size: int) -> None:
        """A frame that is being received takes `size` octets in all; 0 for none to speak of."""
        if size == self._frame_bytes:
            return
        self._drop_frame()
        self._frame_bytes = size
        self._claim = self._budget.maybe_wait(size, self._on_granted)
        self._on_change()

    def close(self) -> None:
        """No more is received; requests that are worked on still end one by one."""
        self._drop_frame()

    def _tell_if_changed(self, *, could_read: bool) -> None:
        if self.may_read is not could_read:
            self._on_change()

    def _drop_frame(self) -> None:
        claim, self._claim = self._claim, None
        frame_bytes, self._frame_bytes = self._frame_bytes, 0
        if claim is not None:
            self._budget.withdraw(claim)
        elif frame_bytes:
            self._budget.give_back(frame_bytes)

    def _on_granted(self) -> None:
        self._claim = None
        self._on_change()
