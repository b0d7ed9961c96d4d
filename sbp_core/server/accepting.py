"""Which connections a server accepts: limits for all of them, and for one address.

The last file descriptors of the process are reserved for its files: a log that cannot open its next
segment fails, while a client whose connection is refused retries. If the system has no descriptor
left, nothing is accepted for ACCEPT_PAUSE_MS; until then connections wait in the system's queue.

Each address has a limit, except the machine itself. When the server is full, a reserve is left for
addresses with few connections, and another for the machine itself: a program that fills the server
locks out neither the cluster nor its administrators. A connection that was sent GOAWAY, to make
room for another, no longer counts for its address, though it may take a moment to close.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import resource
import socket
from collections import Counter
from collections.abc import Callable
from typing import Final

from sbp_core import limits
from sbp_core.errors import ThrottledError
from sbp_core.settings.listening import Exposure, check_reach
from sbp_core.wording import counted

_LOG: Final = logging.getLogger(__name__)


class Acceptor:
    """Accepts connections; `on_accepted` gets each socket with the address that it comes from."""

    def __init__(self, on_accepted: Callable[[socket.socket, str], None]) -> None:
        self._on_accepted = on_accepted
        self._sockets: list[socket.socket] = []
        self._pauses: dict[socket.socket, asyncio.TimerHandle] = {}

    async def start(self, host: str, port: int, exposure: Exposure = Exposure.NOBODY) -> int:
        """Listen on all addresses of `host`; return the port of the first; 0 picks a free one.

        Raises OSError when one of them cannot be listened on, and ConfigurationError when other
        machines can reach one, and nobody may connect from these.
        """
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        exposed = check_reach(host, (str(each[4][0]) for each in found), exposure)
        if exposed and exposure is Exposure.ANYBODY:
            _LOG.warning(
                "insecure: listening on %s; clients are not authenticated, each that reaches this"
                " address can read, write and delete everything",
                ", ".join(exposed),
            )
        with contextlib.ExitStack() as opened:
            for family, _, _, _, address in dict.fromkeys(found):
                listening = socket.create_server(
                    address, family=family, backlog=limits.ACCEPT_BACKLOG
                )
                opened.enter_context(listening)
                listening.setblocking(False)
                self._sockets.append(listening)
            opened.pop_all()
        for listening in self._sockets:
            self._resume(listening)
        return int(self._sockets[0].getsockname()[1])

    def close(self) -> None:
        """Accept nothing more."""
        loop = asyncio.get_running_loop()
        for listening in self._sockets:
            if listening in self._pauses:
                self._pauses.pop(listening).cancel()
            loop.remove_reader(listening)
            listening.close()
        self._sockets.clear()

    def _resume(self, listening: socket.socket) -> None:
        self._pauses.pop(listening, None)
        asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    def _pause(self, listening: socket.socket, reason: OSError) -> None:
        _LOG.warning(
            "accept failed: %s; accepting again in %d ms", reason.strerror, limits.ACCEPT_PAUSE_MS
        )
        loop = asyncio.get_running_loop()
        loop.remove_reader(listening)
        self._pauses[listening] = loop.call_later(
            limits.ACCEPT_PAUSE_MS / 1000, self._resume, listening
        )

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(limits.ACCEPTS_PER_TURN_MAX):
            try:
                connection, address = listening.accept()
            except BlockingIOError:
                return
            except (InterruptedError, ConnectionAbortedError):
                continue
            except OSError as error:
                self._pause(listening, error)
                return
            connection.setblocking(False)
            self._on_accepted(connection, address[0])


def is_spare(connection: socket.socket) -> bool:
    """Whether a connection has one of the last descriptors of the process.

    The system gives out the lowest that is free, so all below are in use.
    """
    count, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if count == resource.RLIM_INFINITY:
        return False
    return connection.fileno() >= count - min(limits.DESCRIPTORS_RESERVED, count // 4)


def raise_descriptor_limit() -> None:
    """Let the process have as many descriptors as the system allows it."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


_NETWORK_BITS = 64
"""Bits of the network of an IPv6 address: a host usually has all addresses of its /64."""
_LOCAL_PART = 4
"""The reserve of the machine itself is as large as a quarter of that for other addresses."""


class Admission:
    """Counts the connections of each owner, which is an address or a network; see `owner_of`."""

    def __init__(
        self,
        per_address_max: int,
        *,
        connections_max: int = limits.CONNECTIONS_MAX,
        reserved: int = limits.CONNECTIONS_RESERVED,
    ) -> None:
        self._per_address_max = per_address_max
        self._connections_max = connections_max
        self._reserved = reserved
        self._counts: Counter[str] = Counter()
        self._leaving_count = 0

    @property
    def connection_count(self) -> int:
        """Open connections that were not sent GOAWAY."""
        return self._counts.total()

    def count_of(self, owner: str) -> int:
        """Return how many of these an owner has."""
        return self._counts[owner]

    @property
    def may_send_away(self) -> bool:
        """Whether one more connection may be sent GOAWAY before earlier ones have closed."""
        return self._leaving_count < limits.CONNECTIONS_LEAVING_MAX

    def is_full_for(self, owner: str) -> bool:
        """Whether an owner has as many connections as one may have."""
        is_bound = not ipaddress.ip_address(owner).is_loopback
        return is_bound and self._counts[owner] >= self._per_address_max

    def enter(self, owner: str) -> None:
        """Count a connection. Raises ThrottledError when it must be refused."""
        count = self._counts[owner]
        if self.is_full_for(owner):
            raise ThrottledError.of(
                f"{owner} has {counted(count, 'connection')} open already, the limit for one"
                " address: close some, or raise connections_per_address_max of the server"
            )
        if self.connection_count >= self._connections_max + self._reserve_for(owner):
            raise ThrottledError.of(
                f"the server has {counted(self.connection_count, 'connection')} open already, its"
                " limit; retry later, or close some"
            )
        self._counts[owner] += 1

    def send_away(self, owner: str) -> None:
        """Note that a connection was sent GOAWAY, to make room for another."""
        self._drop(owner)
        self._leaving_count += 1

    def leave(self, owner: str, *, was_sent_away: bool = False) -> None:
        """A connection that was counted is closed."""
        if was_sent_away:
            self._leaving_count -= 1
        else:
            self._drop(owner)

    def _reserve_for(self, owner: str) -> int:
        """Return how many connections beyond `connections_max` there may be, for this owner."""
        has_few = self._counts[owner] < limits.CONNECTIONS_RESERVED_PER_ADDRESS
        few = self._reserved if has_few else 0
        is_local = ipaddress.ip_address(owner).is_loopback
        return few + (local_reserve(self._reserved) if is_local else 0)

    def _drop(self, owner: str) -> None:
        self._counts[owner] -= 1
        if not self._counts[owner]:
            del self._counts[owner]


def local_reserve(reserved: int = limits.CONNECTIONS_RESERVED) -> int:
    """Return how many connections beyond all others there are for the machine itself."""
    return reserved // _LOCAL_PART


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
