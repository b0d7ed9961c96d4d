"""The sending side of connections: bytes that peers have not read yet, bounded in size and time.

The socket of a peer that reads accepts everything that is sent. The rest waits in memory: up to
WRITE_BUFFER_HIGH_BYTES for one connection, up to SERVER_UNREAD_BYTES_MAX for all of them. At that
bound no large answer is made, and a peer that does not read is sent nothing at all. Such a peer is
disconnected when it has read nothing for WRITE_STALL_MS, or WRITE_STALL_CONTENDED_MS while others
wait for its memory.

Echoes of large PINGs cost a peer nothing to ask for, so they may use only a part of that memory. A
PING that fits into the receive buffer is echoed or refused; a larger one is not read until there is
memory for its echo. Neither delays other answers.

`Outgoing` is one connection, `Unread` the memory of all connections, `Backlog` what one of them has
not read, `Echo` the PING that one of them is about to get back.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from sbp_core import limits
from sbp_core.errors import ThrottledError
from sbp_core.sockets import AsyncSocket
from sbp_core.wire.checksum import Buffer


class Outgoing:
    """The sending side of one connection, within the bounds of `unread`."""

    def __init__(self, unread: Unread) -> None:
        self._unread = unread
        self._backlog = Backlog(self._unsent_bytes)
        self._transport: asyncio.Transport | None = None
        self._socket: AsyncSocket | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._reservations = asyncio.Semaphore(limits.RESPONSES_RESERVED_MAX)
        self._closed = asyncio.Event()

    def connect(self, transport: asyncio.Transport) -> AsyncSocket:
        """Send by `transport` from now on; return its socket."""
        transport.set_write_buffer_limits(high=limits.WRITE_BUFFER_HIGH_BYTES)
        self._transport = transport
        self._socket = AsyncSocket(transport)
        return self._socket

    @property
    def is_writable(self) -> bool:
        """Whether the socket accepts bytes."""
        return self._writable.is_set()

    @property
    def has_room(self) -> bool:
        """Whether the peer reads what it is sent."""
        is_too_far = self._backlog.size and not self._unread.has_room(self._backlog, 0)
        return self._writable.is_set() and not is_too_far

    @property
    def waiting_bytes(self) -> int:
        """Bytes that wait until the peer reads, when that was looked at last."""
        return self._backlog.size

    @property
    def is_closing(self) -> bool:
        """Whether nothing is sent any more."""
        return self._transport is not None and self._transport.is_closing()

    def has_room_for(self, size: int) -> bool:
        """Whether a frame of `size` bytes need not wait."""
        return self._writable.is_set() and self._unread.has_room(self._backlog, size)

    def is_overdue(self, now: float) -> bool:
        """Whether the peer had its time to read."""
        return self._backlog.is_overdue(now, is_contended=self._unread.is_contended)

    @asynccontextmanager
    async def reserve(self, size: int) -> AsyncIterator[None]:
        """Wait for room for one response frame of about `size` bytes, and keep it."""
        async with self._reservations, self.room(size):
            yield

    @asynccontextmanager
    async def room(self, size: int) -> AsyncIterator[None]:
        """Wait until the peer reads and there is room for `size` bytes, and keep the room."""
        has_waited = False
        while True:
            has_waited = has_waited or not self.has_room_for(size)
            await self._writable.wait()
            async with self._unread.room(self._backlog, size):
                if self._writable.is_set():  # the first that is woken may fill the socket again
                    if has_waited and self.abort_if_broken():
                        await self._closed.wait()  # which cancels this task
                    yield
                    return

    def send(self, buffers: Sequence[Buffer]) -> None:
        """Send what there is room for."""
        if buffers and self._socket is not None and (unsent := self._socket.send(buffers)):
            self._unread.add(self._backlog, unsent)

    def pause(self) -> None:
        """The socket is full: answers wait."""
        self._writable.clear()

    def resume(self) -> None:
        """The socket accepts bytes again."""
        self._writable.set()
        self._unread.look()

    def lose(self) -> None:
        """The connection is closed: nothing waits any longer."""
        self._unread.forget(self._backlog)
        self._writable.set()
        self._closed.set()

    def close(self) -> None:
        """Close after what was sent has left, for which the peer has to read it."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once, whatever the peer has not read yet."""
        if self._transport is not None:
            self._transport.abort()

    def abort_if_broken(self) -> bool:
        """Abort the connection if its peer closed it while the socket was not read.

        Return whether it is over. Work for it would be wasted, and other connections wait for the
        same room.
        """
        if self.is_closing:
            return True
        is_broken = self._socket is not None and self._socket.is_broken
        if is_broken:
            self.abort()
        return is_broken

    async def wait_closed(self) -> None:
        """Wait until the connection is closed."""
        await self._closed.wait()

    def _unsent_bytes(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()


_ECHO_PART: Final = 2
"""Echoes may use half of the room: PINGs are free to ask for, and must not displace answers."""


@dataclass(slots=True)
class _Milestone:
    """Since when a peer is awaited to have read `target_bytes` of all that it was sent."""

    since: float
    target_bytes: int


class Backlog:
    """The bytes that one connection was sent and has not read, as `measure` returns them."""

    def __init__(self, measure: Callable[[], int]) -> None:
        self._measure = measure
        self.size = 0
        """Bytes that wait, when it was looked at last."""
        self._sent_bytes = 0
        self._all: _Milestone | None = None
        self._some: _Milestone | None = None

    def add(self, size: int, now: float) -> None:
        """The socket did not take `size` bytes at once."""
        self._sent_bytes += size
        self.look(now)

    def look(self, now: float) -> None:
        """See what was read."""
        self.size = size = self._measure()
        read_bytes = self._sent_bytes - size
        if not size:
            self._all = self._some = None
            return
        if self._all is None or read_bytes >= self._all.target_bytes:
            self._all = _Milestone(now, self._sent_bytes)
        if self._some is None or read_bytes >= self._some.target_bytes:
            wanted = min(size, limits.UNREAD_PROGRESS_BYTES)
            self._some = _Milestone(now, read_bytes + wanted)

    def is_overdue(self, now: float, *, is_contended: bool) -> bool:
        """Whether the peer had its time to read, which is short while others wait."""
        if self._all is not None and now - self._all.since > limits.WRITE_STALL_MS / 1000:
            return True
        is_large = self.size > limits.CONNECTION_UNREAD_OWN_BYTES
        if not is_contended or not is_large or self._some is None:
            return False
        return now - self._some.since > limits.WRITE_STALL_CONTENDED_MS / 1000


class Unread:
    """The backlogs of all connections, and what is being made for them: at most `bytes_max` bytes.

    `monotonic` gives seconds.
    """

    def __init__(self, bytes_max: int, monotonic: Callable[[], float]) -> None:
        self._bytes_max = bytes_max
        self._monotonic = monotonic
        self._backlogs: set[Backlog] = set()
        self._backlog_bytes = 0
        self._making_bytes = 0
        self._waiting: dict[asyncio.Future[None], tuple[Backlog, int]] = {}
        """Answers that wait for room, in their order."""
        self._callbacks: dict[Callable[[], None], None] = {}
        self._echoes: dict[Callable[[], None], int] = {}
        self._timer: asyncio.TimerHandle | None = None

    @property
    def total_bytes(self) -> int:
        """Bytes that wait or are being made."""
        return self._backlog_bytes + self._making_bytes

    @property
    def is_full(self) -> bool:
        """Whether large answers have to wait."""
        return self._backlog_bytes + self._making_bytes >= self._bytes_max

    @property
    def is_contended(self) -> bool:
        """Whether an answer waits because others were not read."""
        return bool(self._waiting or self._callbacks) or self.is_full

    def has_room(self, backlog: Backlog, size: int) -> bool:
        """Whether an answer of `size` bytes may be made at once for a connection."""
        if backlog.size + size <= limits.CONNECTION_UNREAD_OWN_BYTES:
            return True
        if size <= limits.CONNECTION_UNREAD_OWN_BYTES:
            return not self.is_full
        return not self._waiting and self._fits(size)

    def may_begin_echo(self, size: int) -> bool:
        """Reserve room for the echo of a large PING until `give_back`, if there is some."""
        if self.total_bytes + size > self._bytes_max // _ECHO_PART:
            return False
        self._making_bytes += size
        return True

    def when_echo(self, size: int, callback: Callable[[], None]) -> None:
        """Call `callback`, once, when there may be room for an echo. Answers do not wait for it."""
        self._echoes[callback] = size
        self._look_soon()

    @asynccontextmanager
    async def room(self, backlog: Backlog, size: int) -> AsyncIterator[None]:
        """Wait for room for an answer of `size` bytes, and count it while the body runs."""
        if self.has_room(backlog, size):
            self._making_bytes += size
        else:
            await self._wait(backlog, size)
        try:
            yield
        finally:
            self.give_back(size)

    def add(self, backlog: Backlog, size: int) -> None:
        """The socket of a connection did not take `size` bytes at once."""
        self._backlog_bytes -= backlog.size
        backlog.add(size, self._monotonic())
        self._backlog_bytes += backlog.size
        if backlog.size:
            self._backlogs.add(backlog)

    def look(self) -> None:
        """Measure what was read, and continue with what waited for that."""
        now = self._monotonic()
        for backlog in [*self._backlogs]:
            self._backlog_bytes -= backlog.size
            backlog.look(now)
            self._backlog_bytes += backlog.size
            if not backlog.size:
                self._backlogs.discard(backlog)
        self._tell()

    def forget(self, backlog: Backlog) -> None:
        """A connection is closed."""
        if backlog in self._backlogs:
            self._backlogs.discard(backlog)
            self._backlog_bytes -= backlog.size
            backlog.size = 0
            self._tell()

    def when_read(self, callback: Callable[[], None]) -> None:
        """Call `callback`, once, when not everything is full any longer."""
        self._callbacks[callback] = None
        self._look_soon()

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _fits(self, size: int) -> bool:
        total = self.total_bytes
        return not total or total + size <= self._bytes_max

    async def _wait(self, backlog: Backlog, size: int) -> None:
        granted = asyncio.get_running_loop().create_future()
        self._waiting[granted] = backlog, size
        self._look_soon()
        try:
            await granted
        except asyncio.CancelledError:
            self._waiting.pop(granted, None)
            if not granted.cancelled():  # there was room, and it was counted
                self.give_back(size)
            raise

    def give_back(self, size: int) -> None:
        """Release the room of an answer or echo that was sent, or never will be."""
        self._making_bytes -= size
        self._tell()

    def _on_timer(self) -> None:
        self._timer = None
        self.look()
        if self._waiting or self._callbacks or self._echoes:
            self._look_soon()

    def _look_soon(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(
                limits.UNREAD_LOOK_MS / 1000, self._on_timer
            )

    def _tell(self) -> None:
        """Let waiting answers continue in their order, while there is room."""
        while self._waiting:
            granted, (backlog, size) = next(iter(self._waiting.items()))
            is_own = backlog.size + size <= limits.CONNECTION_UNREAD_OWN_BYTES
            if not is_own and not self._fits(size):
                break
            del self._waiting[granted]
            if not granted.done():
                self._making_bytes += size
                granted.set_result(None)
        if not self.is_full and self._callbacks:
            callbacks, self._callbacks = self._callbacks, {}
            for callback in callbacks:
                callback()
        while self._echoes:
            callback, size = next(iter(self._echoes.items()))
            if self.total_bytes + size > self._bytes_max // _ECHO_PART:
                break
            del self._echoes[callback]
            callback()


class Echo:
    """The echo that one connection is about to get; `on_room` is called when it need not wait."""

    def __init__(self, unread: Unread, on_room: Callable[[], None]) -> None:
        self._unread = unread
        self._on_room = on_room
        self._taken_bytes = 0
        self.is_awaited = False
        """Whether a PING is not read on until there is room for its echo."""

    def may_receive(self, size: int) -> bool:
        """Whether a large PING may be received; if not, its room is awaited."""
        if not self._taken_bytes:
            if not self._unread.may_begin_echo(size):
                self.is_awaited = True
                self._unread.when_echo(size, self._on_room)
                return False
            self._taken_bytes = size
        self.is_awaited = False
        return True

    def maybe_refusal(self, size: int) -> ThrottledError | None:
        """Return why a PING that was received is not echoed; None if it is, until `end`."""
        if size <= limits.PING_ECHO_BYTES or self._taken_bytes:
            return None
        if self._unread.may_begin_echo(size):
            self._taken_bytes = size
            return None
        return ThrottledError.of(
            f"a PING of {size} bytes is not echoed while too many answers wait to be read; send"
            f" {limits.PING_ECHO_BYTES} bytes at most, or retry later"
        )

    def end(self) -> None:
        """The echo was sent, or never will be."""
        if self._taken_bytes:
            taken_bytes, self._taken_bytes = self._taken_bytes, 0
            self._unread.give_back(taken_bytes)
