"""Which connection a call uses: one for each endpoint, replaced when it ends."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable
from functools import lru_cache
from typing import Generic, Protocol, TypeVar

from sbp_core import limits
from sbp_core.client.types import parse_endpoint
from sbp_core.errors import ClientClosedError
from sbp_core.sockets import is_own_address


@lru_cache(maxsize=1_000)
def is_own_endpoint(endpoint: str) -> bool:
    """Whether an endpoint is on this machine, by its address or this machine's name.

    Other names are not resolved, which may block. Nothing is sent: a UDP socket that connects asks
    the system for the route only.
    """
    host, port = parse_endpoint(endpoint)
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host.lower() in {"localhost", socket.gethostname().lower()}
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((host, port))
            return is_own_address(probe)
    except OSError:
        return False


class ClientConnection(Protocol):
    """A connection, as the choice sees it."""

    @property
    def is_usable(self) -> bool:
        """Whether new calls may be started."""

    @property
    def is_over(self) -> bool:
        """Whether its calls have ended and its socket is closed or closing."""

    def retire(self) -> None:
        """Accept no new calls, and close after the open ones."""


C = TypeVar("C", bound=ClientConnection)


class Connections(Generic[C]):
    """One connection per endpoint, made by `make`; `clock` gives seconds.

    A connection that is no longer usable (lost, after GOAWAY, unresponsive, or idle for so long
    that the server may be closing it) is replaced at the next call.
    """

    def __init__(self, make: Callable[[str], C], clock: Callable[[], float]) -> None:
        self._make = make
        self._clock = clock
        self._by_endpoint: dict[str, C] = {}
        self._retired: set[C] = set()
        self._used_at: dict[str, float] = {}
        self._is_closed = False

    def acquire(self, endpoint: str) -> C:
        """Return a connection that accepts calls. Raises ClientClosedError after `close`."""
        if self._is_closed:
            raise ClientClosedError(f"the client is closed; nothing was sent to {endpoint}")
        now = self._clock()
        known = self._by_endpoint.get(endpoint)
        idle_seconds = now - self._used_at.get(endpoint, now)
        self._used_at[endpoint] = now
        if known is not None:
            # Half of the time after which a server closes an idle connection: a call that is sent
            # while the server closes it would be lost.
            if known.is_usable and idle_seconds < limits.IDLE_CONNECTION_MS / 2000:
                return known
            known.retire()
            self._retired = {each for each in self._retired if not each.is_over} | {known}
        fresh = self._by_endpoint[endpoint] = self._make(endpoint)
        return fresh

    def forget(self) -> None:
        """Leave all connections to a loop that has ended."""
        self._by_endpoint.clear()
        self._retired.clear()

    def close(self) -> list[C]:
        """Refuse new calls; return the connections that are to be closed, again if repeated."""
        self._is_closed = True
        self._retired.update(self._by_endpoint.values())
        self._by_endpoint.clear()
        return list(self._retired)
