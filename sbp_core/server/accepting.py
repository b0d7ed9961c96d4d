"""Listening sockets: each connection is handed on, unless the system is short of descriptors.

The last descriptors of the process are kept for its files: a log that cannot open its next segment
dies, a connection that is refused comes back. Where the system has no descriptor at all, nothing is
accepted for ACCEPT_PAUSE_MS; until then connections wait in the system's queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import socket
from collections.abc import Callable
from typing import Final

from sbp_core import limits

_LOG: Final = logging.getLogger(__name__)


class Acceptor:
    """Accepts connections; `on_accepted` gets each socket with the address that it comes from."""

    def __init__(self, on_accepted: Callable[[socket.socket, str], None]) -> None:
        self._on_accepted = on_accepted
        self._sockets: list[socket.socket] = []
        self._pauses: dict[socket.socket, asyncio.TimerHandle] = {}

    async def start(self, host: str, port: int) -> int:
        """Listen on all addresses of `host`; return the port of the first, which 0 leaves open.

        Raises OSError when one of them cannot be had.
        """
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
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
        _LOG.warning("no connection can be accepted: %s; waiting", reason.strerror)
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
