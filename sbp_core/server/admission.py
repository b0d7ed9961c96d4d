"""Which connections a server takes, by the address that they come from.

One address has so many at most, except the machine itself. When the server is full, some more are
there for addresses that have few, and some for the machine itself: a program that fills the server
keeps out neither its cluster nor its administrators. Connections that were sent away to make room
are not counted for their address any longer, though they may take a moment to go.
"""

from __future__ import annotations

import ipaddress
from collections import Counter

from sbp_core import limits
from sbp_core.errors import StatusCode, ThrottledError

_NETWORK_BITS = 64
"""Of an IPv6 address: whoever has one of such a network has all of them."""
_LOCAL_PART = 4
"""The reserve of the machine itself is as large as a quarter of that for other addresses."""


class Admission:
    """Counts the connections of each owner, which is an address or a network; see `owner_of`."""

    def __init__(self, per_address_max: int) -> None:
        self._per_address_max = per_address_max
        self._counts: Counter[str] = Counter()
        self._leaving_count = 0

    @property
    def connection_count(self) -> int:
        """Connections that are open now, without those that were sent away."""
        return self._counts.total()

    def count_of(self, owner: str) -> int:
        """Return how many of these an owner has."""
        return self._counts[owner]

    @property
    def may_send_away(self) -> bool:
        """Whether one more may be sent away before others are gone."""
        return self._leaving_count < limits.CONNECTIONS_LEAVING_MAX

    def is_full_for(self, owner: str) -> bool:
        """Whether an owner has as many connections as one may have."""
        is_bound = not ipaddress.ip_address(owner).is_loopback
        return is_bound and self._counts[owner] >= self._per_address_max

    def enter(self, owner: str) -> None:
        """Count a connection. Raises ThrottledError when it must not be taken."""
        count = self._counts[owner]
        if self.is_full_for(owner):
            raise ThrottledError(
                StatusCode.TOO_MANY_REQUESTS,
                f"{owner} has {count} connections open already, and no more are taken from one"
                " address (connections_per_address_max)",
            )
        if self.connection_count >= limits.CONNECTIONS_MAX + self._reserve_for(owner):
            raise ThrottledError(
                StatusCode.TOO_MANY_REQUESTS,
                f"the server has {self.connection_count} connections open already",
            )
        self._counts[owner] += 1

    def send_away(self, owner: str) -> None:
        """A connection was told to leave, so that another one can have its place."""
        self._drop(owner)
        self._leaving_count += 1

    def leave(self, owner: str, *, was_sent_away: bool = False) -> None:
        """A connection that was counted is closed."""
        if was_sent_away:
            self._leaving_count -= 1
        else:
            self._drop(owner)

    def _reserve_for(self, owner: str) -> int:
        """Return how many connections beyond CONNECTIONS_MAX there may be, if it gets the next."""
        has_few = self._counts[owner] < limits.CONNECTIONS_RESERVED_PER_ADDRESS
        few = limits.CONNECTIONS_RESERVED if has_few else 0
        is_local = ipaddress.ip_address(owner).is_loopback
        return few + (local_reserve() if is_local else 0)

    def _drop(self, owner: str) -> None:
        self._counts[owner] -= 1
        if not self._counts[owner]:
            del self._counts[owner]


def local_reserve() -> int:
    """Return how many connections beyond all others there are for the machine itself."""
    return limits.CONNECTIONS_RESERVED // _LOCAL_PART


def owner_of(address: str) -> str:
    """Return the owner of connections from an address: itself in one spelling, or its network."""
    parsed = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    if parsed.is_loopback:
        return str(parsed)
    return str(ipaddress.ip_network((parsed, _NETWORK_BITS), strict=False).network_address)
