"""TCP sockets of clients and servers: few system calls, few wake-ups, no copies.

A frame is sent with one call, whatever buffers it is made of. One of 1 MiB arrives in dozens of
pieces, and to wake up for a piece costs more than to copy it: where it is known how much is still
to come, the system is asked to wait for a good part of that.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import socket
import sys
from collections.abc import Sequence
from typing import Final

from sbp_core import limits
from sbp_core.wire.checksum import Buffer

BUFFERS_PER_CALL_MAX: Final = 512
"""Below every system's IOV_MAX."""
_TCP_INFO: Final = getattr(socket, "TCP_INFO", None) if sys.platform == "linux" else None
_TCP_ESTABLISHED: Final = 1
"""The first byte of TCP_INFO while neither end has closed the connection."""


class Receiving:
    """Sets how many bytes the system waits for before it wakes up the reader of `connected`.

    The socket must not block: a call that blocks and has a part of them already is not woken up
    for a rest that is smaller.
    """

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._wake_bytes = 1

    def expect(self, missing_bytes: int) -> None:
        """`missing_bytes` are left of the frame that is being received, 1 if that is not known."""
        wake_bytes = min(missing_bytes, limits.RECEIVE_WAKE_BYTES)
        if wake_bytes != self._wake_bytes:
            self._wake_bytes = wake_bytes
            # It is closed (a ValueError with uvloop), or the system does not support the option.
            with contextlib.suppress(OSError, ValueError):
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wake_bytes)


def is_own_address(connected: socket.socket) -> bool:
    """Whether the peer of a connection is this machine; see `maybe_own_address`."""
    return maybe_own_address(connected) is not None


def maybe_own_address(connected: socket.socket) -> str | None:
    """Return the `address_text` of a peer that has a loopback address, or that of this end.

    A system that connects to one of its own addresses does so from the same one.
    """
    try:
        (peer, port), own = connected.getpeername()[:2], connected.getsockname()[0]
        return address_text(peer, port) if peer == own or is_loopback(peer) else None
    except (OSError, ValueError):  # it is lost already, or no IP socket
        return None


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches an IP address. Raises ValueError if it is none."""
    return _parsed(address).is_loopback


def address_text(address: str, port: int) -> str:
    """Return the one spelling of an IP address and a port. Raises ValueError if it is none."""
    return f"{_parsed(address)}:{port}"


def wildcard_text(text: str) -> str:
    """Return the `address_text` of all addresses of that family, with the same port."""
    address, _, port = text.rpartition(":")
    return address_text("::" if ":" in address else "0.0.0.0", int(port))  # noqa: S104 - no listener


def _parsed(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Return an address; one of IPv4 that is mapped into IPv6 is of IPv4."""
    parsed = ipaddress.ip_address(address)
    return (isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped) or parsed


class AsyncSocket:
    """The TCP socket of an asyncio transport, which goes on doing what it cannot do at once."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._socket: socket.socket = transport.get_extra_info("socket")
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.receiving: Final = Receiving(self._socket)
        self._taken_bytes = 0

    @property
    def unsent_bytes(self) -> int:
        """Bytes that wait until the system takes them."""
        return self._transport.get_write_buffer_size()

    @property
    def sent_bytes(self) -> int:
        """Bytes that the system took, of all that it did not take at once."""
        return self._taken_bytes - self.unsent_bytes

    @property
    def is_broken(self) -> bool:
        """Whether the peer closed or reset the connection; for sockets that are not read.

        Systems other than Linux report a reset only.
        """
        try:
            if _TCP_INFO is None:
                return self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0
            (state,) = self._socket.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, 1)
        except (OSError, ValueError):  # it is closed
            return False
        return bool(state != _TCP_ESTABLISHED)

    def send(self, buffers: Sequence[Buffer]) -> int:
        """Send `buffers` in their order, or abort the connection.

        Return how many bytes the system did not take at once: these wait for the peer to read.
        """
        if self._transport.is_closing():
            return 0
        sent = 0
        if not self._transport.get_write_buffer_size():
            try:
                sent = os.writev(self._socket.fileno(), buffers[:BUFFERS_PER_CALL_MAX])
            except BlockingIOError:
                pass
            except OSError:
                self._transport.abort()
                return 0
        left = 0
        for part in buffers:
            if sent < len(part):
                left += len(part) - sent
                self._transport.write(memoryview(part)[sent:] if sent else part)
                self._taken_bytes += len(part) - sent
            sent = max(0, sent - len(part))
        return left
