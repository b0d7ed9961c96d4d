"""The connections of the blocking client."""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Callable

from sbp_core import limits
from sbp_core.client.blocking_connection import BlockingConnection
from sbp_core.client.connecting import Connecting
from sbp_core.client.conversation import Ticket
from sbp_core.client.program import Call
from sbp_core.client.timing import timed
from sbp_core.errors import ConnectError, SbpError
from sbp_core.wire.frame import Frame


class ConnectionPool:
    """One connection per endpoint, shared by all threads of this process.

    A connection that is of no more use (lost, going away, unresponsive, or idle for so long that
    the server may be closing it) is replaced at the next call. After a fork the child starts anew
    and leaves the parent's connections alone.
    """

    def __init__(
        self, connecting: Connecting, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._connecting = connecting
        self._clock = clock
        self._client_id = uuid.uuid4().hex
        self._connections: dict[str, BlockingConnection]
        self._retired: set[BlockingConnection]
        self._used_at: dict[str, float]
        self._start_anew()

    def start(
        self, call: Call, sink: Callable[[Frame | SbpError], None]
    ) -> tuple[BlockingConnection, Ticket]:
        """Send a call. Raises SbpError when it cannot be sent."""
        if self._connecting.on_timing is not None:
            sink = timed(call, sink, self._connecting.on_timing, self._clock)
        connection = self._acquire(call.endpoint)
        try:
            return connection, connection.start(call, sink)
        except SbpError:
            if connection.is_usable:
                raise
        connection = self._acquire(call.endpoint)
        return connection, connection.start(call, sink)

    def close(self) -> None:
        """End all connections; calls that are open fail, new ones are refused."""
        if os.getpid() != self._pid:
            self._start_anew()
        with self._lock:
            self._is_closed = True
            connections = [*self._connections.values(), *self._retired]
            self._connections.clear()
            self._retired.clear()
        for connection in connections:
            connection.close()

    def _start_anew(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._connections = {}
        self._retired = set()
        self._used_at = {}
        self._is_closed = False

    def _acquire(self, endpoint: str) -> BlockingConnection:
        if os.getpid() != self._pid:
            self._start_anew()
        now = self._clock()
        with self._lock:
            if self._is_closed:
                raise ConnectError(f"the client is closed; nothing was sent to {endpoint}")
            known = self._connections.get(endpoint)
            idle_seconds = now - self._used_at.get(endpoint, now)
            self._used_at[endpoint] = now
            if known is not None:
                if known.is_usable and idle_seconds < limits.IDLE_CONNECTION_MS / 2000:
                    return known
                known.retire()
                self._retired = {each for each in self._retired if not each.is_over} | {known}
            fresh = BlockingConnection(endpoint, self._client_id, self._connecting)
            self._connections[endpoint] = fresh
            return fresh
