"""Accepts connections, bounds their number and patience, drains all of them at the end."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from typing import Final

from sbp_core import limits
from sbp_core.errors import ConfigurationError
from sbp_core.server.budget import Budget
from sbp_core.server.clock import Clock
from sbp_core.server.dispatch import Dispatcher, Handler
from sbp_core.server.peer import Peer
from sbp_core.wire.dialect import Speech
from sbp_core.wire.opcodes import Opcode

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
        idle_connection_ms: int = limits.IDLE_CONNECTION_MS,
    ) -> None:
        self._dispatcher = Dispatcher(handlers, speech=speech, clock=clock)
        self._server_name = speech.role.value
        self._clock = clock
        self._idle_seconds = idle_connection_ms / 1000
        self._budget = Budget(limits.SERVER_IN_FLIGHT_BYTES_MAX)
        self._connection_ids = itertools.count(1)
        self._peers: set[Peer] = set()
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None

    @property
    def connection_count(self) -> int:
        """Connections that are open now."""
        return len(self._peers)

    async def start(self, host: str, port: int) -> int:
        """Listen; return the port, which the system picks when `port` is 0.

        Raises ConfigurationError when the address cannot be had.
        """
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(self._accept, host, port, backlog=512)
        except OSError as error:
            raise ConfigurationError(
                f"the {self._server_name} cannot listen on {host}:{port}: {error.strerror}."
                " Choose another host or port (0 picks a free port)"
            ) from error
        self._sweeper = asyncio.create_task(self._sweep_for_ever())
        return int(self._server.sockets[0].getsockname()[1])

    async def drain(self, timeout_ms: int = limits.DRAIN_TIMEOUT_MS) -> None:
        """Stop accepting, send GOAWAY, let open calls finish within the time.

        What is not answered, or not read by the peer, by then is cut off.
        """
        if self._server is None:
            return
        self._server.close()
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

    def _accept(self) -> Peer:
        peer = Peer(
            self._dispatcher,
            self._clock,
            self._peers.discard,
            budget=self._budget,
            connection_id=next(self._connection_ids),
            is_full=self._is_full(),
        )
        self._peers.add(peer)
        return peer

    def _is_full(self) -> bool:
        return len(self._peers) >= limits.CONNECTIONS_MAX

    async def _sweep_for_ever(self) -> None:
        shortest_seconds = min(self._idle_seconds, limits.FRAME_CONTENDED_MS / 1000)
        while True:
            await asyncio.sleep(shortest_seconds / _SWEEPS_PER_BOUND)
            self.sweep()
