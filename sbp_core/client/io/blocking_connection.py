"""One blocking connection: a socket, a thread that does its I/O, callers in any other thread."""

from __future__ import annotations

import contextlib
import itertools
import selectors
import socket
import threading
import time
from collections import deque
from typing import Final

from sbp_core import limits
from sbp_core.client.io.conversation import (
    Conversation,
    Phase,
    Ticket,
    connect_failed,
    lost,
    unread,
)
from sbp_core.client.programs.program import Call, Sink
from sbp_core.client.types import Connecting, parse_endpoint
from sbp_core.errors import SbpError
from sbp_core.sockets import Receiving, is_own_address
from sbp_core.wire.checksum import Octets
from sbp_core.wire.opcodes import Opcode

_BUFFERS_PER_SEND: Final = 512
"""Below every system's IOV_MAX."""


class BlockingConnection:
    """A connection to `endpoint` that is being made while the first calls are queued already.

    The thread connects, greets, receives, and sends what a caller's thread could not send at
    once. Callers never wait for the network here: answers and failures go to their sinks.
    """

    def __init__(self, endpoint: str, client_id: str, connecting: Connecting) -> None:
        self._address = parse_endpoint(endpoint)
        self._connect_seconds = connecting.timeout_ms / 1000
        self._conversation = Conversation(endpoint, client_id, connecting.all_wishes)
        self._lock = threading.Lock()
        self._outgoing: deque[memoryview] = deque(
            memoryview(each) for each in self._conversation.greeting()
        )
        self._unsent_bytes = sum(map(len, self._outgoing))
        self._progress_at = 0.0
        """When the system last took something, or had taken all."""
        self.is_on_this_machine = False
        """Whether the server is, by the address that the connection was made to."""
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

    @property
    def maybe_cluster_id(self) -> str | None:
        """The cluster that the server says it is of, once it has answered the greeting."""
        return self._conversation.maybe_cluster_id

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

    def expire(self, ticket: Ticket, opcode: Opcode) -> SbpError:
        """Give up a call whose deadline passed, and the connection after its open calls."""
        with self._lock:
            error = self._conversation.expire(ticket, opcode)
            self._close_if_finished()
            return error

    def retire(self) -> None:
        """Take no new calls, and close after the open ones."""
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

    def _send(self, buffers: list[Octets]) -> None:
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
            self._wake()  # the thread meets the same error, and tells everybody
            return
        if self._outgoing:
            self._wake()

    def _flush(self, connected: socket.socket) -> None:
        """Send as much as the system takes now."""
        while self._outgoing:
            batch = list(itertools.islice(self._outgoing, _BUFFERS_PER_SEND))
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
        connected.setblocking(False)
        self.is_on_this_machine = is_own_address(connected)
        return connected

    def _serve(self, connected: socket.socket) -> None:
        """Move bytes until the connection ends. Raises OSError or SbpError saying why."""
        with self._lock:
            self._socket = connected
            if self._conversation.phase is Phase.CONNECTING:
                self._conversation.phase = Phase.OPEN
            self._progress_at = time.monotonic()
            self._flush(connected)
        with selectors.PollSelector() as selector:  # no kernel state that a fork would share
            selector.register(self._woken, selectors.EVENT_READ)
            selector.register(connected, selectors.EVENT_READ)
            receiving = Receiving(connected)
            while not self._is_closing:
                interest = selectors.EVENT_READ
                if self._outgoing:
                    interest |= selectors.EVENT_WRITE
                selector.modify(connected, interest)
                for key, _ in selector.select(self._maybe_stall_seconds()):
                    if key.fileobj is self._woken:
                        self._woken.recv(limits.KIB)
                if self._outgoing:
                    with self._lock:
                        self._flush(connected)
                if self._maybe_stall_seconds() == 0:
                    raise lost(self._conversation.endpoint, unread(self._unsent_bytes))
                self._receive(connected)
                receiving.expect(self._conversation.missing_bytes)

    def _maybe_stall_seconds(self) -> float | None:
        """Return for how long the server may go on reading nothing, None if it need not read."""
        if not self._outgoing:
            return None
        return max(0.0, self._progress_at + limits.WRITE_STALL_MS / 1000 - time.monotonic())

    def _receive(self, connected: socket.socket) -> None:
        try:
            count = connected.recv_into(self._conversation.get_buffer())
        except BlockingIOError:
            return
        if count == 0:
            raise lost(self._conversation.endpoint, "the server closed it")
        if not self._conversation.buffer_updated(count):
            return
        with self._lock:
            self._send(self._conversation.receive(self._unsent_bytes))
            self._is_closing = self._is_closing or self._conversation.is_finished
