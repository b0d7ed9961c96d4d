"""Which connections a server takes, by the address that they come from.

One address has so many at most, except the machine itself. When the server is full, some more are
there for addresses that have few: whoever fills the server from a handful of addresses keeps out
neither its cluster nor its administrators.
"""

from __future__ import annotations

import ipaddress
from collections import Counter

from sbp_core import limits
from sbp_core.errors import StatusCode, ThrottledError

_NETWORK_BITS = 64
"""Of an IPv6 address: whoever has one of such a network has all of them."""


class Admission:
    """Counts the connections of each address."""

    def __init__(self, per_address_max: int) -> None:
        self._per_address_max = per_address_max
        self._counts: Counter[str] = Counter()

    @property
    def connection_count(self) -> int:
        """Connections that are open now."""
        return self._counts.total()

    def enter(self, address: str) -> None:
        """Count a connection. Raises ThrottledError when it must not be taken."""
        owner = _owner_of(address)
        count = self._counts[owner]
        if count >= self._per_address_max and not ipaddress.ip_address(owner).is_loopback:
            raise ThrottledError(
                StatusCode.TOO_MANY_REQUESTS,
                f"{owner} has {count} connections open already, and no more are taken from one"
                " address (connections_per_address_max)",
            )
        has_few = count < limits.CONNECTIONS_RESERVED_PER_ADDRESS
        room = limits.CONNECTIONS_MAX + (limits.CONNECTIONS_RESERVED if has_few else 0)
        if self.connection_count >= room:
            raise ThrottledError(
                StatusCode.TOO_MANY_REQUESTS,
                f"the server has {self.connection_count} connections open already",
            )
        self._counts[owner] += 1

    def leave(self, address: str) -> None:
        """A connection that was counted is closed."""
        owner = _owner_of(address)
        self._counts[owner] -= 1
        if not self._counts[owner]:
            del self._counts[owner]


def _owner_of(address: str) -> str:
    """Return whom connections from an address are counted for, in one spelling."""
    parsed = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    if parsed.is_loopback:
        return str(parsed)
    return str(ipaddress.ip_network((parsed, _NETWORK_BITS), strict=False).network_address)
