"""The connection pool and the program runner of the blocking client."""

from __future__ import annotations

import os
import queue
import threading
import time
import uuid
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, TypeVar

from sbp_core import limits
from sbp_core.client.io.blocking_connection import BlockingConnection
from sbp_core.client.io.conversation import Ticket
from sbp_core.client.io.local_log import LocalLogs
from sbp_core.client.programs.program import (
    Abandon,
    Arrival,
    BatchesElsewhere,
    Call,
    Effect,
    Emit,
    Inbox,
    Now,
    Program,
    Receive,
    Start,
    timed,
)
from sbp_core.client.types import Connecting
from sbp_core.errors import ConnectError, SbpError
from sbp_core.wire.frame import Frame
from sbp_core.wire.opcodes import Opcode

T = TypeVar("T")


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

    def maybe_cluster_id(self, endpoint: str) -> str | None:
        """Return the cluster that a server named on its connection, None if there is none."""
        with self._lock:
            connection = self._connections.get(endpoint)
        return None if connection is None else connection.maybe_cluster_id

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


class BlockingRunner:
    """Executes one program: performs its effects with threads and sockets.

    With `maybe_logs` the batches of a FETCH may stay in files of this machine.
    """

    def __init__(
        self,
        pool: ConnectionPool,
        maybe_logs: LocalLogs | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pool = pool
        self._maybe_logs = maybe_logs
        self._clock = clock
        self._inbox = Inbox()
        self._tickets: dict[int, tuple[BlockingConnection, Ticket, Opcode]] = {}
        self._arrivals: queue.SimpleQueue[Arrival] = queue.SimpleQueue()

    def stream(self, program: Program[Any]) -> Generator[Any, Any, None]:
        """Run a program, yielding what it emits; it is given what is sent for it."""
        result: Any = None
        try:
            while True:
                try:
                    effect = program.send(result)
                except StopIteration:
                    return
                if isinstance(effect, Emit):
                    result = yield effect.value
                else:
                    result = self._perform(effect)
        finally:
            program.close()
            self._close()

    def run(self, program: Program[T]) -> T:
        """Run a program that emits nothing; return its result."""
        result: Any = None
        try:
            while True:
                try:
                    effect = program.send(result)
                except StopIteration as stop:
                    value: T = stop.value
                    return value
                result = self._perform(effect)
        finally:
            program.close()
            self._close()

    def _perform(self, effect: Effect) -> Any:
        if isinstance(effect, Start):
            return self._start(effect.call)
        if isinstance(effect, Receive):
            return self._receive(effect)
        if isinstance(effect, Now):
            return self._now_ms()
        if isinstance(effect, Abandon):
            self._abandon(effect.number)
        return None

    def _start(self, call: Call) -> int:
        number = self._inbox.open(self._now_ms() + call.timeout_ms)
        elsewhere: BatchesElsewhere | None = None
        if self._maybe_logs is not None:
            is_on_this_machine = partial(self._is_on_this_machine, number)
            call, elsewhere = self._maybe_logs.asking(call, is_on_this_machine)
        try:
            connection, ticket = self._pool.start(
                call, lambda content: self._arrivals.put(Arrival(number, content, elsewhere))
            )
        except SbpError as error:
            self._inbox.deliver(Arrival(number, error))
        else:
            self._tickets[number] = (connection, ticket, call.opcode)
        return number

    def _receive(self, wanted: Receive) -> Arrival | None:
        while True:
            while not self._arrivals.empty():
                self._inbox.deliver(self._arrivals.get())
            arrival = self._inbox.maybe_claim(wanted.numbers)
            if arrival is not None:
                return arrival
            now_ms = self._now_ms()
            for number in self._inbox.expired(now_ms):
                connection, ticket, opcode = self._tickets.pop(number)
                self._inbox.deliver(Arrival(number, connection.expire(ticket, opcode)))
            arrival = self._inbox.maybe_claim(wanted.numbers)
            if arrival is not None:
                return arrival
            if wanted.until_ms is not None and wanted.until_ms <= now_ms:
                return None
            wake_ms = self._inbox.maybe_wake_ms(wanted.until_ms)
            assert wake_ms is not None, "waiting for nothing"
            try:
                self._inbox.deliver(self._arrivals.get(timeout=(wake_ms - now_ms) / 1000))
            except queue.Empty:
                continue

    def _is_on_this_machine(self, number: int) -> bool:
        connection, _, _ = self._tickets[number]
        return connection.is_on_this_machine

    def _abandon(self, number: int) -> None:
        self._inbox.abandon(number)
        if number in self._tickets:
            connection, ticket, _ = self._tickets.pop(number)
            connection.abandon(ticket)

    def _close(self) -> None:
        for number in self._inbox.open_numbers:
            self._abandon(number)

    def _now_ms(self) -> float:
        return self._clock() * 1000
