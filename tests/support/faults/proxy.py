"""A TCP proxy between two ends of SBP connections that lets frames through, or does them harm.

It runs in a thread of its own and is controlled from any other one. Frames of one direction
of one connection stay in order: while one is delayed or held, those behind it wait.
"""

from __future__ import annotations

import asyncio
import enum
import socket
import struct
import threading
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from sbp_core.client import parse_endpoint
from sbp_core.wire.opcodes import Opcode

_READ_BYTES = 1 << 16
_DO_SECONDS = 60
_OPCODE = slice(5, 7)


class Direction(enum.Enum):
    TO_SERVER = "to the server"
    TO_CLIENT = "to the client"


@dataclass(frozen=True, slots=True)
class Delay:
    """The frame comes so much later."""

    ms: int


@dataclass(frozen=True, slots=True)
class Hold:
    """The frame comes when the proxy is healed."""


@dataclass(frozen=True, slots=True)
class Swallow:
    """Neither the frame nor anything behind it ever comes: the connection is half-open."""


@dataclass(frozen=True, slots=True)
class Reset:
    """Both ends get a TCP reset, after this number of bytes of the frame."""

    after_bytes: int


@dataclass(frozen=True, slots=True)
class Split:
    """The frame arrives in pieces of this number of bytes."""

    piece_bytes: int


@dataclass(frozen=True, slots=True)
class Corrupt:
    """One bit of the frame is another one; a negative number counts from the frame's end."""

    bit: int


Fault = Delay | Hold | Swallow | Reset | Split | Corrupt


@dataclass(slots=True)
class _Rule:
    """A fault for the frames of one direction (and opcode): as many as are left."""

    fault: Fault
    direction: Direction
    opcode: Opcode | None
    left: int | None

    def takes(self, direction: Direction, frame: bytes) -> bool:
        is_meant = direction is self.direction and self.opcode in {None, opcode_of(frame)}
        if not is_meant or self.left == 0:
            return False
        if self.left is not None:
            self.left -= 1
        return True


@dataclass(slots=True, eq=False)
class _Link:
    """One connection: the writers of its two ends by the direction in which they lead."""

    writers: dict[Direction, asyncio.StreamWriter]
    swallowed: set[Direction] = field(default_factory=set)

    def reset(self) -> None:
        for writer in self.writers.values():
            linger = struct.pack("ii", 1, 0)
            sock = writer.get_extra_info("socket")
            if sock.fileno() >= 0:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.transport.abort()


class FaultProxy:
    """Listens on a free port and connects to `target`, "host:port", which may be set later."""

    def __init__(self, target: str = "") -> None:
        self.target = target
        self.injected: Counter[str] = Counter()
        """How many frames each kind of fault has met."""
        self.last_bytes: dict[tuple[Direction, int], int] = {}
        """By direction and operation: how long the last frame was."""
        self._rules: list[_Rule] = []
        self._links: set[_Link] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._loop = asyncio.new_event_loop()
        self._healed = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self._server = self._do(self._listen())
        self.port: int = self._server.sockets[0].getsockname()[1]
        self.endpoint = f"127.0.0.1:{self.port}"

    def __enter__(self) -> FaultProxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def injected_count(self) -> int:
        """How many frames met a fault."""
        return sum(self.injected.values())

    def inject(
        self,
        fault: Fault,
        direction: Direction,
        opcode: Opcode | None = None,
        *,
        count: int | None = None,
    ) -> None:
        """Do harm to the next `count` frames, or to all until `heal`. The first rule wins."""

        async def add() -> None:
            self._rules.append(_Rule(fault, direction, opcode, count))

        self._do(add())

    def heal(self) -> None:
        """Pass all frames from now on, and the held ones. Swallowed frames stay lost."""

        async def clear() -> None:
            self._rules.clear()
            self._healed.set()
            self._healed = asyncio.Event()

        self._do(clear())

    def reset_all(self) -> None:
        """Break all connections."""

        async def reset() -> None:
            for link in list(self._links):
                link.reset()

        self._do(reset())

    @property
    def link_count(self) -> int:
        """Connections that are open now."""
        return len(self._links)

    def close(self) -> None:
        """Break all connections and stop."""
        self._do(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # In the proxy's thread.

    def _do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_DO_SECONDS)

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._accept, "127.0.0.1", 0)

    async def _stop(self) -> None:
        self._server.close()
        self._healed.set()
        for link in list(self._links):
            link.reset()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            onward = await asyncio.open_connection(*parse_endpoint(self.target))
        except OSError:
            _Link({Direction.TO_CLIENT: writer}).reset()
            return
        link = _Link({Direction.TO_SERVER: onward[1], Direction.TO_CLIENT: writer})
        self._links.add(link)
        try:
            await asyncio.gather(
                self._pump(link, reader, Direction.TO_SERVER),
                self._pump(link, onward[0], Direction.TO_CLIENT),
            )
        finally:
            self._links.discard(link)
            for each in link.writers.values():
                each.close()

    async def _pump(self, link: _Link, reader: asyncio.StreamReader, direction: Direction) -> None:
        """Pass on the frames from one end until it closes; then close the stream to the other end.

        The other end can still send, as without a proxy.
        """
        writer = link.writers[direction]
        pending = b""
        try:
            while data := await reader.read(_READ_BYTES):
                pending += data
                while len(pending) >= 4 and len(pending) >= (size := frame_bytes(pending)):
                    await self._pass(link, pending[:size], direction)
                    pending = pending[size:]
            if direction not in link.swallowed:
                writer.write(pending)
                writer.write_eof()
        except OSError:
            link.reset()

    async def _pass(self, link: _Link, frame: bytes, direction: Direction) -> None:
        self.last_bytes[direction, opcode_of(frame)] = len(frame)
        if direction in link.swallowed:
            return
        fault = next((rule.fault for rule in self._rules if rule.takes(direction, frame)), None)
        if fault is not None:
            self.injected[type(fault).__name__] += 1
        writer = link.writers[direction]
        pieces = [frame]
        match fault:
            case Delay(ms):
                await asyncio.sleep(ms / 1000)
            case Hold():
                await self._healed.wait()
            case Swallow():
                link.swallowed.add(direction)
                return
            case Reset(after_bytes):
                writer.write(frame[:after_bytes])
                await asyncio.sleep(0)
                link.reset()
                return
            case Split(size):
                pieces = [frame[start : start + size] for start in range(0, len(frame), size)]
            case Corrupt(bit):
                pieces = [flip(frame, bit)]
        for piece in pieces:
            writer.write(piece)
            await writer.drain()


def frame_bytes(prefix: bytes) -> int:
    """The size in bytes of the frame that begins with `prefix` (SPEC "Frames")."""
    return int.from_bytes(prefix[:4], "big") + 4


def opcode_of(frame: bytes) -> int:
    """The operation that a frame belongs to."""
    return int.from_bytes(frame[_OPCODE], "big")


def flip(frame: bytes, bit: int) -> bytes:
    """The frame with one bit changed."""
    index = bit % (8 * len(frame))
    changed = bytearray(frame)
    changed[index // 8] ^= 1 << (index % 8)
    return bytes(changed)
