"""The blocking client: its connection pool, its program runner and its methods."""

from __future__ import annotations

import os
import queue
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from random import Random, SystemRandom
from types import TracebackType
from typing import Any, TypeVar

from sbp_core import limits
from sbp_core.client import append as appending
from sbp_core.client import calls, changes, cursors, lookup, metadata, placement, watching
from sbp_core.client import fetch as fetching
from sbp_core.client import reach as reaching
from sbp_core.client.blocking_connection import BlockingConnection
from sbp_core.client.calls import Context
from sbp_core.client.connecting import Connecting
from sbp_core.client.conversation import Ticket
from sbp_core.client.endpoint import parse_endpoint
from sbp_core.client.leader import PlacementDrivers
from sbp_core.client.program import (
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
)
from sbp_core.client.retry import RetryPolicy
from sbp_core.client.router import Router
from sbp_core.client.timing import timed
from sbp_core.client.types import (
    AppendItem,
    AppendOutcome,
    CursorInfo,
    FetchItem,
    FetchOutcome,
    GroupInfo,
    PlacementDriverInfo,
    RangeInfo,
    Reach,
    StreamBounds,
    StreamInfo,
    StreamSpec,
    StreamUpdate,
)
from sbp_core.client.watching import BoundsView
from sbp_core.client.writer import Writer
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
    """Executes one program: performs its effects with threads and sockets."""

    def __init__(self, pool: ConnectionPool, clock: Callable[[], float] = time.monotonic) -> None:
        self._pool = pool
        self._clock = clock
        self._inbox = Inbox()
        self._tickets: dict[int, tuple[BlockingConnection, Ticket, Opcode]] = {}
        self._arrivals: queue.SimpleQueue[Arrival] = queue.SimpleQueue()

    def stream(self, program: Program[Any]) -> Iterator[Any]:
        """Run a program, yielding what it emits."""
        result: Any = None
        try:
            while True:
                try:
                    effect = program.send(result)
                except StopIteration:
                    return
                if isinstance(effect, Emit):
                    yield effect.value
                    result = None
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
        try:
            connection, ticket = self._pool.start(
                call, lambda content: self._arrivals.put(Arrival(number, content))
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


class Client:
    """A blocking client of the cluster whose placement driver is at `endpoint` ("host:port").

    Threads may share it. Every call has a deadline of `timeout_ms`; failed calls are tried again
    as `retry` says, where that is safe. All methods raise SbpError.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        timeout_ms: int = limits.REQUEST_TIMEOUT_MS,
        connecting: Connecting | None = None,
        retry: RetryPolicy | None = None,
        random: Random | None = None,
    ) -> None:
        parse_endpoint(endpoint)
        self._context = Context(
            PlacementDrivers(endpoint),
            Router(),
            retry or RetryPolicy(),
            random or SystemRandom(),
            timeout_ms,
        )
        self._pool = ConnectionPool(connecting or Connecting())

    def placement_drivers(self) -> list[PlacementDriverInfo]:
        """Return the placement drivers of the cluster."""
        return self._run(calls.placement_drivers(self._context))

    def ping(self) -> float:
        """Return the time in ms of one round trip to the placement driver."""
        return self._run(calls.ping(self._context))

    def describe_streams(self, refs: Sequence[int | str]) -> list[StreamInfo]:
        """Return the metadata of streams given by id (int) or name (str), in that order.

        Raises NotFoundError naming all that are missing.
        """
        return self._run(metadata.describe_streams(self._context, refs))

    def list_streams(self) -> list[StreamInfo]:
        """Return all streams of the cluster, by id."""
        return self._run(metadata.list_streams(self._context))

    def create_streams(self, specs: Sequence[StreamSpec]) -> list[StreamInfo]:
        """Create streams; return them in the order of `specs`."""
        return self._run(metadata.create_streams(self._context, specs))

    def delete_streams(self, refs: Sequence[int | str]) -> None:
        """Delete streams given by id or name. Raises NotFoundError naming all that are missing."""
        self._run(metadata.delete_streams(self._context, refs))

    def update_streams(self, updates: Sequence[StreamUpdate]) -> list[StreamInfo]:
        """Change streams; return them as they are then, in the order of `updates`."""
        return self._run(changes.update_streams(self._context, updates))

    def trim_streams(self, offsets: Mapping[int, int]) -> dict[int, RangeInfo]:
        """Forget the records of streams, by id, below an offset; return their first ranges.

        Raises OffsetOutOfRangeError for an offset beyond the tail. Offsets never go back.
        """
        return self._run(changes.trim_streams(self._context, offsets))

    def seal_streams(self, stream_ids: Sequence[int]) -> dict[int, RangeInfo]:
        """Let streams, by id, go on in new ranges; return the new writable range of each."""
        return self._run(changes.seal_streams(self._context, stream_ids))

    def maybe_revision(self) -> int | None:
        """Return the revision of the placement driver's metadata, None if it counts none.

        It grows with every change of streams and ranges: as long as it is the same, so are they.
        """
        return self._run(placement.maybe_revision(self._context))

    def list_ranges(
        self, stream_ids: Sequence[int], *, as_of: int | None = None
    ) -> dict[int, tuple[RangeInfo, ...]]:
        """Return the ranges of each stream as the placement driver knows them now.

        It is not asked for what is known `as_of` a revision that it has just told.
        """
        return self._run(placement.list_ranges(self._context, stream_ids, as_of))

    def stream_bounds(self, stream_ids: Sequence[int]) -> list[StreamBounds]:
        """Return where each stream begins and ends now, in the order of `stream_ids`."""
        return self._run(placement.stream_bounds(self._context, stream_ids))

    def watch_bounds(
        self, stream_ids: Sequence[int], earlier: BoundsView | None = None
    ) -> BoundsView:
        """Return where streams begin and end now, for those who look again and again.

        `earlier` is what the last look returned: with it only what changed since is asked for.
        """
        return self._run(watching.watch_bounds(self._context, stream_ids, earlier))

    def reach(
        self,
        positions: Mapping[int, int | None],
        *,
        timeout_ms: int,
        spared: Mapping[str, SbpError],
    ) -> dict[int, Reach]:
        """Return how far streams, by id, can be read from a position, None: from the first record.

        Range servers that do not answer within `timeout_ms` are not waited for any longer. Those in
        `spared` are not asked at all: the error is what is known of them.
        """
        return self._run(reaching.reach(self._context, positions, timeout_ms, spared))

    def probe(self, endpoints: Collection[str], *, timeout_ms: int) -> dict[str, SbpError]:
        """Return the errors of those servers that do not answer a PING in time."""
        return self._run(reaching.probe(endpoints, timeout_ms))

    def lookup_offsets(
        self,
        timestamps: Mapping[int, int],
        *,
        start_offsets: Mapping[int, int] | None = None,
        timeout_ms: int | None = None,
    ) -> dict[int, int]:
        """Return for each stream, by id, where to start for what was appended since a time.

        Times in us (UTC), by the clocks of the range servers, which count in ms. The answer is the
        first record, in the order of offsets, that was appended then or later, or else the tail.
        Of a stream in `start_offsets` only records from there on count, and only the servers of
        ranges that end behind it are asked. With a `timeout_ms` servers are not waited for any
        longer: streams that they have ranges of are left out.
        """
        return self._run(
            lookup.lookup_offsets(self._context, timestamps, start_offsets or {}, timeout_ms)
        )

    def append_times(
        self, offsets: Mapping[int, int], *, timeout_ms: int | None = None
    ) -> dict[int, int | None]:
        """Return for each stream, by id, when the record at an offset was appended, in ms (UTC).

        If that one was trimmed, when the first one left was; None at the tail and beyond. With a
        `timeout_ms` streams whose servers take longer are left out.
        """
        return self._run(lookup.append_times(self._context, offsets, timeout_ms))

    def commit_cursors(self, group: str, offsets: Mapping[int, int]) -> None:
        """Remember the offsets that a consumer group reads next, by stream id; durably.

        They may go back. NO_CURSOR forgets one. Raises NotFoundError naming all missing streams.
        """
        self._run(cursors.commit_cursors(self._context, group, offsets))

    def describe_cursors(self, group: str, stream_ids: Sequence[int] = ()) -> list[CursorInfo]:
        """Return the cursors that a group has, all of them or those of the streams named."""
        return self._run(cursors.describe_cursors(self._context, group, stream_ids))

    def list_groups(self) -> list[GroupInfo]:
        """Return the consumer groups that have cursors, by name."""
        return self._run(cursors.list_groups(self._context))

    def append(
        self,
        items: Sequence[AppendItem],
        *,
        retry_unknown: bool = False,
        writer: Writer | None = None,
    ) -> list[AppendOutcome]:
        """Append batches, those of one stream in order; return where each landed.

        `retry_unknown`: try again also when a batch may have been appended already, which may
        append it twice. With a `writer` each is appended once, however often it is tried.
        """
        return self._run(
            appending.append(self._context, items, retry_unknown=retry_unknown, writer=writer)
        )

    def fetch(
        self, items: Sequence[FetchItem], *, max_wait_ms: int = 0, min_bytes: int = 1
    ) -> Iterator[FetchOutcome]:
        """Yield one outcome per item, as they come. Failures are outcomes with an error."""
        program = fetching.fetch(self._context, items, max_wait_ms=max_wait_ms, min_bytes=min_bytes)
        return BlockingRunner(self._pool).stream(program)

    def close(self) -> None:
        """Close all connections."""
        self._pool.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _run(self, program: Program[T]) -> T:
        return BlockingRunner(self._pool).run(program)
