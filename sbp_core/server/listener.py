"""Accepts connections, bounds their number and patience, drains all of them at the end."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import socket
from collections.abc import Mapping
from typing import Final

from sbp_core import limits
from sbp_core.errors import ConfigurationError, SbpError, StatusCode, ThrottledError
from sbp_core.server.accepting import Acceptor, is_spare
from sbp_core.server.admission import Admission
from sbp_core.server.budget import Budget
from sbp_core.server.clock import Clock
from sbp_core.server.dispatch import Dispatcher, Handler
from sbp_core.server.peer import Peer
from sbp_core.server.turns import Turns
from sbp_core.session.connection import Connection
from sbp_core.wire.dialect import Speech
from sbp_core.wire.opcodes import Opcode

_LOG: Final = logging.getLogger(__name__)

_SWEEPS_PER_BOUND: Final = 4
"""How often peers are looked at within the shortest time that one may take."""


class Listener:
    """A TCP listener that serves requests with the given handlers, as `speech` has it."""

    def __init__(
        self,
        handlers: Mapping[Opcode, Handler],
        *,
        speech: Speech,
        clock: Clock,
        connections_per_address_max: int = limits.CONNECTIONS_PER_ADDRESS_MAX,
        idle_connection_ms: int = limits.IDLE_CONNECTION_MS,
    ) -> None:
        self._dispatcher = Dispatcher(handlers, speech=speech, clock=clock)
        self._speech = speech
        self._clock = clock
        self._idle_seconds = idle_connection_ms / 1000
        self._budget = Budget(limits.SERVER_IN_FLIGHT_BYTES_MAX)
        self._turns = Turns()
        self._connection_ids = itertools.count(1)
        self._peers: set[Peer] = set()
        self._admission = Admission(connections_per_address_max)
        self._refused_count = 0
        """Connections since the last sweep."""
        self._acceptor: Acceptor | None = None
        self._connecting: set[asyncio.Task[None]] = set()
        self._sweeper: asyncio.Task[None] | None = None

    @property
    def connection_count(self) -> int:
        """Connections that are open now."""
        return len(self._peers)

    async def start(self, host: str, port: int) -> int:
        """Listen; return the port, which the system picks when `port` is 0.

        Raises ConfigurationError when the address cannot be had.
        """
        acceptor = Acceptor(self._on_accepted)
        try:
            bound_port = await acceptor.start(host, port)
        except OSError as error:
            raise ConfigurationError(
                f"the {self._speech.role.value} cannot listen on {host}:{port}: {error.strerror}."
                " Choose another host or port (0 picks a free port)"
            ) from error
        self._acceptor = acceptor
        self._sweeper = asyncio.create_task(self._sweep_for_ever())
        return bound_port

    async def drain(self, timeout_ms: int = limits.DRAIN_TIMEOUT_MS) -> None:
        """Stop accepting, send GOAWAY, let open calls finish within the time.

        What is not answered, or not read by the peer, by then is cut off.
        """
        if self._acceptor is None:
            return
        self._acceptor.close()
        if self._connecting:
            await asyncio.wait(self._connecting)
        if self._sweeper is not None:
            self._sweeper.cancel()
        peers = list(self._peers)
        for peer in peers:
            peer.go_away()
        finishing = {asyncio.create_task(peer.finish()): peer for peer in peers}
        if finishing:
            _, late = await asyncio.wait(finishing, timeout=timeout_ms / 1000)
            for task in late:
                task.cancel()
                finishing[task].abort()

    def sweep(self) -> None:
        """Close the connections of peers that kept the server waiting for too long."""
        for peer in list(self._peers):
            peer.close_if_overdue(self._idle_seconds)
        if self._refused_count:
            _LOG.warning("%d more connections were refused", self._refused_count)
            self._refused_count = 0

    def _on_accepted(self, connection: socket.socket, address: str) -> None:
        try:
            if is_spare(connection):
                raise ThrottledError(
                    StatusCode.TOO_MANY_REQUESTS, "the server can open only a few more files"
                )
            self._admission.enter(address)
        except ThrottledError as error:
            if not self._refused_count:
                _LOG.warning("a connection from %s is refused: %s", address, error)
            self._refused_count += 1
            self._turn_away(connection, error)
            return
        peer = Peer(
            self._dispatcher,
            self._clock,
            lambda closed: self._on_closed(closed, address),
            budget=self._budget,
            turns=self._turns,
            connection_id=next(self._connection_ids),
        )
        self._peers.add(peer)
        connecting = asyncio.create_task(self._connect(peer, connection, address))
        self._connecting.add(connecting)
        connecting.add_done_callback(self._connecting.discard)

    async def _connect(self, peer: Peer, connection: socket.socket, address: str) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(lambda: peer, connection)
        except OSError as error:
            _LOG.debug("%s: lost at once: %s", address, error)
            connection.close()
            self._on_closed(peer, address)

    def _on_closed(self, peer: Peer, address: str) -> None:
        self._peers.discard(peer)
        self._admission.leave(address)

    def _turn_away(self, connection: socket.socket, reason: SbpError) -> None:
        """Say why, and close; what the peer sent until then is not looked at."""
        farewell = Connection().send_farewell(self._speech.error(reason))
        with connection, contextlib.suppress(OSError):
            connection.send(b"".join(farewell))
            connection.shutdown(socket.SHUT_WR)
            connection.recv(limits.RECEIVE_BUFFER_BYTES)  # unread octets would reset it

    async def _sweep_for_ever(self) -> None:
        shortest_seconds = min(self._idle_seconds, limits.FRAME_CONTENDED_MS / 1000)
        while True:
            await asyncio.sleep(shortest_seconds / _SWEEPS_PER_BOUND)
            self.sweep()
