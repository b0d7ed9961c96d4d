"""A listener with a clock that stands still, and peers that keep it waiting.

The listener's sweep is called by the tests, with a clock that they move.
"""

import asyncio
import socket
from contextlib import asynccontextmanager, suppress

from manual_clock import ManualClock
from raw_client import RawClient

from sbp_core import limits
from sbp_core.server.dispatch import PromptHandler
from sbp_core.server.later import Later
from sbp_core.server.listener import Listener
from sbp_core.wire.dialect import ServerRole, Speech
from sbp_core.wire.frame import FrameDecoder, encode_frame
from sbp_core.wire.headers import (
    IdAllocationResponse,
    decode_system_error,
    encode_header,
)
from sbp_core.wire.opcodes import Flag, Opcode

PING = b"".join(encode_frame(Opcode.PING, Flag.REQUEST, 1, b"", [b"hello"]))
PONG_BYTES = len(PING)
QUESTION = b"".join(encode_frame(Opcode.LIST_RANGES, Flag.REQUEST, 1))
ANSWER_BYTES = len(QUESTION) + len(encode_header(IdAllocationResponse()))
PREFIX_BYTES = len(QUESTION)
FIRST_FRAME_MS = limits.FIRST_FRAME_MS
FRAME_MS = limits.FRAME_COMPLETION_MS
STALL_MS = limits.WRITE_STALL_MS
HERE_BYTES = limits.RECEIVE_BUFFER_BYTES + limits.RECEIVE_WAKE_BYTES
"""So much of a large frame is looked at, for sure."""


class Prompt(PromptHandler):
    """Answers at once."""

    def begin(self, call):
        return call.answer_soon(IdAllocationResponse())


class Deferring(PromptHandler):
    """Answers later, with what `ready` ends with."""

    def __init__(self):
        self.ready = None

    def begin(self, call):
        self.ready = asyncio.get_running_loop().create_future()
        return Later(self.ready, self.ready.result)


class Bench:
    """A listener, its clock, and services.

    ALLOCATE_ID is answered when `gate` is open, LIST_RANGES at once, APPEND as `deferring` says.
    """

    def __init__(self):
        self.clock = ManualClock()
        self.gate = asyncio.Event()
        self.deferring = Deferring()
        self.listener = Listener(
            {
                Opcode.ALLOCATE_ID: self.serve,
                Opcode.LIST_RANGES: Prompt(),
                Opcode.APPEND: self.deferring,
            },
            speech=Speech(ServerRole.RANGE_SERVER),
            clock=self.clock,
        )
        self.port = 0
        self.begun_count = self.served_count = 0

    async def serve(self, call):
        self.begun_count += 1
        await self.gate.wait()
        self.served_count += 1
        await call.respond(IdAllocationResponse(), [bytes(1 << 20)])

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


def run(body):
    async def main():
        bench = Bench()
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
