"""A listener on a thread or a loop of its own, and peers that try it."""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import asynccontextmanager, suppress
from typing import Any

from sbp_core import limits
from sbp_core.client import Client, Connecting, RetryPolicy
from sbp_core.server.dispatch import Response
from sbp_core.server.listener import Listener
from sbp_core.server.runtime import Clock, SystemClock
from sbp_core.server.trust import ServerRole
from sbp_core.tls import Channel, Contexts, ServerTls, Tls
from sbp_core.wire.frame import FrameDecoder, encode_frame
from sbp_core.wire.headers import (
    HeartbeatRequest,
    HeartbeatResponse,
    IdAllocationResponse,
    decode_system_error,
    encode_header,
)
from sbp_core.wire.opcodes import Flag, Opcode
from sbp_core.wire.status import SUCCESS
from tests.support.clock import ManualClock
from tests.support.security import Authority
from tests.support.wire import RawClient

ONCE = RetryPolicy(budget_ms=1)


async def greet(call: Any) -> Response:
    request = call.decode(HeartbeatRequest)
    answer = HeartbeatResponse(client_id="c", cluster_id="c", status=SUCCESS)
    return await call.greet(request, answer)


class ServedListener:
    """A listener in a thread of its own, which answers HEARTBEAT and PING."""

    def __init__(
        self,
        files: ServerTls | None = None,
        clock: Clock | None = None,
        **options: int,
    ) -> None:
        self._files = files
        self._options = options
        self._clock = clock or SystemClock()
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    async def _serve(self) -> None:
        self._stop, self._loop = asyncio.Event(), asyncio.get_running_loop()
        self.listener = Listener(
            {Opcode.HEARTBEAT: greet},
            role=ServerRole.PLACEMENT_DRIVER,
            clock=self._clock,
            tls=None if self._files is None else Contexts(self._files),
            **self._options,
        )
        self.port = await self.listener.start("127.0.0.1", 0)
        self.endpoint = f"127.0.0.1:{self.port}"
        self._started.set()
        await self._stop.wait()
        await self.listener.drain(timeout_ms=100)

    def sweep(self) -> None:
        """Look for peers that are late, in the thread of the listener."""
        self._loop.call_soon_threadsafe(self.listener.sweep)

    def connect(self, address: str | None = None) -> socket.socket:
        """Return a connection, which for the listener comes from `address` if there is one."""
        if address is None:
            return socket.create_connection(("127.0.0.1", self.port), 30)
        with socket.create_server(("127.0.0.1", 0)) as door:
            ours = socket.create_connection(door.getsockname(), 30)
            theirs, _ = door.accept()
        theirs.setblocking(False)
        self._loop.call_soon_threadsafe(self.listener._on_accepted, theirs, address)
        return ours

    def __enter__(self) -> ServedListener:
        self._thread.start()
        assert self._started.wait(30)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()


def ping_blocking(endpoint: str, tls: Tls | None) -> None:
    with Client(endpoint, connecting=Connecting(tls=tls), retry=ONCE) as client:
        client.ping()


def hello_of(authority: Authority) -> bytes:
    """The first bytes of a client."""
    channel = Contexts(authority.client()).client_channel("127.0.0.1")
    channel.shake_hands()
    return channel.take()


def secured(connected: socket.socket, tls: Tls) -> Channel:
    """The channel of a connected socket, after its handshake."""
    channel = Contexts(tls).client_channel("127.0.0.1")
    while not channel.shake_hands():
        connected.sendall(channel.take())
        channel.feed(memoryview(connected.recv(limits.MIB)))
    connected.sendall(channel.take())
    return channel


def received(attacker: socket.socket) -> bytes:
    """The next bytes of a socket; none at its end, however that came."""
    try:
        return attacker.recv(10_000)
    except ConnectionResetError:
        return b""


PING = b"".join(encode_frame(Opcode.PING, Flag.REQUEST, 1, b"", [b"hello"]))
PONG_BYTES = len(PING)
QUESTION = b"".join(encode_frame(Opcode.LIST_RANGES, Flag.REQUEST, 1))
ANSWER_BYTES = len(QUESTION) + len(encode_header(IdAllocationResponse()))
PREFIX_BYTES = len(QUESTION)
FIRST_FRAME_MS = limits.FIRST_FRAME_MS
FRAME_MS = limits.FRAME_COMPLETION_MS
STALL_MS = limits.WRITE_STALL_MS


class Bench:
    """A listener, its clock, and services.

    ALLOCATE_ID is answered when `gate` is open, LIST_RANGES at once, APPEND when `ready` is over.
    """

    def __init__(self, **options):
        self.clock = ManualClock()
        self.gate = asyncio.Event()
        self.ready = None
        self.listener = Listener(
            {
                Opcode.ALLOCATE_ID: self.serve,
                Opcode.LIST_RANGES: self.answer,
                Opcode.APPEND: self.append,
            },
            role=ServerRole.RANGE_SERVER,
            clock=self.clock,
            **options,
        )
        self.port = 0
        self.begun_count = 0
        self.served_for: list[str] = []
        """The peers of the calls of ALLOCATE_ID that were served, in their order."""

    async def serve(self, call):
        self.begun_count += 1
        await self.gate.wait()
        self.served_for.append(call.peer.name)
        return Response(IdAllocationResponse(), call.peer.pack([bytes(1 << 20)]))

    async def answer(self, call):
        return Response(IdAllocationResponse())

    async def append(self, call):
        self.ready = asyncio.get_running_loop().create_future()
        return Response(await self.ready)

    def later(self, ms):
        self.clock.advance(ms)
        self.listener.sweep()

    @asynccontextmanager
    async def connection(self):
        """asyncio streams to the listener, which has accepted them."""
        before = self.listener.connection_count
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        async with RawClient("127.0.0.1", self.port) as other:
            while self.listener.connection_count < before + 2:
                await other.call(Opcode.PING)
        while self.listener.connection_count > before + 1:  # noqa: ASYNC110
            await asyncio.sleep(0)
        yield reader, writer
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    @property
    def held_bytes(self):
        return [peer._outgoing._unsent_bytes() for peer in self.listener._peers]


def run(body, **options):
    async def main():
        bench = Bench(**options)
        bench.port = await bench.listener.start("127.0.0.1", 0)
        try:
            await asyncio.wait_for(body(bench), 60)
        finally:
            await bench.listener.drain(timeout_ms=100)

    asyncio.run(main())


async def farewell(reader):
    """Return the message of the GOAWAY that the server sent before it closed the connection."""
    decoder = FrameDecoder()
    decoder.receive_data(await reader.read())
    *_, last = decoder.frames()
    assert (last.opcode, last.is_system_error) == (Opcode.GOAWAY, True)
    return decode_system_error(last.header).status.message


async def ping(reader, writer):
    writer.write(PING)
    await reader.readexactly(PONG_BYTES)


@asynccontextmanager
async def deaf_peer(bench, request, how_often=10_000):
    """A peer that sends `request` again and again and reads nothing, once answers wait for it."""
    with socket.socket() as deaf:
        deaf.setblocking(False)
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(deaf, ("127.0.0.1", bench.port))

        async def send():
            for _ in range(how_often):
                await loop.sock_sendall(deaf, request)

        sending = asyncio.create_task(send())
        async with RawClient("127.0.0.1", bench.port) as other:
            while not any(bench.held_bytes):
                await other.call(Opcode.PING)
            yield deaf, other
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


def opcodes(data):
    decoder = FrameDecoder()
    decoder.receive_data(data)
    return [frame.opcode for frame in decoder.frames()]
