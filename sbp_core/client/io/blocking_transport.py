"""The blocking transport of the client: connections, their pool, and the runner of programs.

A connection has a thread that does its I/O; callers are in any other thread. The protocol is in
conversation.py, what runners execute in programs/program.py: read these first.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import selectors
import socket
import ssl
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Generator
from typing import Any, Final, TypeVar

from sbp_core import limits
from sbp_core.client.io.answer_limits import Ticket
from sbp_core.client.io.connection_errors import connect_failed, lost, unread
from sbp_core.client.io.conversation import Conversation, Phase
from sbp_core.client.io.running import Connections, OpenCalls
from sbp_core.client.programs.program import (
    Abandon,
    Arrival,
    Call,
    Effect,
    Emit,
    Now,
    Program,
    Receive,
    Sink,
    Start,
    timed,
)
from sbp_core.client.types import Connecting, parse_endpoint
from sbp_core.errors import SbpError
from sbp_core.sockets import BUFFERS_PER_CALL_MAX, Receiving
from sbp_core.tls import Channel, ready
from sbp_core.tls_errors import PlainTextError, tls_error
from sbp_core.wire.checksum import Buffer
from sbp_core.wire.opcodes import Opcode

T = TypeVar("T")

_ENCRYPTED_BYTES: Final = limits.RECEIVE_WAKE_BYTES
"""Bytes that are received at a time with TLS, before they are decrypted."""


class BlockingConnection:
    """A connection to `endpoint` that is being made while the first calls are queued already.

    The thread connects, greets, receives, and sends what a caller's thread could not send at
    once. Callers never wait for the network here: answers and failures go to their sinks.
    """

    def __init__(self, endpoint: str, client_id: str, connecting: Connecting) -> None:
        self._address = parse_endpoint(endpoint)
        self._connect_seconds = connecting.timeout_ms / 1000
        self._tls = connecting.tls
        self._channel: Channel | None = None
        """With TLS, once the handshake is over; what is in `_outgoing` is sealed by then."""
        self._encrypted = memoryview(b"" if self._tls is None else bytearray(_ENCRYPTED_BYTES))
        self._conversation = Conversation(
            *(endpoint, client_id, connecting.all_wishes, connecting.credentials),
            identity=connecting.shown_identity,
        )
        self._lock = threading.Lock()
        self._outgoing: deque[memoryview] = deque(
            memoryview(each) for each in self._conversation.greeting()
        )
        self._unsent_bytes = sum(map(len, self._outgoing))
        self._progress_at = 0.0
        """When the system last took something, or had taken all."""
        self._socket: socket.socket | None = None
        self._waker, self._woken = socket.socketpair()
        self._waker.setblocking(False)
        self._is_closing = False
        self._thread = threading.Thread(
            target=self._run, name=f"sbp-client {endpoint}", daemon=True
        )
        self._thread.start()

    @property
    def is_usable(self) -> bool:
        """Whether new calls may be started."""
        return self._conversation.is_usable and not self._is_closing

    @property
    def is_over(self) -> bool:
        """Whether its calls have ended and its socket is closed or closing."""
        return self._conversation.phase is Phase.CLOSED

    def start(self, call: Call, sink: Sink) -> Ticket:
        """Send a call, return its ticket. Raises SbpError when nothing was sent."""
        with self._lock:
            ticket, buffers = self._conversation.start(call, sink, self._unsent_bytes)
            self._send(buffers)
            return ticket

    def abandon(self, ticket: Ticket) -> None:
        """Stop listening to a call."""
        with self._lock:
            self._conversation.abandon(ticket)
            self._close_if_finished()

    def extension_ms(self, ticket: Ticket) -> float:
        """Return the waits that the server asked for since the deadline of a call was set last."""
        with self._lock:
            return self._conversation.extension_ms(ticket)

    def expire(self, ticket: Ticket, opcode: Opcode) -> SbpError:
        """Give up a call whose deadline passed, and the connection after its open calls."""
        with self._lock:
            error = self._conversation.expire(ticket, opcode)
            self._close_if_finished()
            return error

    def retire(self) -> None:
        """Accept no new calls, and close after the open ones."""
        with self._lock:
            self._conversation.retire()
            self._close_if_finished()

    def close(self) -> None:
        """End the connection; open calls fail. Returns soon, also when the network hangs."""
        with self._lock:
            self._is_closing = True
            self._wake()
        if threading.current_thread() is not self._thread:
            self._thread.join(limits.CLOSE_TIMEOUT_MS / 1000)

    # With the lock held.

    def _send(self, buffers: list[Buffer]) -> None:
        if self._channel is not None and buffers:
            try:
                buffers = list(self._channel.seal(buffers))
            except ssl.SSLError as failure:  # what was received has ended the session
                self._conversation.end(lost(self._conversation.endpoint, failure))
                self._close_if_finished()
                return
        was_empty = not self._outgoing
        self._outgoing.extend(memoryview(each) for each in buffers if len(each))
        self._unsent_bytes += sum(map(len, buffers))
        if was_empty:
            self._progress_at = time.monotonic()
        if self._socket is None or not was_empty:
            return
        try:
            self._flush(self._socket)
        except OSError:
            self._wake()  # the thread meets the same error, and fails the open calls
            return
        if self._outgoing:
            self._wake()

    def _flush(self, connected: socket.socket) -> None:
        """Send as much as the system takes now."""
        while self._outgoing:
            batch = list(itertools.islice(self._outgoing, BUFFERS_PER_CALL_MAX))
            try:
                sent = connected.sendmsg(batch)
            except BlockingIOError:
                return
            self._unsent_bytes -= sent
            self._progress_at = time.monotonic()
            while sent and sent >= len(self._outgoing[0]):
                sent -= len(self._outgoing.popleft())
            if sent:
                self._outgoing[0] = self._outgoing[0][sent:]

    def _close_if_finished(self) -> None:
        if self._conversation.is_finished:
            self._is_closing = True
            self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            self._waker.send(b"!")

    # In the connection's own thread.

    def _run(self) -> None:
        connected: socket.socket | None = None
        error: SbpError = lost(self._conversation.endpoint, "closed by this client")
        try:
            connected = self._connect()
            self._serve(connected)
        except SbpError as failure:
            error = failure
        except (ssl.SSLError, PlainTextError) as failure:
            error = lost(self._conversation.endpoint, failure)
            if self._channel is None or not self._channel.has_received:
                error = tls_error(self._conversation.endpoint, self._address[0], failure)
        except OSError as failure:
            error = lost(self._conversation.endpoint, failure)
        finally:
            with self._lock:
                self._socket = None
                self._outgoing.clear()
                self._unsent_bytes = 0
                self._conversation.end(error)
                for each in (connected, self._waker, self._woken):
                    if each is not None:
                        each.close()

    def _connect(self) -> socket.socket:
        try:
            connected = socket.create_connection(self._address, self._connect_seconds)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except (OSError, UnicodeError) as failure:
            endpoint = self._conversation.endpoint
            raise connect_failed(endpoint, failure, self._connect_seconds) from failure
        if self._tls is not None:
            try:
                self._shake_hands(connected, ready(self._tls).client_channel(self._address[0]))
            except BaseException:
                connected.close()
                raise
        connected.setblocking(False)
        return connected

    def _shake_hands(self, connected: socket.socket, channel: Channel) -> None:
        """Begin TLS, and seal what is queued. Raises SbpError, SSLError or PlainTextError."""
        endpoint, deadline = self._conversation.endpoint, time.monotonic() + self._connect_seconds
        try:
            is_over = channel.shake_hands()
            while True:
                connected.settimeout(max(0.001, deadline - time.monotonic()))
                connected.sendall(channel.take())
                if is_over:
                    break
                received = connected.recv(limits.RECEIVE_BUFFER_BYTES)
                if not received:
                    raise ConnectionResetError(
                        "it ended the connection before a TLS session, as a full server does"
                    )
                channel.feed(memoryview(received))
                is_over = channel.shake_hands()
        except ssl.SSLError:
            with contextlib.suppress(OSError):
                connected.sendall(channel.take())  # an alert, for the log of the server
            raise
        except OSError as failure:
            raise connect_failed(endpoint, failure, self._connect_seconds) from failure
        with self._lock:
            queued: list[Buffer] = [*self._outgoing]
            self._outgoing.clear()
            self._unsent_bytes = 0
            self._channel = channel
            self._send(queued)  # there is no socket yet

    def _serve(self, connected: socket.socket) -> None:
        """Move bytes until the connection ends. Raises OSError or SbpError saying why."""
        with self._lock:
            self._socket = connected
            if self._conversation.phase is Phase.CONNECTING:
                self._send(self._conversation.on_connected())
            self._progress_at = time.monotonic()
            self._flush(connected)
        with selectors.PollSelector() as selector:  # no kernel state that a fork would share
            selector.register(self._woken, selectors.EVENT_READ)
            selector.register(connected, selectors.EVENT_READ)
            receiving = Receiving(connected, self._channel)
            while not self._is_closing:
                interest = selectors.EVENT_READ
                if self._outgoing:
                    interest |= selectors.EVENT_WRITE
                selector.modify(connected, interest)
                for key, _ in selector.select(self._maybe_wait_seconds()):
                    if key.fileobj is self._woken:
                        self._woken.recv(limits.KIB)
                if self._outgoing or self._conversation.throttling.is_over:
                    with self._lock:
                        self._send(self._conversation.resume())
                        self._flush(connected)
                if self._maybe_stall_seconds() == 0:
                    raise lost(self._conversation.endpoint, unread(self._unsent_bytes))
                self._receive(connected)
                receiving.expect(self._conversation.missing_bytes)

    def _maybe_stall_seconds(self) -> float | None:
        """Return for how long the server may go on reading nothing, None if it need not read."""
        if not self._outgoing:
            return None
        since = max(self._progress_at, self._conversation.throttling.until)
        return max(0.0, since + limits.WRITE_STALL_MS / 1000 - time.monotonic())

    def _maybe_wait_seconds(self) -> float | None:
        """Return after how long there is something to do, though nothing arrives; None if never."""
        found = (self._maybe_stall_seconds(), self._conversation.throttling.maybe_seconds_left)
        return min((each for each in found if each is not None), default=None)

    def _receive(self, connected: socket.socket) -> None:
        channel = self._channel
        try:
            if channel is None:
                count = connected.recv_into(self._conversation.get_buffer())
            else:
                count = connected.recv_into(self._encrypted)
        except BlockingIOError:
            return
        if count == 0:
            raise lost(self._conversation.endpoint, "the server closed it")
        if channel is None:
            self._handle(count)
            return
        channel.feed(self._encrypted[:count])
        while count := channel.read_into(self._conversation.get_buffer()):
            self._handle(count)
        if channel.is_ended:
            raise lost(self._conversation.endpoint, "the server closed it")

    def _handle(self, count: int) -> None:
        """Handle bytes that are in the buffer of the conversation."""
        if not self._conversation.buffer_updated(count):
            return
        with self._lock:
            self._send(self._conversation.receive(self._unsent_bytes))
            self._is_closing = self._is_closing or self._conversation.is_finished


class ConnectionPool:
    """The connections that all threads of this process share; see `Connections`.

    After a fork the child starts without connections and leaves those of the parent alone. Raises
    ConfigurationError if the files of TLS cannot be used.
    """

    def __init__(
        self, connecting: Connecting, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._connecting = connecting
        if connecting.tls is not None:
            ready(connecting.tls)
        self._clock = clock
        self._client_id = uuid.uuid4().hex
        self._reset()

    def start(self, call: Call, sink: Sink) -> tuple[BlockingConnection, Ticket]:
        """Send a call. Raises SbpError when it cannot be sent."""
        if self._connecting.on_timing is not None:
            sink = timed(call, sink, self._connecting.on_timing, self._clock)
        connection = self._acquire(call.endpoint)
        try:
            return connection, connection.start(call, sink)
        except SbpError:
            if connection.is_usable:
                raise
        # It ended between the two calls, and nothing was sent: the call may use another one.
        connection = self._acquire(call.endpoint)
        return connection, connection.start(call, sink)

    def close(self) -> None:
        """End all connections; calls that are open fail, new ones are refused."""
        if os.getpid() != self._pid:
            self._reset()
        with self._lock:
            connections = self._connections.close()
        for connection in connections:
            connection.close()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._connections = Connections(self._make, self._clock)

    def _make(self, endpoint: str) -> BlockingConnection:
        return BlockingConnection(endpoint, self._client_id, self._connecting)

    def _acquire(self, endpoint: str) -> BlockingConnection:
        if os.getpid() != self._pid:
            self._reset()
        with self._lock:
            return self._connections.acquire(endpoint)


class BlockingRunner:
    """Executes one program: performs its effects with threads and sockets."""

    def __init__(
        self, pool: ConnectionPool, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._pool = pool
        self._calls: OpenCalls[BlockingConnection] = OpenCalls(clock)
        self._arrivals: queue.SimpleQueue[Arrival] = queue.SimpleQueue()
        """Events that the threads of connections hand over."""

    def stream(self, program: Program[Any]) -> Generator[Any, Any, None]:
        """Run a program, yielding what it emits; it is given what is sent for it."""
        answer: Any = None
        try:
            while isinstance(found := self._advance(program, answer), Emit):
                answer = yield found.value
        finally:
            program.close()
            self._calls.close()

    def run(self, program: Program[T]) -> T:
        """Run a program that emits nothing; return its result."""
        try:
            result: T = self._advance(program, None)
            return result
        finally:
            program.close()
            self._calls.close()

    def _advance(self, program: Program[Any], result: Any) -> Any:
        """Run a program until it emits something; return that Emit, or the program's result."""
        while True:
            try:
                effect = program.send(result)
            except StopIteration as stop:
                return stop.value
            if isinstance(effect, Emit):
                return effect
            result = self._perform(effect)

    def _perform(self, effect: Effect) -> Any:
        if isinstance(effect, Start):
            return self._start(effect.call)
        if isinstance(effect, Receive):
            return self._receive(effect)
        if isinstance(effect, Now):
            return self._calls.now_ms()
        if isinstance(effect, Abandon):
            self._calls.abandon(effect.number)
        return None

    def _start(self, call: Call) -> int:
        calls = self._calls
        number = calls.inbox.open(calls.now_ms() + call.timeout_ms)
        try:
            connection, ticket = self._pool.start(
                call, lambda content: self._arrivals.put(Arrival(number, content))
            )
        except SbpError as error:
            calls.inbox.deliver(Arrival(number, error))
        else:
            calls.sent[number] = (connection, ticket, call.opcode)
        return number

    def _receive(self, wanted: Receive) -> Arrival | None:
        inbox = self._calls.inbox
        while True:
            while not self._arrivals.empty():
                inbox.deliver(self._arrivals.get())
            now_ms = self._calls.now_ms()
            arrival = self._calls.maybe_claim(wanted, now_ms)
            if arrival is not None:
                return arrival
            if wanted.until_ms is not None and wanted.until_ms <= now_ms:
                return None
            wake_ms = inbox.maybe_wake_ms(wanted.until_ms)
            assert wake_ms is not None, "waiting for nothing"
            try:
                inbox.deliver(self._arrivals.get(timeout=(wake_ms - now_ms) / 1000))
            except queue.Empty:
                continue
