"""The common part of the asyncio and the blocking transport: connections and open calls.

`Connections` decides which connection a call uses. `OpenCalls` has the calls of one running program
(programs/program.py), and their arrivals. Neither waits, and neither locks: that is where the two
transports differ.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable
from functools import lru_cache
from typing import Generic, Protocol, TypeVar

from sbp_core import limits
from sbp_core.client.io.answer_limits import Ticket
from sbp_core.client.programs.program import Arrival, Inbox, Receive
from sbp_core.client.types import parse_endpoint
from sbp_core.errors import ClientClosedError, SbpError
from sbp_core.sockets import is_own_address
from sbp_core.wire.opcodes import Opcode


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
    """A connection of either transport."""

    @property
    def is_usable(self) -> bool:
        """Whether new calls may be started."""

    @property
    def is_over(self) -> bool:
        """Whether its calls have ended and its socket is closed or closing."""

    def abandon(self, ticket: Ticket) -> None:
        """Stop listening to a call."""

    def extension_ms(self, ticket: Ticket) -> float:
        """Return the waits that the server asked for since the deadline of a call was set last."""

    def expire(self, ticket: Ticket, opcode: Opcode) -> SbpError:
        """Give up a call whose deadline passed, and the connection after its open calls."""

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


class OpenCalls(Generic[C]):
    """The calls of one running program: what arrives for them, and where they were sent."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.inbox = Inbox()
        self.sent: dict[int, tuple[C, Ticket, Opcode]] = {}
        """By number: the connection and the ticket of a call."""
        self._clock = clock

    def now_ms(self) -> float:
        """Return the time in ms."""
        return self._clock() * 1000

    def maybe_claim(self, wanted: Receive, now_ms: float) -> Arrival | None:
        """Return what has arrived, a call's timeout included; None if nothing has."""
        arrival = self.inbox.maybe_claim(wanted.numbers)
        if arrival is None and self.expire(now_ms):
            arrival = self.inbox.maybe_claim(wanted.numbers)
        return arrival

    def expire(self, now_ms: float) -> bool:
        """Give up the calls whose deadline passed; return whether there were any.

        A call that the server made wait by `throttle_time_ms` has that much longer.
        """
        has_expired = False
        for number in self.inbox.expired(now_ms):
            connection, ticket, opcode = self.sent[number]
            extension_ms = connection.extension_ms(ticket)
            if extension_ms > 0:
                self.inbox.extend(number, extension_ms)
                continue
            del self.sent[number]
            self.inbox.deliver(Arrival(number, connection.expire(ticket, opcode)))
            has_expired = True
        return has_expired

    def abandon(self, number: int) -> None:
        """Stop listening to a call."""
        self.inbox.abandon(number)
        if number in self.sent:
            connection, ticket, _ = self.sent.pop(number)
            connection.abandon(ticket)

    def close(self) -> None:
        """Stop listening to all calls."""
        for number in self.inbox.open_numbers:
            self.abandon(number)
