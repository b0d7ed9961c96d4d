"""What one connection holds of the server's memory, and whether it may send more.

Requests count until they are done, and so does a frame that outgrows the receive buffer: its room
is claimed as soon as that is full. A length that is announced, but not sent, costs nothing. A
smaller request claims its room when it is there. Until a claim is granted nothing more of the
connection is looked at.
"""

from __future__ import annotations

from collections.abc import Callable

from sbp_core import limits
from sbp_core.server.budget import Account, Budget, Charge, Lane, Place
from sbp_core.wire.frame import Frame

_SMALL, _LARGE = Lane
_RELEASED = Place.RELEASED


def memory_bytes(request: Frame) -> int:
    """Return what a request counts for until it is decoded, at least."""
    decoded = limits.HEADER_IN_FLIGHT_FACTOR * len(request.header)
    decoded = min(decoded, limits.HEADER_IN_FLIGHT_BYTES_MAX)
    return decoded + len(request.payload) + limits.REQUEST_OVERHEAD_BYTES


class Held:
    """What one request counts for, until it is done."""

    __slots__ = ("_charge", "_intake")

    def __init__(self, intake: Intake, charge: Charge) -> None:
        self._intake = intake
        self._charge = charge

    @property
    def size(self) -> int:
        """Bytes that it counts for."""
        return self._charge.size

    @property
    def is_waiting(self) -> bool:
        """Whether there is no room for it yet."""
        return self._charge.is_waiting

    def settle(self, size: int) -> None:
        """Let it count for `size` bytes from now on."""
        self._intake.settle(self._charge, size)

    def yield_for_others(self, on_wanted: Callable[[], None]) -> None:
        """Call `on_wanted`, at most once, when others wait for memory of which this holds some.

        What fits in the connection's own share keeps nobody waiting.
        """
        self._intake.yield_for_others(self._charge, on_wanted)

    def end(self) -> None:
        """Give everything back; of no effect the second time."""
        self._intake.end(self._charge)


class Intake:
    """The bytes of one connection; `on_change` is called when `may_read` may have changed."""

    def __init__(self, budget: Budget, on_change: Callable[[], None], *, address: str = "") -> None:
        self._budget = budget
        self._on_change = on_change
        self._account = Account(address)
        self._request_bytes = 0
        self._small_bytes = 0
        half = max(limits.FRAME_BYTES_MAX, budget.bytes_max // 2)
        self._bytes_max = min(limits.CONNECTION_IN_FLIGHT_BYTES_MAX, half)
        self._frame: Charge | None = None
        self._waiting: Charge | None = None
        """Of the frame or of a request."""

    @property
    def is_waiting(self) -> bool:
        """Whether a frame or a request waits for room."""
        return self._waiting is not None

    @property
    def may_read(self) -> bool:
        """Whether there is room for more of what the peer sends."""
        return self._waiting is None and self._request_bytes <= self._bytes_max

    @property
    def is_in_the_way(self) -> bool:
        """Whether others wait for memory while this connection's frame holds some of it."""
        is_holding = self._frame is not None and self._waiting is None
        return is_holding and self._budget.is_contended

    def begin(self, size: int) -> Held:
        """A request of `size` bytes is there; while it waits for room it must not be worked on.

        For one that came as a large frame there is room already, but for what it takes besides.
        """
        could_read = self._waiting is None and self._request_bytes <= self._bytes_max
        charge = self._frame
        if charge is None:
            charge = self._claim(size, self._lane_of(size))
        else:
            self._frame = None
            self._budget.resize(charge, size)
        self._request_bytes += size
        if charge.lane is _SMALL:
            self._small_bytes += size
        if could_read and (self._waiting is not None or self._request_bytes > self._bytes_max):
            self._on_change()
        return Held(self, charge)

    def settle(self, charge: Charge, size: int) -> None:
        """A request turned out to count for `size` bytes; see `Held.settle`."""
        could_read = self.may_read
        self._count(charge, size - charge.size)
        self._budget.resize(charge, size)
        self._tell_if_changed(could_read=could_read)

    def end(self, charge: Charge) -> None:
        """It is done; see `Held.end`."""
        if charge.place is _RELEASED:
            return
        could_read = self._waiting is None and self._request_bytes <= self._bytes_max
        self._request_bytes -= charge.size
        if charge.lane is _SMALL:
            self._small_bytes -= charge.size
        if charge is self._waiting:
            self._waiting = None
        self._budget.release(charge)
        if not could_read and self.may_read:
            self._on_change()

    def yield_for_others(self, charge: Charge, on_wanted: Callable[[], None]) -> None:
        """Call `on_wanted` when others wait for memory; see `Held.yield_for_others`."""
        self._budget.yield_for_others(charge, on_wanted)

    def expect_frame(self, size: int) -> None:
        """A frame that is being received takes `size` bytes in all; 0 for none to speak of."""
        if size == (0 if self._frame is None else self._frame.size):
            return
        self._drop_frame()
        if size:
            self._frame = self._claim(size, _LARGE)
        self._on_change()

    def close(self) -> None:
        """No more is received; requests that are worked on still end one by one."""
        self._drop_frame()

    def _claim(self, size: int, lane: Lane) -> Charge:
        charge = self._budget.claim(self._account, size, lane, self._on_granted)
        if charge.is_waiting:
            self._waiting = charge
        return charge

    def _lane_of(self, size: int) -> Lane:
        """Return the lane of a request; many small ones of one connection are not small."""
        is_small = size <= limits.SMALL_REQUEST_BYTES_MAX
        has_few = self._small_bytes <= limits.CONNECTION_SMALL_BYTES_MAX
        return _SMALL if is_small and has_few else _LARGE

    def _count(self, charge: Charge, size: int) -> None:
        self._request_bytes += size
        if charge.lane is _SMALL:
            self._small_bytes += size

    def _tell_if_changed(self, *, could_read: bool) -> None:
        if self.may_read is not could_read:
            self._on_change()

    def _drop_frame(self) -> None:
        frame, self._frame = self._frame, None
        if frame is not None:
            if frame is self._waiting:
                self._waiting = None
            self._budget.release(frame)

    def _on_granted(self) -> None:
        self._waiting = None
        self._on_change()
