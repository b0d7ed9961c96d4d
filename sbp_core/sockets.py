"""TCP sockets of clients and servers: few system calls, few wake-ups, no copies.

A frame is sent with one call, whatever buffers it is made of. One of 1 MiB arrives in dozens of
pieces, and to wake up for a piece costs more than to copy it: where it is known how much is still
to come, the system is asked to wait for a good part of that.

`TlsLink` puts TLS between a transport of asyncio and a protocol. The link does not use the TLS of
asyncio or uvloop, which does not tell how much waits to be sent: the bounds of `AsyncSocket` hold
with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

from sbp_core import limits
from sbp_core.tls import Channel
from sbp_core.tls_errors import PlainTextError
from sbp_core.wire.checksum import Buffer

BUFFERS_PER_CALL_MAX: Final = 512
"""Below every system's IOV_MAX."""
_TCP_INFO: Final = getattr(socket, "TCP_INFO", None) if sys.platform == "linux" else None
_TCP_ESTABLISHED: Final = 1
"""The first byte of TCP_INFO while neither end has closed the connection."""


class Receiving:
    """Sets how many bytes the system waits for before it wakes up the reader of `connected`.

    The socket must not block: a call that blocks and has a part of them already is not woken up
    for a rest that is smaller. With a `channel` a part of what is left may be here already.
    """

    def __init__(self, connected: socket.socket, channel: Channel | None = None) -> None:
        self._socket = connected
        self._channel = channel
        self._wake_bytes = 1

    def expect(self, missing_bytes: int) -> None:
        """`missing_bytes` are left of the frame that is being received, 1 if that is not known."""
        if self._channel is not None:
            missing_bytes = max(1, missing_bytes - self._channel.pending_bytes)
        wake_bytes = min(missing_bytes, limits.RECEIVE_WAKE_BYTES)
        if wake_bytes != self._wake_bytes:
            self._wake_bytes = wake_bytes
            # The socket is closed (a ValueError with uvloop), or the system lacks the option.
            with contextlib.suppress(OSError, ValueError):
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wake_bytes)


def is_own_address(connected: socket.socket) -> bool:
    """Whether the peer of a connection has a loopback address, or that of this end.

    A system that connects to one of its own addresses does so from the same one.
    """
    try:
        peer, own = connected.getpeername()[0], connected.getsockname()[0]
        return peer == own or is_loopback(peer)
    except (OSError, ValueError):  # it is lost already, or no IP socket
        return False


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches an IP address. Raises ValueError if it is none."""
    parsed = ipaddress.ip_address(address)
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped:
        return parsed.ipv4_mapped.is_loopback
    return parsed.is_loopback


class AsyncSocket:
    """The TCP socket of an asyncio transport, which goes on doing what it cannot do at once.

    With TLS all numbers are of encrypted bytes.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._channel = transport.channel if isinstance(transport, TlsLink) else None
        self._transport = transport
        self._socket: socket.socket = transport.get_extra_info("socket")
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.receiving: Final = Receiving(self._socket, self._channel)
        self._taken_bytes = 0

    @property
    def unsent_bytes(self) -> int:
        """Bytes that wait until the system takes them."""
        return self._transport.get_write_buffer_size()

    @property
    def sent_bytes(self) -> int:
        """Bytes that the system took, of all that it did not take at once."""
        return self._taken_bytes - self.unsent_bytes

    @property
    def is_broken(self) -> bool:
        """Whether the peer closed or reset the connection; for sockets that are not read.

        Systems other than Linux report a reset only.
        """
        try:
            if _TCP_INFO is None:
                return self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0
            (state,) = self._socket.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, 1)
        except (OSError, ValueError):  # it is closed
            return False
        return bool(state != _TCP_ESTABLISHED)

    def send(self, buffers: Sequence[Buffer]) -> int:
        """Send `buffers` in their order, or abort the connection.

        Return how many bytes the system did not take at once: these wait for the peer to read.
        """
        if self._transport.is_closing():
            return 0
        if self._channel is None:
            return self._send(buffers)
        if not self._channel.is_open:
            return 0  # the peer is not known yet: there is nothing to say to it
        try:
            return sum(self._send([each]) for each in self._channel.seal(buffers))
        except ssl.SSLError:  # what was received has ended the session
            self._transport.abort()
            return 0

    def _send(self, buffers: Sequence[Buffer]) -> int:
        sent = 0
        if not self._transport.get_write_buffer_size():
            try:
                sent = os.writev(self._socket.fileno(), buffers[:BUFFERS_PER_CALL_MAX])
            except BlockingIOError:
                pass
            except OSError:
                self._transport.abort()
                return 0
        left = 0
        for part in buffers:
            if sent < len(part):
                left += len(part) - sent
                self._transport.write(memoryview(part)[sent:] if sent else part)
                self._taken_bytes += len(part) - sent
            sent = max(0, sent - len(part))
        return left


_RECEIVED: Final = threading.local()
"""The buffer of encrypted bytes of each thread: they are decrypted before others are received."""
_LINGER_SECONDS: Final = limits.GOAWAY_GRACE_MS / 1000


def _receive_buffer() -> memoryview:
    if not hasattr(_RECEIVED, "buffer"):
        _RECEIVED.buffer = memoryview(bytearray(limits.RECEIVE_WAKE_BYTES))
    return cast("memoryview", _RECEIVED.buffer)


class TlsLink(asyncio.Transport, asyncio.BufferedProtocol):
    """TLS between a TCP transport, whose protocol it is, and `inner`, whose transport it is.

    `channel` has to seal what `inner` sends, as `AsyncSocket` lets it.

    A client's `inner` is connected once the handshake is over; `opened` is done then, or has the
    reason why it failed. A server's is connected at once, so that the connection counts, may be
    closed, and has as long for the handshake and its first frame as others have for that. Its
    handshakes are steps that `enter` runs in turn with others. `on_refused` is told why one failed,
    and returns what is sent to a peer that does not speak TLS.
    """

    def __init__(
        self,
        inner: asyncio.BufferedProtocol,
        channel: Channel,
        *,
        enter: Callable[[Callable[[], bool]], None] | None = None,
        on_refused: Callable[[Exception], Sequence[Buffer]] = lambda _: (),
    ) -> None:
        super().__init__()
        self.channel: Final = channel
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.opened.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._inner = inner
        self._enter = enter
        self._on_refused = on_refused
        self._raw: asyncio.Transport | None = None
        self._is_inner_connected = False
        self._is_paused = False
        self._is_delivering = False
        self._error: Exception | None = None

    @property
    def is_unanswered(self) -> bool:
        """Whether the peer has sent nothing yet: a server that refuses a certificate does not."""
        return not self.channel.has_received

    # The protocol of the TCP transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake."""
        self._raw = cast("asyncio.Transport", transport)
        if self._enter is not None:
            self._connect_inner()
        self._shake_hands()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the inner protocol."""
        reason = self._error or exc
        if not self.opened.done():
            self.opened.set_exception(
                reason
                or ConnectionResetError(
                    "it ended the connection before a TLS session, as a full server does"
                )
            )
        if self._is_inner_connected:
            self._inner.connection_lost(reason)

    def pause_writing(self) -> None:
        """Let the inner protocol pause."""
        if self._is_inner_connected:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        """Let the inner protocol go on."""
        if self._is_inner_connected:
            self._inner.resume_writing()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where received bytes go."""
        del sizehint
        return _receive_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Decrypt, or go on with the handshake."""
        if self._error is not None:
            return
        try:
            self.channel.feed(_receive_buffer()[:nbytes])
        except (PlainTextError, ssl.SSLError) as error:
            self._fail(error)
            return
        if self.channel.is_open:
            self._deliver()
        elif self._enter is None:
            self._shake_hands()
        else:
            self._tcp.pause_reading()  # a peer may send without waiting for the end of a handshake
            self._enter(self._shake_hands)
        self.channel.keep()

    def eof_received(self) -> bool:
        """Close when the peer does."""
        return False

    # The transport of the inner protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return what the TCP transport knows."""
        return self._tcp.get_extra_info(name, default)

    def is_closing(self) -> bool:
        """Whether nothing is sent any more."""
        return self._error is not None or self._tcp.is_closing()

    def close(self) -> None:
        """Close after what was sent has left; at once if there is no session yet."""
        if self.is_closing():
            return
        if not self.channel.is_open:
            self.abort()
            return
        self._tcp.write(self.channel.end())
        self._tcp.close()

    def abort(self) -> None:
        """Close at once."""
        if self._raw is not None:
            self._raw.abort()

    def pause_reading(self) -> None:
        """Deliver nothing for now."""
        self._is_paused = True
        self._tcp.pause_reading()

    def resume_reading(self) -> None:
        """Deliver again, first what is here."""
        self._is_paused = False
        if not self._is_delivering:
            asyncio.get_running_loop().call_soon(self._deliver)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set when writing pauses."""
        self._tcp.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        """Return how many encrypted bytes wait."""
        return self._tcp.get_write_buffer_size()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send what is sealed already."""
        self._tcp.write(data)

    @property
    def _tcp(self) -> asyncio.Transport:
        assert self._raw is not None, "not connected yet"
        return self._raw

    def _connect_inner(self) -> None:
        self._is_inner_connected = True
        self._inner.connection_made(self)

    def _shake_hands(self) -> bool:
        """Go on with the handshake; a step of `enter`, which is not to be repeated."""
        if self.channel.is_open or self.is_closing():
            return False
        try:
            is_over = self.channel.shake_hands()
        except ssl.SSLError as error:
            self._fail(error)
            return False
        self._send_own()
        if is_over:
            if not self._is_inner_connected:
                self._connect_inner()
            if not self.opened.done():
                self.opened.set_result(None)
            self._deliver()
        else:
            self._read_on()
        return False

    def _deliver(self) -> None:
        """Give the inner protocol what is here, until it pauses."""
        if self._is_delivering:
            return
        if not self.channel.is_open:
            self._read_on()
            return
        self._is_delivering = True
        try:
            while not self._is_paused and not self.is_closing():
                count = self.channel.read_into(memoryview(self._inner.get_buffer(-1)))
                if not count:
                    break
                self._inner.buffer_updated(count)
        except ssl.SSLError as error:
            self._fail(error)
        finally:
            self._is_delivering = False
        if self.is_closing():
            return
        self._send_own()
        if self.channel.is_ended:
            self._tcp.close()
        else:
            self._read_on()

    def _read_on(self) -> None:
        is_wanted = not self._is_paused and not self.is_closing()
        if is_wanted and not self._tcp.is_reading():
            self._tcp.resume_reading()

    def _send_own(self) -> None:
        own = self.channel.take()
        if own and not self._tcp.is_closing():
            self._tcp.write(own)

    def _fail(self, error: Exception) -> None:
        """End the connection. The peer of a server learns why; what it still sends is dropped."""
        if self._enter is None:
            self._send_own()
            self._error = error
            self.abort()
            return
        is_plain = isinstance(error, PlainTextError)
        answer = self._on_refused(error)
        farewell = b"".join(answer) if is_plain else self.channel.take()
        self._error = error
        self._tcp.write(farewell)
        if self._tcp.can_write_eof():
            self._tcp.write_eof()
        if not self._tcp.is_reading():
            self._tcp.resume_reading()
        asyncio.get_running_loop().call_later(_LINGER_SECONDS, self.abort)
