"""The memory that all connections of a server share for what they ask.

Each connection has a small share of its own, which no other can use: a request that fits there
never waits for others. All beyond comes from a pool with two lanes. Frames and requests that are
large leave a quarter of the pool to the small ones; these go first, and leave as much to large ones
that wait. So neither keeps the other waiting for good, and a lane of which nothing is taken lets
its next claim through in any case. Within a lane addresses take turns, and one address has three
quarters of the pool at most.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from sbp_core.session.states import Symbol

_SHARE: Final = 3, 4
"""Of the pool: what one lane has while the other one waits, and what one address has."""


class Lane(Symbol):
    """Which part of the pool a charge is taken from."""

    SMALL = "small"
    LARGE = "large"


class Place(Symbol):
    """Where the bytes of a charge are counted."""

    WAITING = "nowhere yet"
    OWN = "in the connection's own share"
    POOL = "in the pool"
    RELEASED = "nowhere any more"


_WAITING, _OWN, _POOL, _RELEASED = Place
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
    place: Place = _WAITING

    @property
    def is_waiting(self) -> bool:
        """Whether there is no room for it yet."""
        return self.place is _WAITING


class Budget:
    """At most `bytes_max` bytes in the pool, and `own_bytes_max` for each connection beside it.

    What is there already is counted even beyond that; then claims wait until enough was given back.
    """

    def __init__(self, bytes_max: int, *, own_bytes_max: int = 0) -> None:
        self._bytes_max = bytes_max
        self._own_bytes_max = own_bytes_max
        self._share_bytes = bytes_max * _SHARE[0] // _SHARE[1]
        self._taken_bytes = 0
        self._pool_bytes = 0
        self._lane_bytes = dict.fromkeys(Lane, 0)
        self._address_bytes: Counter[str] = Counter()
        self._queues: dict[Lane, OrderedDict[str, deque[Charge]]] = {
            lane: OrderedDict() for lane in Lane
        }
        self._waiting_count = 0
        self._yielding: dict[Charge, Callable[[], None]] = {}
        self._is_granting = False

    @property
    def bytes_max(self) -> int:
        """Bytes of the pool."""
        return self._bytes_max

    @property
    def taken_bytes(self) -> int:
        """Bytes in use, of the pool and of what connections have for themselves."""
        return self._taken_bytes

    @property
    def waiting_count(self) -> int:
        """Claims that wait."""
        return self._waiting_count

    @property
    def is_contended(self) -> bool:
        """Whether a claim waits."""
        return self._waiting_count > 0

    def claim(
        self, account: Account, size: int, lane: Lane, on_granted: Callable[[], None]
    ) -> Charge:
        """Return a charge of `size` bytes, which may have to wait."""
        charge = Charge(account, size, lane, on_granted)
        if account.own_bytes + size <= self._own_bytes_max:
            charge.place = _OWN
            account.own_bytes += size
            self._taken_bytes += size
        elif not self._queues[lane] and self._fits(charge):
            self._put(charge, _POOL)
        else:
            self._queues[lane].setdefault(account.address, deque()).append(charge)
            account.waiting.append(charge)
            self._waiting_count += 1
            self._ask_to_yield()
        return charge

    def resize(self, charge: Charge, size: int) -> None:
        """Count `size` bytes from now on: so much is there, whether or not there is room for it."""
        place = charge.place
        if place is _RELEASED or size == charge.size:
            return
        if place is _WAITING:
            charge.size = size
        else:
            self._take_out(charge)
            charge.size = size
            fits_own = charge.account.own_bytes + size <= self._own_bytes_max
            self._put(charge, _OWN if place is _OWN and fits_own else _POOL)
        if self._waiting_count:
            self._grant(charge.account)

    def release(self, charge: Charge) -> None:
        """Give the bytes back, or forget the claim; of no effect the second time."""
        place, account = charge.place, charge.account
        if place is _RELEASED:
            return
        if place is _OWN:
            account.own_bytes -= charge.size
            self._taken_bytes -= charge.size
        elif place is _WAITING:
            self._unqueue(charge)
        else:
            self._take_out(charge)
            if self._yielding:
                self._yielding.pop(charge, None)
        charge.place = _RELEASED
        if self._waiting_count:
            self._grant(account)

    def yield_for_others(self, charge: Charge, on_wanted: Callable[[], None]) -> None:
        """Call `on_wanted` when a claim has to wait while `charge` holds something of the pool."""
        if charge.place is _POOL:
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
        return self._pool_bytes + size <= self._bytes_max

    def _is_within_share(self, charge: Charge) -> bool:
        taken = self._address_bytes[charge.account.address]
        return not taken or taken + charge.size <= self._share_bytes

    def _put(self, charge: Charge, place: Place) -> None:
        charge.place = place
        self._taken_bytes += charge.size
        if place is _OWN:
            charge.account.own_bytes += charge.size
        else:
            self._count_in_pool(charge, charge.size)

    def _take_out(self, charge: Charge) -> None:
        self._taken_bytes -= charge.size
        if charge.place is _OWN:
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
        self._waiting_count -= 1

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

    def _let_in(self, charge: Charge, place: Place) -> None:
        self._put(charge, place)
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
