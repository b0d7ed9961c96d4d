"""The connections of the asyncio client."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable

from sbp_core import limits
from sbp_core.client.aio_connection import AsyncConnection
from sbp_core.client.connecting import Connecting
from sbp_core.client.conversation import Ticket
from sbp_core.client.program import Call
from sbp_core.client.timing import timed
from sbp_core.errors import ConnectError, SbpError
from sbp_core.wire.frame import Frame


class AsyncPool:
    """One connection per endpoint, for the tasks of one loop.

    A connection that is of no more use (lost, going away, unresponsive, or idle for so long that
    the server may be closing it) is replaced at the next call.
    """

    def __init__(
        self, connecting: Connecting, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._connecting = connecting
        self._clock = clock
        self._client_id = uuid.uuid4().hex
        self._connections: dict[str, AsyncConnection] = {}
        self._retired: set[AsyncConnection] = set()
        self._used_at: dict[str, float] = {}
        self._is_closed = False

    def start(
        self, call: Call, sink: Callable[[Frame | SbpError], None]
    ) -> tuple[AsyncConnection, Ticket]:
        """Send a call. Raises SbpError when it cannot be sent."""
        if self._connecting.on_timing is not None:
            sink = timed(call, sink, self._connecting.on_timing, self._clock)
        connection = self._acquire(call.endpoint)
        return connection, connection.start(call, sink)

    async def close(self) -> None:
        """End all connections; calls that are open fail, new ones are refused."""
        self._is_closed = True
        connections = [*self._connections.values(), *self._retired]
        self._connections.clear()
        self._retired.clear()
        await asyncio.gather(*(connection.close() for connection in connections))

    def _acquire(self, endpoint: str) -> AsyncConnection:
        if self._is_closed:
            raise ConnectError(f"the client is closed; nothing was sent to {endpoint}")
        now = self._clock()
        known = self._connections.get(endpoint)
        idle_seconds = now - self._used_at.get(endpoint, now)
        self._used_at[endpoint] = now
        if known is not None:
            if known.is_usable and idle_seconds < limits.IDLE_CONNECTION_MS / 2000:
                return known
            known.retire()
            self._retired = {each for each in self._retired if not each.is_over} | {known}
        fresh = AsyncConnection(endpoint, self._client_id, self._connecting)
        self._connections[endpoint] = fresh
        return fresh
