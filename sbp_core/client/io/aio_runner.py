"""The connection pool and the program runner of the asyncio client."""

from __future__ import annotations

import asyncio
import enum
import time
import uuid
from collections.abc import AsyncGenerator, Callable
from typing import Any, Final, TypeVar

from sbp_core import limits
from sbp_core.client.io.aio_connection import AsyncConnection
from sbp_core.client.io.conversation import Ticket
from sbp_core.client.programs.program import (
    Abandon,
    Arrival,
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


class _Pause(enum.Enum):
    """Instead of a result: the loop goes on with something else before there is one."""

    LATER = enum.auto()


_LATER: Final = _Pause.LATER


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
        """End all connections; calls that are open fail, new ones are refused.

        If this is cancelled they end nevertheless; another close waits for them.
        """
        self._is_closed = True
        self._retired |= {*self._connections.values()}
        self._connections.clear()
        for connection in self._retired:
            connection.abort()
        await asyncio.gather(*(connection.close() for connection in self._retired))
        self._retired.clear()

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


class AsyncRunner:
    """Executes one program: performs its effects in the running loop."""

    def __init__(self, pool: AsyncPool, clock: Callable[[], float] = time.monotonic) -> None:
        self._pool = pool
        self._clock = clock
        self._inbox = Inbox()
        self._tickets: dict[int, tuple[AsyncConnection, Ticket, Opcode]] = {}
        self._news: asyncio.Future[None] | None = None
        """What the program waits for: it ends when something arrives, or it is time to look."""

    async def stream(self, program: Program[Any]) -> AsyncGenerator[Any, Any]:
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
                    continue
                result = self._perform(effect)
                if result is _LATER:
                    result = await self._wait(effect)
        finally:
            program.close()
            self._close()

    async def run(self, program: Program[T]) -> T:
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
                if result is _LATER:
                    result = await self._wait(effect)
        finally:
            program.close()
            self._close()

    def _perform(self, effect: Effect) -> Any:
        """Do what takes no waiting. Return the result, or _LATER."""
        if isinstance(effect, Start):
            return self._start(effect.call)
        if isinstance(effect, Receive):
            return self._maybe_claim(effect)
        if isinstance(effect, Now):
            return self._now_ms()
        if isinstance(effect, Abandon):
            self._abandon(effect.number)
        return None

    async def _wait(self, effect: Effect) -> Any:
        """Wait for the result that comes later."""
        if isinstance(effect, Start):
            return await self._drain(self._inbox.last_number, effect.call.timeout_ms)
        assert isinstance(effect, Receive)
        while (arrival := self._maybe_claim(effect)) is _LATER:
            await self._wait_for_news(effect.until_ms)
        return arrival

    def _start(self, call: Call) -> int | _Pause:
        number = self._inbox.open(self._now_ms() + call.timeout_ms)
        try:
            connection, ticket = self._pool.start(
                call, lambda content: self._deliver(Arrival(number, content))
            )
        except SbpError as error:
            self._inbox.deliver(Arrival(number, error))
            return number
        self._tickets[number] = (connection, ticket, call.opcode)
        return number if connection.may_write else _LATER

    async def _drain(self, number: int, timeout_ms: float) -> int:
        """Wait until the connection of a call takes more, or the call's time is over."""
        connection, _, _ = self._tickets[number]
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await connection.drain()
        except TimeoutError:
            self._expire(self._now_ms())
        return number

    def _deliver(self, arrival: Arrival) -> None:
        self._inbox.deliver(arrival)
        self._wake()

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    def _maybe_claim(self, wanted: Receive) -> Arrival | _Pause | None:
        """Return what has arrived; None when its time is over, _LATER while it is not."""
        arrival = self._inbox.maybe_claim(wanted.numbers)
        if arrival is not None:
            return arrival
        now_ms = self._now_ms()
        if self._expire(now_ms):
            return self._maybe_claim(wanted)
        is_over = wanted.until_ms is not None and wanted.until_ms <= now_ms
        return None if is_over else _LATER

    async def _wait_for_news(self, until_ms: float | None) -> None:
        """Wait until something arrives, a call has taken too long, or it is `until_ms`."""
        wake_ms = self._inbox.maybe_wake_ms(until_ms)
        assert wake_ms is not None, "waiting for nothing"
        loop = asyncio.get_running_loop()
        self._news = loop.create_future()
        timer = loop.call_later((wake_ms - self._now_ms()) / 1000, self._wake)
        try:
            await self._news
        finally:
            timer.cancel()

    def _expire(self, now_ms: float) -> bool:
        """Give up the calls whose deadline passed; whether there were any."""
        expired = self._inbox.expired(now_ms)
        for number in expired:
            connection, ticket, opcode = self._tickets.pop(number)
            self._inbox.deliver(Arrival(number, connection.expire(ticket, opcode)))
        return bool(expired)

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
