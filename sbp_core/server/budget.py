"""The memory that requests take, shared by all connections of a server.

Each connection has a small share of its own, which no other connection can use: a request that fits
into it never waits. Everything else comes from a pool with two lanes. Large frames and requests
leave a quarter of the pool to the small ones. Small ones are served first, and leave a quarter to
large ones that wait. So neither lane starves the other; a claim of a lane that holds nothing is
always granted. Within a lane, addresses take turns, and one address gets three quarters of the pool
at most.

`Budget` has the pool. `Intake` is one connection: its requests count until they are done, and so
does a frame that outgrows the receive buffer, whose memory is claimed as soon as that buffer is
full. A length that is announced but not sent costs nothing. Until a claim is granted, nothing more
of the connection is read.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from sbp_core import limits
from sbp_core.record_sizes import DEFAULT, RecordSizes
from sbp_core.session.states import Symbol
from sbp_core.wire.frame import Frame

_SHARE: Final = 3, 4
"""Share of the pool that a lane has while the other one waits, and that an address has."""


class Lane(Symbol):
    """Which part of the pool a charge is taken from."""

    SMALL = "small"
    LARGE = "large"


class ChargeState(Symbol):
    """Where the bytes of a charge are counted."""

    WAITING = "nowhere yet"
    OWN = "in the connection's own share"
    POOL = "in the pool"
    RELEASED = "nowhere: it was given back"


_WAITING, _OWN, _POOL, _RELEASED = ChargeState
_SMALL, _LARGE = Lane
"""As plain names: to look up a member of an enumeration is slow."""


@dataclass(slots=True, eq=False)
class Account:
    """One connection of `address`: what is taken of its own share, and its claims that wait."""

    address: str = ""
    own_bytes: int = 0
    waiting: list[Charge] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Charge:
    """Bytes that a connection holds, or waits for: then `on_granted` is called, once."""

    account: Account
    size: int
    lane: Lane
    on_granted: Callable[[], None]
    state: ChargeState = _WAITING

    @property
    def is_waiting(self) -> bool:
        """Whether there is no room for it yet."""
        return self.state is _WAITING


class Budget:
    """At most `bytes_max` bytes in the pool, and `own_bytes_max` for each connection beside it.

    Bytes that arrived already count even beyond that; then claims wait until enough was freed.
    """

    def __init__(self, bytes_max: int, *, own_bytes_max: int = 0) -> None:
        self.bytes_max: Final = bytes_max
        self._own_bytes_max = own_bytes_max
        self._share_bytes = bytes_max * _SHARE[0] // _SHARE[1]
        self.taken_bytes = 0
        """Bytes in use, of the pool and of what connections have for themselves."""
        self._pool_bytes = 0
        self._lane_bytes = dict.fromkeys(Lane, 0)
        self._address_bytes: Counter[str] = Counter()
        self._queues: dict[Lane, OrderedDict[str, deque[Charge]]] = {
            lane: OrderedDict() for lane in Lane
        }
        self.waiting_count = 0
        """Claims that wait."""
        self._yielding: dict[Charge, Callable[[], None]] = {}
        self._is_granting = False

    @property
    def is_contended(self) -> bool:
        """Whether a claim waits."""
        return self.waiting_count > 0

    def claim(
        self, account: Account, size: int, lane: Lane, on_granted: Callable[[], None]
    ) -> Charge:
        """Return a charge of `size` bytes, which may have to wait."""
        charge = Charge(account, size, lane, on_granted)
        if account.own_bytes + size <= self._own_bytes_max:
            charge.state = _OWN
            account.own_bytes += size
            self.taken_bytes += size
        elif not self._queues[lane] and self._fits(charge):
            self._put(charge, _POOL)
        else:
            self._queues[lane].setdefault(account.address, deque()).append(charge)
            account.waiting.append(charge)
            self.waiting_count += 1
            self._ask_to_yield()
        return charge

    def resize(self, charge: Charge, size: int) -> None:
        """Count `size` bytes from now on, even if there is no room for them: they are there."""
        state = charge.state
        if state is _RELEASED or size == charge.size:
            return
        if state is _WAITING:
            charge.size = size
        else:
            self._take_out(charge)
            charge.size = size
            fits_own = charge.account.own_bytes + size <= self._own_bytes_max
            self._put(charge, _OWN if state is _OWN and fits_own else _POOL)
        if self.waiting_count:
            self._grant(charge.account)

    def release(self, charge: Charge) -> None:
        """Give the bytes back, or forget the claim; of no effect the second time."""
        state, account = charge.state, charge.account
        if state is _RELEASED:
            return
        if state is _OWN:
            account.own_bytes -= charge.size
            self.taken_bytes -= charge.size
        elif state is _WAITING:
            self._unqueue(charge)
        else:
            self._take_out(charge)
            if self._yielding:
                self._yielding.pop(charge, None)
        charge.state = _RELEASED
        if self.waiting_count:
            self._grant(account)

    def yield_for_others(self, charge: Charge, on_wanted: Callable[[], None]) -> None:
        """Call `on_wanted` when a claim has to wait while `charge` holds something of the pool."""
        if charge.state is _POOL:
            self._yielding[charge] = on_wanted
            if self.is_contended:
                self._ask_to_yield()

    def _ask_to_yield(self) -> None:
        yielding, self._yielding = self._yielding, {}
        for on_wanted in yielding.values():
            on_wanted()

    def _fits(self, charge: Charge) -> bool:
        lane, size = charge.lane, charge.size
        if not self._lane_bytes[lane]:
            return True
        return self._has_room(lane, size) and self._is_within_share(charge)

    def _has_room(self, lane: Lane, size: int) -> bool:
        is_bound = lane is _LARGE or bool(self._queues[_LARGE])
        if is_bound and self._lane_bytes[lane] + size > self._share_bytes:
            return False
        return self._pool_bytes + size <= self.bytes_max

    def _is_within_share(self, charge: Charge) -> bool:
        taken = self._address_bytes[charge.account.address]
        return not taken or taken + charge.size <= self._share_bytes

    def _put(self, charge: Charge, state: ChargeState) -> None:
        charge.state = state
        self.taken_bytes += charge.size
        if state is _OWN:
            charge.account.own_bytes += charge.size
        else:
            self._count_in_pool(charge, charge.size)

    def _take_out(self, charge: Charge) -> None:
        self.taken_bytes -= charge.size
        if charge.state is _OWN:
            charge.account.own_bytes -= charge.size
        else:
            self._count_in_pool(charge, -charge.size)

    def _count_in_pool(self, charge: Charge, size: int) -> None:
        self._pool_bytes += size
        self._lane_bytes[charge.lane] += size
        address = charge.account.address
        self._address_bytes[address] += size
        if not self._address_bytes[address]:
            del self._address_bytes[address]

    def _unqueue(self, charge: Charge) -> None:
        queues, address = self._queues[charge.lane], charge.account.address
        queues[address].remove(charge)
        if not queues[address]:
            del queues[address]
        charge.account.waiting.remove(charge)
        self.waiting_count -= 1

    def _grant(self, freed: Account) -> None:
        """Grant what fits now; a claim that is granted may give back at once."""
        if self._is_granting:
            return
        self._is_granting = True
        try:
            for charge in [*freed.waiting]:
                if charge.is_waiting and freed.own_bytes + charge.size <= self._own_bytes_max:
                    self._unqueue(charge)
                    self._let_in(charge, _OWN)
            while (next_charge := self._maybe_next()) is not None:
                self._let_in(next_charge, _POOL)
        finally:
            self._is_granting = False

    def _let_in(self, charge: Charge, state: ChargeState) -> None:
        self._put(charge, state)
        charge.on_granted()

    def _maybe_next(self) -> Charge | None:
        """Take the next claim that fits from its queue; its address is the last one after that."""
        for lane in Lane:
            queues = self._queues[lane]
            for address, queue in queues.items():
                charge = queue[0]
                if self._fits(charge):
                    self._unqueue(charge)
                    if address in queues:
                        queues.move_to_end(address)
                    return charge
                if not self._has_room(lane, charge.size):
                    break
        return None


def memory_bytes(request: Frame) -> int:
    """Return what a request counts for until it is decoded, at least."""
    decoded = limits.HEADER_IN_FLIGHT_FACTOR * len(request.header)
    decoded = min(decoded, limits.HEADER_IN_FLIGHT_BYTES_MAX)
    return decoded + len(request.payload) + limits.REQUEST_OVERHEAD_BYTES


class Held:
    """The weight of one request, until it is done."""

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

        A request within the connection's own share never makes others wait.
        """
        self._intake.budget.yield_for_others(self._charge, on_wanted)

    def end(self) -> None:
        """Give everything back; of no effect the second time."""
        self._intake.end(self._charge)


class Intake:
    """The bytes of one connection; `on_change` is called when `may_read` may have changed.

    `on_hold` is called with the bytes by which its requests take more, or less if they are below 0.
    """

    def __init__(
        self,
        budget: Budget,
        on_change: Callable[[], None],
        *,
        address: str = "",
        sizes: RecordSizes = DEFAULT,
        on_hold: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.budget: Final = budget
        self._on_change = on_change
        self._on_hold = on_hold
        self._account = Account(address)
        self._request_bytes = 0
        self._small_bytes = 0
        half = max(sizes.frame_bytes, budget.bytes_max // 2)
        self._bytes_max = min(sizes.connection_in_flight_bytes, half)
        self._frame: Charge | None = None
        self._waiting: Charge | None = None
        """Bytes of the frame or of a request."""

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
        return is_holding and self.budget.is_contended

    def begin(self, size: int) -> Held:
        """A request of `size` bytes is there; while it waits for room it must not be worked on.

        A request that came as a large frame has its room already, except for its overhead.
        """
        could_read = self._waiting is None and self._request_bytes <= self._bytes_max
        charge = self._frame
        if charge is None:
            charge = self._claim(size, self._lane_of(size))
        else:
            self._frame = None
            self.budget.resize(charge, size)
        self._request_bytes += size
        self._on_hold(size)
        if charge.lane is _SMALL:
            self._small_bytes += size
        if could_read and (self._waiting is not None or self._request_bytes > self._bytes_max):
            self._on_change()
        return Held(self, charge)

    def settle(self, charge: Charge, size: int) -> None:
        """A request turned out to count for `size` bytes; see `Held.settle`."""
        could_read = self.may_read
        self._request_bytes += size - charge.size
        self._on_hold(size - charge.size)
        if charge.lane is _SMALL:
            self._small_bytes += size - charge.size
        self.budget.resize(charge, size)
        if self.may_read is not could_read:
            self._on_change()

    def end(self, charge: Charge) -> None:
        """End the use of memory; see `Held.end`."""
        if charge.state is _RELEASED:
            return
        could_read = self._waiting is None and self._request_bytes <= self._bytes_max
        self._request_bytes -= charge.size
        if charge.lane is _SMALL:
            self._small_bytes -= charge.size
        if charge is self._waiting:
            self._waiting = None
        try:
            self.budget.release(charge)
        finally:  # a waiter that is granted memory may fail: its failure is not of this connection
            self._on_hold(-charge.size)
        if not could_read and self.may_read:
            self._on_change()

    def expect_frame(self, size: int) -> None:
        """A frame that is being received takes `size` bytes in all; 0 for none to speak of."""
        if size == (0 if self._frame is None else self._frame.size):
            return
        self._drop_frame()
        if size:
            self._frame = self._claim(size, _LARGE)
        self._on_change()

    def close(self) -> None:
        """Stop receiving; requests in progress still end one by one."""
        self._drop_frame()

    def _claim(self, size: int, lane: Lane) -> Charge:
        charge = self.budget.claim(self._account, size, lane, self._on_granted)
        if charge.is_waiting:
            self._waiting = charge
        return charge

    def _lane_of(self, size: int) -> Lane:
        """Return the lane of a request; many small ones of one connection are not small."""
        is_small = size <= limits.SMALL_REQUEST_BYTES_MAX
        has_few = self._small_bytes <= limits.CONNECTION_SMALL_BYTES_MAX
        return _SMALL if is_small and has_few else _LARGE

    def _drop_frame(self) -> None:
        frame, self._frame = self._frame, None
        if frame is not None:
            if frame is self._waiting:
                self._waiting = None
            self.budget.release(frame)

    def _on_granted(self) -> None:
        self._waiting = None
        self._on_change()
