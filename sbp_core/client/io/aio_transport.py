"""The asyncio transport of the client: connections, their pool, and the runner of programs.

All of it belongs to the event loop in which it was made. The protocol is in conversation.py, what
runners execute in programs/program.py: read these first.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import time
import uuid
from collections.abc import AsyncGenerator, Callable
from typing import Any, Final, TypeVar, cast

from sbp_core import limits
from sbp_core.client.io.conversation import (
    Conversation,
    Phase,
    Ticket,
    connect_failed,
    lost,
    unread,
)
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
    Sink,
    Start,
    timed,
)
from sbp_core.client.types import Connecting, parse_endpoint
from sbp_core.errors import ConnectError, SbpError
from sbp_core.sockets import AsyncSocket
from sbp_core.wire.checksum import Buffer
from sbp_core.wire.frame import Frame
from sbp_core.wire.opcodes import Opcode

T = TypeVar("T")

_LOG: Final = logging.getLogger(__name__)


class AsyncConnection(asyncio.BufferedProtocol):
    """A connection to `endpoint` that is being made while the first calls are queued already.

    `_ended` is done as soon as there is no socket any longer, and never will be. A connection that
    was just made is not cancelled but aborted: uvloop forgets `connection_lost` for one whose
    `create_connection` is cancelled after `connection_made`.
    """

    def __init__(self, endpoint: str, client_id: str, connecting: Connecting) -> None:
        self._address = parse_endpoint(endpoint)
        self._connect_seconds = connecting.timeout_ms / 1000
        self._conversation = Conversation(endpoint, client_id, connecting.all_wishes)
        self._queued: list[Buffer] = self._conversation.greeting()
        self._transport: asyncio.Transport | None = None
        self._socket: AsyncSocket | None = None
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._stall_timer: asyncio.TimerHandle | None = None
        self._connecting = self._loop.create_task(self._connect())

    @property
    def is_usable(self) -> bool:
        """Whether new calls may be started."""
        return self._conversation.is_usable

    @property
    def is_over(self) -> bool:
        """Whether its calls have ended and its socket is closed or closing."""
        return self._conversation.phase is Phase.CLOSED

    def start(self, call: Call, sink: Sink) -> Ticket:
        """Send a call, return its ticket. Raises SbpError when nothing was sent."""
        ticket, buffers = self._conversation.start(call, sink, self._unsent_bytes)
        self._send(buffers)
        return ticket

    @property
    def may_write(self) -> bool:
        """Whether `drain` would return at once."""
        return self._may_write.is_set()

    async def drain(self) -> None:
        """Wait until the transport wants more bytes, or the connection is over."""
        await self._may_write.wait()

    def abandon(self, ticket: Ticket) -> None:
        """Stop listening to a call."""
        self._conversation.abandon(ticket)
        self._close_if_finished()

    def expire(self, ticket: Ticket, opcode: Opcode) -> SbpError:
        """Give up a call whose deadline passed, and the connection after its open calls."""
        error = self._conversation.expire(ticket, opcode)
        self._close_if_finished()
        return error

    def retire(self) -> None:
        """Take no new calls, and close after the open ones."""
        self._conversation.retire()
        self._close_if_finished()

    def abort(self, reason: object = "closed by this client") -> None:
        """End the connection; open calls fail. Bytes not sent yet are dropped."""
        self._end(lost(self._conversation.endpoint, reason))
        if self._transport is not None:
            self._transport.abort()
        else:
            self._connecting.cancel()

    async def close(self) -> None:
        """Abort the connection, and return when its socket is closed, or soon."""
        self.abort()
        waiting = {self._connecting, self._ended}
        _, pending = await asyncio.wait(waiting, timeout=limits.CLOSE_TIMEOUT_MS / 1000)
        if pending:
            _LOG.warning(
                "connection not closed: server=%s waited_ms=%d; it is abandoned",
                self._conversation.endpoint,
                limits.CLOSE_TIMEOUT_MS,
            )

    # asyncio.BufferedProtocol.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send what is queued."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=limits.WRITE_BUFFER_HIGH_BYTES)
        self._socket = AsyncSocket(self._transport)
        if self._conversation.phase is Phase.CLOSED:
            self._transport.abort()
            return
        if self._conversation.phase is Phase.CONNECTING:
            self._conversation.phase = Phase.OPEN
        queued, self._queued = self._queued, []
        self._send(queued)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail what is open."""
        self._end(lost(self._conversation.endpoint, exc or "the server closed it"))
        self._note_ended()

    def pause_writing(self) -> None:
        """Let `drain` wait."""
        self._may_write.clear()

    def resume_writing(self) -> None:
        """Let `drain` return."""
        self._may_write.set()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where received bytes go."""
        del sizehint
        return self._conversation.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Take in received bytes."""
        if self._conversation.buffer_updated(nbytes):
            self._send(self._conversation.receive(self._unsent_bytes))
            self._close_if_finished()
        if self._socket is not None:
            self._socket.expect(self._conversation.missing_bytes)

    def eof_received(self) -> bool:
        """Close when the server does."""
        return False

    async def _connect(self) -> None:
        host, port = self._address
        deadline = self._loop.call_later(self._connect_seconds, self._on_connect_timeout)
        try:
            await self._loop.create_connection(lambda: self, host, port)
        except (OSError, UnicodeError) as failure:
            self._fail_to_connect(failure)
        except asyncio.CancelledError:  # from outside perhaps, with a connection just made
            self._end(lost(self._conversation.endpoint, "the making of it was cancelled"))
            self._transport = self._socket = None
            raise
        finally:
            deadline.cancel()
            if self._transport is None:
                self._note_ended()

    def _on_connect_timeout(self) -> None:
        if self._transport is None:
            self._fail_to_connect(TimeoutError())
            self._connecting.cancel()

    def _fail_to_connect(self, failure: Exception) -> None:
        self._end(connect_failed(self._conversation.endpoint, failure, self._connect_seconds))

    @property
    def _unsent_bytes(self) -> int:
        return sum(map(len, self._queued)) if self._socket is None else self._socket.unsent_bytes

    def _send(self, buffers: list[Buffer]) -> None:
        if self._conversation.phase is Phase.CLOSED:
            return
        if self._socket is None:
            self._queued += buffers
        elif buffers:
            self._socket.send(buffers)
            if self._stall_timer is None and self._socket.unsent_bytes:
                self._watch_for_stall(self._socket)

    def _watch_for_stall(self, sending: AsyncSocket) -> None:
        """Look later whether the server has read any of what waits to be sent."""
        sent_bytes = sending.sent_bytes

        def look() -> None:
            self._stall_timer = None
            if not sending.unsent_bytes or self._conversation.phase is Phase.CLOSED:
                return
            if sending.sent_bytes == sent_bytes:
                self.abort(unread(sending.unsent_bytes))
            else:
                self._watch_for_stall(sending)

        self._stall_timer = self._loop.call_later(limits.WRITE_STALL_MS / 1000, look)

    def _close_if_finished(self) -> None:
        if self._conversation.is_finished:
            self.abort()  # the unsent bytes are of calls that were given up

    def _note_ended(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
        if not self._ended.done():
            self._ended.set_result(None)

    def _end(self, error: SbpError) -> None:
        self._queued = []
        self._may_write.set()
        self._conversation.end(error)


class _Pause(enum.Enum):
    """Instead of a result: the loop goes on with something else before there is one."""

    LATER = enum.auto()


_LATER: Final = _Pause.LATER


class AsyncPool:
    """One connection per endpoint, for the tasks of one loop.

    A connection that is no longer usable (lost, going away, unresponsive, or idle for so long that
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
        """Done when something arrives for the program that waits, or at its deadline."""

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
