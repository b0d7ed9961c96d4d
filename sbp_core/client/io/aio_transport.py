"""The transport of the client: the pool of its connections, and the calls of one operation.

Both belong to one event loop. Read operations/open_calls.py first, which describes the calls of an
operation.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
import time
import uuid
from collections import deque
from collections.abc import Callable, Collection
from functools import lru_cache
from typing import ClassVar, Self

from sbp_core import limits
from sbp_core.client.connecting import Connecting, parse_endpoint
from sbp_core.client.io.aio_connection import AsyncConnection
from sbp_core.client.io.answer_limits import Ticket
from sbp_core.client.operations.open_calls import Arrival, Call, Sink, timed
from sbp_core.errors import ClientClosedError, ConfigurationError, SbpError
from sbp_core.sockets import is_own_address
from sbp_core.tls import ready
from sbp_core.wire.opcodes import Opcode


@lru_cache(maxsize=1_000)
def is_own_endpoint(endpoint: str) -> bool:
    """Whether an endpoint is on this machine, by its address or this machine's name.

    Other names are not resolved, because that may block. Nothing is sent: connecting a UDP socket
    only asks the system for the route.
    """
    host, port = parse_endpoint(endpoint)
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host.lower() in {"localhost", socket.gethostname().lower()}
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((host, port))
            return is_own_address(probe)
    except OSError:
        return False


class AsyncPool:
    """The connections of one event loop at a time, one for each endpoint.

    The next call replaces a connection that is no longer usable: lost, after GOAWAY, unresponsive,
    or idle for so long that the server may be closing it. A second loop, such as the loop of
    another `asyncio.run`, starts without connections, and so does the child of a fork. Raises
    ConfigurationError if the files of TLS cannot be used.
    """

    _left: ClassVar[list[object]] = []
    """The connections of parent processes: garbage collection in a child would close them."""

    def __init__(
        self, connecting: Connecting, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._connecting = connecting
        if connecting.tls is not None:
            ready(connecting.tls)
        self._clock = clock
        self._client_id = uuid.uuid4().hex
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = os.getpid()
        self._by_endpoint: dict[str, AsyncConnection] = {}
        self._retired: set[AsyncConnection] = set()
        self._used_at: dict[str, float] = {}
        self._is_closed = False

    def start(self, call: Call, sink: Sink) -> tuple[AsyncConnection, Ticket]:
        """Send a call. Raises SbpError when it cannot be sent."""
        if self._connecting.on_timing is not None:
            sink = timed(call, sink, self._connecting.on_timing, self._clock)
        connection = self.acquire(call.endpoint)
        return connection, connection.start(call, sink)

    def open_calls(self) -> AsyncCalls:
        """Open the calls of an operation."""
        return AsyncCalls(self, self._clock)

    def acquire(self, endpoint: str) -> AsyncConnection:
        """Return the connection for a call that starts now; make it if there is none.

        Raises SbpError as `start` does, ConfigurationError while another loop uses the client,
        ClientClosedError after `close`.
        """
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._change_loop(loop)
        if self._is_closed:
            raise ClientClosedError(f"the client is closed; nothing was sent to {endpoint}")
        now = self._clock()
        known = self._by_endpoint.get(endpoint)
        idle_seconds = now - self._used_at.get(endpoint, now)
        self._used_at[endpoint] = now
        if known is not None:
            # Half of the time after which a server closes an idle connection, because a call that
            # is sent while the server closes the connection would be lost.
            if known.is_usable and idle_seconds < limits.IDLE_CONNECTION_MS / 2000:
                return known
            known.retire()
            self._retired = {each for each in self._retired if not each.is_over} | {known}
        fresh = AsyncConnection(endpoint, self._client_id, self._connecting)
        self._by_endpoint[endpoint] = fresh
        return fresh

    def _change_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        self._leave_parent()
        if self._loop is not None:
            if self._loop.is_running():
                raise ConfigurationError(
                    "another event loop uses this client now: connect once in each loop"
                )
            self._by_endpoint.clear()
            self._retired.clear()
        self._loop = loop

    def _leave_parent(self) -> None:
        """In the child of a fork, leave the connections of the parent alone."""
        if self._pid != os.getpid():
            self._left.append((self._by_endpoint, self._retired))
            self._by_endpoint, self._retired = {}, set()
            self._loop, self._pid = None, os.getpid()

    async def close(self) -> None:
        """End all connections; open calls fail, and new calls are refused.

        If the call is cancelled, the connections end nevertheless, and another `close` waits for
        them.
        """
        self._leave_parent()
        self._is_closed = True
        self._retired.update(self._by_endpoint.values())
        self._by_endpoint.clear()
        for connection in self._retired:
            connection.abort()
        await asyncio.gather(*(connection.close() for connection in list(self._retired)))


class AsyncCalls:
    """The open calls of one operation, on the running loop, and their arrivals."""

    def __init__(self, pool: AsyncPool, clock: Callable[[], float] = time.monotonic) -> None:
        self._pool = pool
        self._clock = clock
        self._count = 0
        self._deadlines: dict[int, float] = {}
        """The deadlines of calls whose last arrival is still to come, by number."""
        self._arrivals: deque[Arrival] = deque()
        """Arrivals that the operation has not asked for yet."""
        self._sent: dict[int, tuple[AsyncConnection, Ticket, Opcode]] = {}
        """The connection, ticket and opcode of each sent call, by number."""
        self._news: asyncio.Future[None] | None = None
        """Done when something arrives for the waiting operation, or at its deadline."""

    def now_ms(self) -> float:
        """Return the time in ms."""
        return self._clock() * 1000

    async def start(self, call: Call) -> int:
        """Send a call; return its number. Waits while the connection takes no more."""
        number = self._count
        self._count += 1
        self._deadlines[number] = self.now_ms() + call.timeout_ms
        try:
            connection, ticket = self._pool.start(
                call, lambda content: self._deliver(Arrival(number, content))
            )
        except SbpError as error:
            self._deliver(Arrival(number, error))
            return number
        self._sent[number] = (connection, ticket, call.opcode)
        if not connection.may_write:
            try:
                async with asyncio.timeout(call.timeout_ms / 1000):
                    await connection.drain()
            except TimeoutError:
                self._expire()
        return number

    async def receive(
        self, numbers: Collection[int], until_ms: float | None = None
    ) -> Arrival | None:
        """Wait for an answer to one of the calls; None at `until_ms`."""
        while True:
            arrival = self._maybe_claim(numbers)
            if arrival is None and self._expire():
                arrival = self._maybe_claim(numbers)
            if arrival is not None:
                return arrival
            if until_ms is not None and until_ms <= self.now_ms():
                return None
            await self._wait_for_news(until_ms)

    def abandon(self, number: int) -> None:
        """Stop listening to a call, and forget its arrivals."""
        self._deadlines.pop(number, None)
        self._arrivals = deque(each for each in self._arrivals if each.number != number)
        if number in self._sent:
            connection, ticket, _ = self._sent.pop(number)
            connection.abandon(ticket)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for number in [*self._deadlines]:
            self.abandon(number)

    def _maybe_claim(self, numbers: Collection[int]) -> Arrival | None:
        """Take out the oldest arrival of one of these calls."""
        for index, arrival in enumerate(self._arrivals):
            if arrival.number in numbers:
                del self._arrivals[index]
                return arrival
        return None

    def _expire(self) -> bool:
        """Give up the calls whose deadline passed; return whether there were any.

        The deadline of a call moves by the `throttle_time_ms` that the server asks for.
        """
        has_expired = False
        now_ms = self.now_ms()
        for number in [each for each, due_ms in self._deadlines.items() if due_ms <= now_ms]:
            connection, ticket, opcode = self._sent[number]
            extension_ms = connection.extension_ms(ticket)
            if extension_ms > 0:
                self._deadlines[number] += extension_ms
                continue
            self._deliver(Arrival(number, connection.expire(ticket, opcode)))
            has_expired = True
        return has_expired

    def _deliver(self, arrival: Arrival) -> None:
        """Keep an arrival, and wake the operation; an arrival for a closed call is dropped."""
        if arrival.number not in self._deadlines:
            return
        self._arrivals.append(arrival)
        if arrival.is_last:
            del self._deadlines[arrival.number]
            self._sent.pop(arrival.number, None)
        self._wake()

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    async def _wait_for_news(self, until_ms: float | None) -> None:
        """Wait until something arrives, a call has taken too long, or it is `until_ms`."""
        times = [*self._deadlines.values(), *(() if until_ms is None else (until_ms,))]
        assert times, "waiting for nothing"
        loop = asyncio.get_running_loop()
        self._news = loop.create_future()
        timer = loop.call_later((min(times) - self.now_ms()) / 1000, self._wake)
        try:
            await self._news
        finally:
            timer.cancel()
