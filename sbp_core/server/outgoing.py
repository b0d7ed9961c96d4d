"""The sending side of one connection: answers wait until the peer reads and the server has room.

Before an answer that waited is made, the connection is checked: a peer that closed it while its
socket was not read is noticed nowhere else.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from sbp_core import limits
from sbp_core.server.unread import Backlog, Unread
from sbp_core.sockets import AsyncSocket
from sbp_core.wire.checksum import Octets


class Outgoing:
    """What one connection sends, within the bounds of `unread`."""

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
        """Whether the socket takes more."""
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

    def send(self, buffers: Sequence[Octets]) -> None:
        """Send what there is room for."""
        if buffers and self._socket is not None and (unsent := self._socket.send(buffers)):
            self._unread.add(self._backlog, unsent)

    def pause(self) -> None:
        """The socket takes no more."""
        self._writable.clear()

    def resume(self) -> None:
        """The socket takes more again."""
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
