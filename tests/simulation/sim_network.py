"""A network in memory: connections between addresses, each with a delay of its own.

Bytes of one end arrive in order, cut anywhere; connections overtake each other. A path from one
address to another can be blocked, in one direction only if need be: then what is sent waits, as TCP
sends it again, and a connection that is being made waits too. A process that is killed resets its
connections. A machine that loses power says nothing; what is sent to it gets a reset once it is up.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from types import SimpleNamespace
from typing import Any

from sim_loop import NOBODY, RUNNING, Process, SimulatedLoop

from sbp_core.settings.listening import Exposure

SOCKET_BYTES = 256 << 10
"""Bytes that the system takes from a sender before the receiver reads."""
READ_BYTES = 64 << 10
CONNECT_RETRY_SECONDS = 0.5
CONNECT_SECONDS_MAX = 120.0

_END, _RESET = "end", "reset"
Item = bytes | str
Place = tuple[str, int]


def _reset_error() -> OSError:
    return ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))


class Network:
    """All connections and listeners; `note` gets a line for each thing that arrives."""

    def __init__(self, loop: SimulatedLoop, rng: Random, note: Callable[[str], None]) -> None:
        self.loop = loop
        self.note = note
        self._rng = rng
        self._listeners: dict[Place, SimulatedAcceptor] = {}
        self._blocked: set[tuple[str, str]] = set()
        self._dark: set[str] = set()
        """Addresses of machines without power."""
        self._slow: dict[str, float] = {}
        self._ends: dict[End, None] = {}
        self._ports = itertools.count(50_000)

    # Faults

    def block(self, source: str, target: str) -> None:
        """Let nothing pass from one address to another."""
        self._blocked.add((source, target))

    def slow_down(self, address: str, factor: float) -> None:
        """Let everything from and to an address take longer."""
        self._slow[address] = factor

    def heal(self) -> None:
        """Let everything pass, at its usual speed."""
        self._blocked.clear()
        self._slow.clear()
        self._go_on()

    def reset_some(self) -> None:
        """Reset a connection, as a firewall does that has forgotten it."""
        if self._ends:
            end = self._rng.choice([*self._ends])
            for each in (end, end.peer):
                each.receive(_RESET)

    def end_process(self, process: Process, *, is_power_lost: bool) -> None:
        """Close what a process had open; without power the other ends do not notice."""
        self._listeners = {
            place: acceptor
            for place, acceptor in self._listeners.items()
            if acceptor.process is not process
        }
        for end in [each for each in self._ends if each.process is process]:
            end.is_closed = True
            del self._ends[end]
            if not is_power_lost:
                end.put(_RESET)
        if is_power_lost:
            self._dark.add(process.address)

    def power_on(self, address: str) -> None:
        """A machine is up again; it knows none of the connections that it had."""
        self._dark.discard(address)
        self._go_on()

    def _go_on(self) -> None:
        for end in [*self._ends]:
            end.peer.go_on()
            end.go_on()

    # Delays

    def delay(self, source: str, target: str) -> float:
        """Return how long the next thing takes from one address to another."""
        seconds = 0.0001 + self._rng.random() * 0.0008
        if self._rng.random() < 0.02:
            seconds += self._rng.random() * 0.05
        return seconds * max(self._slow.get(source, 1.0), self._slow.get(target, 1.0))

    def may_pass(self, source: str, target: str) -> bool:
        """Whether something that was sent arrives now."""
        return (source, target) not in self._blocked and target not in self._dark

    def cut(self, data: bytes) -> list[bytes]:
        """Cut what is sent at once into what arrives at once."""
        if len(data) < 2 or self._rng.random() < 0.8:
            return [data]
        at = self._rng.randrange(1, len(data))
        return [data[:at], data[at:]]

    # Connections

    def listen(self, place: Place, acceptor: SimulatedAcceptor) -> None:
        if place in self._listeners:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        self._listeners[place] = acceptor

    def stop_listening(self, place: Place) -> None:
        self._listeners.pop(place, None)

    async def connect(self, factory: Callable[[], Any], host: str, port: int) -> Any:
        process = RUNNING.get()
        assert process is not None, "a connection of no process"
        began = self.loop.time()
        await asyncio.sleep(self.delay(process.address, host))
        while not (self.may_pass(process.address, host) and self.may_pass(host, process.address)):
            if self.loop.time() - began > CONNECT_SECONDS_MAX:
                raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
            await asyncio.sleep(CONNECT_RETRY_SECONDS)
        await asyncio.sleep(self.delay(host, process.address))
        acceptor = self._listeners.get((host, port))
        if acceptor is None:
            self.note(f"connect {process.address} > {host}:{port} refused")
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        near = End(self, process, (process.address, next(self._ports)))
        far = End(self, acceptor.process, (host, port))
        near.peer, far.peer = far, near
        self._ends[near] = self._ends[far] = None
        self.note(f"connect {near.name}")
        acceptor.offer(far)
        protocol = factory()
        near.attach(protocol)
        return near, protocol

    def forget(self, end: End) -> None:
        self._ends.pop(end, None)


class End(asyncio.Transport):
    """One end of a connection: the socket of its process, and the transport on top of it."""

    peer: End

    def __init__(self, network: Network, process: Process, place: Place) -> None:
        super().__init__()
        self.process = process
        self.place = place
        self.is_closed = False
        """Whether the socket is: what arrives is answered with a reset."""
        self.is_broken = False
        """Whether the other end closed or reset the connection."""
        self._network = network
        self._loop = network.loop
        self._protocol: Any = None
        self._under_way: deque[tuple[float, Item]] = deque()
        self._is_arriving = False
        self._arrives_at = 0.0
        self._unread_bytes = 0
        """Bytes that were sent and are not read by the other end."""
        self._arrived: deque[Item] = deque()
        self._is_read_due = False
        self._is_reading = True
        self._is_closing = False
        self._is_lost = False
        self._high, self._low = 64 << 10, 16 << 10
        self._is_paused = False

    @property
    def name(self) -> str:
        """The connection as seen from here."""
        return f"{_shown(self.place)} > {_shown(self.peer.place)}"

    # The way to the other end

    def put(self, item: Item) -> None:
        """Send something behind what was sent before."""
        source, target = self.place[0], self.peer.place[0]
        when = max(self._arrives_at, self._loop.time() + self._network.delay(source, target))
        self._arrives_at = when
        self._under_way.append((when, item))
        self.go_on()

    def go_on(self) -> None:
        """Let what is under way arrive, if it may."""
        if self._under_way and not self._is_arriving:
            self._is_arriving = True
            when = max(self._under_way[0][0], self._loop.time())
            self._loop.call_at(when, self._arrive, context=NOBODY)

    def _arrive(self) -> None:
        self._is_arriving = False
        if not self._network.may_pass(self.place[0], self.peer.place[0]):
            return  # until that changes
        _, item = self._under_way.popleft()
        shown = f"{len(item)} {zlib.crc32(item):08x}" if isinstance(item, bytes) else item
        self._network.note(f"{self.name} {shown}")
        self.peer.receive(item)
        self.go_on()

    def receive(self, item: Item) -> None:
        """Take what the other end sent."""
        if self.is_closed:
            if item != _RESET:
                self.put(_RESET)
            return
        if item == _RESET:
            self._arrived.clear()
        self.is_broken = self.is_broken or isinstance(item, str)
        self._arrived.append(item)
        self._read_soon()

    # The process reads

    def attach(self, protocol: Any) -> None:
        self._protocol = protocol
        protocol.connection_made(self)
        self._read_soon()

    def _read_soon(self) -> None:
        if self._arrived and self._is_reading and self._protocol is not None:
            self._call(self._read)

    def _call(self, callback: Callable[..., None], *args: Any) -> None:
        """Call something in the process of this end."""
        if self.process.is_alive:
            self._loop.call_soon(callback, *args, context=self.process.context)

    def _read(self) -> None:
        if not self._arrived or not self._is_reading or self._is_closing:
            return
        item = self._arrived.popleft()
        if item == _RESET:
            self._lose(_reset_error())
        elif item == _END:
            self._protocol.eof_received()
            self.close()
        else:
            assert isinstance(item, bytes)
            self._take(item)
            self._read_soon()

    def _take(self, data: bytes) -> None:
        if isinstance(self._protocol, asyncio.BufferedProtocol):
            buffer = self._protocol.get_buffer(-1)
            count = min(len(buffer), len(data), READ_BYTES)
            buffer[:count] = data[:count]
            if count < len(data):
                self._arrived.appendleft(data[count:])
            self.peer.note_read(count)
            self._protocol.buffer_updated(count)
        else:
            self.peer.note_read(len(data))
            self._protocol.data_received(data)

    def note_read(self, count: int) -> None:
        """The other end read some of what was sent."""
        self._unread_bytes -= count
        if self.get_write_buffer_size() <= self._low and self._is_paused:
            self._is_paused = False
            self._call(self._protocol.resume_writing)
        if self._is_closing and not self._is_lost and not self.get_write_buffer_size():
            self._call(self._lose, None)

    # asyncio.Transport

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": self.peer.place, "sockname": self.place}.get(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 64 << 10 if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        return max(0, self._unread_bytes - SOCKET_BYTES)

    @property
    def taken_at_once(self) -> int:
        """How many bytes the system would take now."""
        return max(0, SOCKET_BYTES - self._unread_bytes)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._is_closing or not data:
            return
        if _RESET in self._arrived:
            self._lose(_reset_error())
            return
        for part in self._network.cut(bytes(data)):
            self._unread_bytes += len(part)
            self.put(part)
        if self.get_write_buffer_size() > self._high and not self._is_paused:
            self._is_paused = True
            self._protocol.pause_writing()

    def is_closing(self) -> bool:
        return self._is_closing

    def is_reading(self) -> bool:
        return self._is_reading

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        self._is_reading = True
        self._read_soon()

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            if not self.get_write_buffer_size():
                self._call(self._lose, None)

    def abort(self) -> None:
        if not self._is_lost:
            self._is_closing = True
            self._call(self._lose, None)

    def _lose(self, error: OSError | None) -> None:
        if self._is_lost:
            return
        self._is_lost = self._is_closing = True
        self.close_socket()
        self._protocol.connection_lost(error)

    def close_socket(self) -> None:
        """Close the socket; with bytes that nobody read, it resets the connection."""
        if not self.is_closed:
            self.is_closed = True
            self._network.forget(self)
            self.put(_RESET if any(isinstance(each, bytes) for each in self._arrived) else _END)


def _shown(place: Place) -> str:
    return f"{place[0]}:{place[1]}"


class AcceptedSocket:
    """A connection as a listener gets it, before its protocol is known."""

    def __init__(self, end: End) -> None:
        self._end = end

    def fileno(self) -> int:
        return 3

    def adopt(self, protocol: Any) -> tuple[End, Any]:
        if self._end.is_broken:
            raise _reset_error()
        self._end.attach(protocol)
        return self._end, protocol

    def send(self, data: bytes) -> int:
        self._end.put(data)
        return len(data)

    def shutdown(self, _: int) -> None:
        self._end.put(_END)

    def recv(self, _: int) -> bytes:
        raise BlockingIOError

    def close(self) -> None:
        self._end.close_socket()

    def __enter__(self) -> AcceptedSocket:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class SimulatedAcceptor:
    """In place of `sbp_core.server.accepting.Acceptor`."""

    def __init__(self, on_accepted: Callable[[Any, str], None]) -> None:
        self._on_accepted = on_accepted
        process = RUNNING.get()
        assert process is not None
        self.process = process
        self._network: Network = asyncio.get_running_loop().network
        self._place: Place | None = None

    async def start(self, host: str, port: int, exposure: Exposure) -> int:
        del exposure  # the settings have compared the address with it
        self._network.listen((host, port), self)
        self._place = host, port
        return port

    @property
    def addresses(self) -> list[str]:
        return [] if self._place is None else [self._place[0]]

    def close(self) -> None:
        if self._place is not None:
            self._network.stop_listening(self._place)

    def offer(self, end: End) -> None:
        """Accept a connection when the process takes its next step."""
        end._call(self._on_accepted, AcceptedSocket(end), end.peer.place[0])


class SimulatedSocket:
    """In place of `sbp_core.sockets.AsyncSocket`."""

    def __init__(self, transport: Any) -> None:
        self._end: End = transport
        self.receiving = SimpleNamespace(expect=lambda _: None)
        self._taken_bytes = 0

    @property
    def unsent_bytes(self) -> int:
        return self._end.get_write_buffer_size()

    @property
    def sent_bytes(self) -> int:
        return self._taken_bytes - self.unsent_bytes

    @property
    def is_broken(self) -> bool:
        return self._end.is_broken

    def send(self, buffers: Sequence[bytes | bytearray | memoryview]) -> int:
        if self._end.is_closing():
            return 0
        data = b"".join(buffers)
        left = max(0, len(data) - self._end.taken_at_once)
        self._end.write(data)
        self._taken_bytes += left
        return left
