"""How long a peer may keep a server waiting, and how much it may make it hold; time stands still.

The listener's sweep is called by the tests, with a clock that they move.
"""

import asyncio
import os
import resource
import socket
import struct
from contextlib import asynccontextmanager, suppress

import pytest
from manual_clock import ManualClock
from raw_client import RawClient

from sbp_core import limits
from sbp_core.server.budget import Budget
from sbp_core.server.dispatch import Later, PromptHandler
from sbp_core.server.listener import Listener
from sbp_core.server.unread import Unread
from sbp_core.wire.dialect import ServerRole, Speech
from sbp_core.wire.frame import FrameDecoder, encode_frame
from sbp_core.wire.headers import (
    AppendResponse,
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
        return [peer._transport.get_write_buffer_size() for peer in self.listener._peers]


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
    """What the server said before it closed."""
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


def test_a_peer_that_says_nothing_is_closed():
    async def body(bench):
        async with bench.connection() as (reader, _):
            bench.later(FIRST_FRAME_MS)
            assert bench.listener.connection_count == 1
            bench.later(1)
            assert "no whole frame arrived within 10000 ms" in await farewell(reader)
        assert bench.listener.connection_count == 0

    run(body)


def test_a_first_frame_that_trickles_in_is_as_late():
    async def body(bench):
        async with bench.connection() as (reader, writer):
            for octet in PING[:-1]:
                writer.write(bytes([octet]))
                await writer.drain()
                bench.later(FIRST_FRAME_MS // len(PING))
            async with RawClient("127.0.0.1", bench.port) as other:
                await other.call(Opcode.PING)
            bench.later(FIRST_FRAME_MS)
            assert "10000 ms" in await farewell(reader)

    run(body)


def test_a_frame_that_is_begun_must_be_finished():
    async def body(bench):
        async with bench.connection() as (reader, writer):
            writer.write(PING + PING[:7])
            await reader.readexactly(PONG_BYTES)
            bench.later(FRAME_MS)
            assert bench.listener.connection_count == 1
            bench.later(1)
            assert "30000 ms" in await farewell(reader)

    run(body)


def test_a_frame_of_another_protocol_must_be_finished_too():
    async def body(bench):
        foreign = b"\0\0\1\0GET / HTTP"
        async with bench.connection() as (reader, writer):
            writer.write(PING + foreign)
            await reader.readexactly(PONG_BYTES)
            bench.later(FRAME_MS + 1)
            assert "30000 ms" in await farewell(reader)

    run(body)


def test_every_frame_has_its_own_time():
    async def body(bench):
        async with bench.connection() as (reader, writer):
            await ping(reader, writer)
            writer.write(QUESTION[:7])
            for _ in range(5):
                bench.later(FRAME_MS - 1)
                writer.write(QUESTION[7:] + QUESTION[:7])
                await reader.readexactly(ANSWER_BYTES)
            writer.write(QUESTION[7:])
            await reader.readexactly(ANSWER_BYTES)
            bench.later(limits.IDLE_CONNECTION_MS)
            await ping(reader, writer)
            assert bench.listener.connection_count == 1

    run(body)


def test_a_connection_that_asks_for_nothing_is_idle_whatever_it_pings():
    async def body(bench):
        async with bench.connection() as (reader, writer):
            for _ in range(2):
                await ping(reader, writer)
                bench.later(limits.IDLE_CONNECTION_MS // 2)
            await ping(reader, writer)
            bench.later(1)
            assert opcodes(await reader.readexactly(PREFIX_BYTES)) == [Opcode.GOAWAY]

    run(body)


def test_time_in_which_the_server_does_not_read_is_not_the_peers(monkeypatch):
    monkeypatch.setattr(limits, "CONNECTION_IN_FLIGHT_BYTES_MAX", 10)

    async def body(bench):
        async with bench.connection() as (reader, writer):
            work = b"".join(encode_frame(Opcode.ALLOCATE_ID, 0, 2, b"", [bytes(100)]))
            writer.write(PING + work + PING[:7])
            await reader.readexactly(PONG_BYTES)
            bench.later(10 * FRAME_MS)
            bench.gate.set()
            writer.write(PING[7:])
            await reader.readexactly(PONG_BYTES)
            assert bench.listener.connection_count == 1

    run(body)


def test_pauses_of_the_server_do_not_give_a_slow_peer_more_time(monkeypatch):
    """Each octet has to wait for its turn, and the socket is not read meanwhile."""
    monkeypatch.setattr(limits, "FRAMES_PER_TURN_MAX", 1)

    async def body(bench):
        async with bench.connection() as (reader, writer), bench.connection() as (_, busy):
            await ping(reader, writer)
            for octet in PING[:10]:
                busy.write(PING * 10)
                writer.write(bytes([octet]))
                async with RawClient("127.0.0.1", bench.port) as other:
                    await other.call(Opcode.PING)
                bench.later(FRAME_MS // 10)
            bench.later(1)
            assert "30000 ms" in await farewell(reader)

    run(body)


def test_a_peer_that_does_not_read_is_cut_off_and_others_are_not():
    request = b"".join(encode_frame(Opcode.PING, 0, 1, b"", [bytes(8 << 20)]))

    async def body(bench):
        async with deaf_peer(bench, request) as (_, other):
            bench.later(STALL_MS)
            await other.call(Opcode.PING)
            assert bench.listener.connection_count == 2
            bench.later(1)
            while bench.listener.connection_count > 1:
                await other.call(Opcode.PING)

    run(body)


def test_answers_that_nobody_reads_stop_the_reading_of_requests():
    request = b"".join(encode_frame(Opcode.PING, 0, 1, b"", [bytes(1 << 20)]))

    async def body(bench):
        async with deaf_peer(bench, request) as (_, other):
            held = []
            for _ in range(300):
                await other.call(Opcode.PING)
                held += bench.held_bytes
            assert max(held) <= limits.WRITE_BUFFER_HIGH_BYTES + 2 * len(request)

    run(body)


def test_answers_that_waited_do_not_all_go_out_when_the_peer_reads_a_little():
    request = b"".join(encode_frame(Opcode.ALLOCATE_ID, 0, 1))
    requests = b"".join(request[:8] + struct.pack(">I", n) + request[12:] for n in range(1, 200))

    async def body(bench):
        bench.gate.set()
        async with deaf_peer(bench, requests, how_often=1) as (deaf, _):
            held, read_bytes = [], 0
            while read_bytes < 2 * limits.WRITE_BUFFER_HIGH_BYTES:
                read_bytes += len(await asyncio.get_running_loop().sock_recv(deaf, 1 << 20))
                held += bench.held_bytes
            assert max(held) <= limits.WRITE_BUFFER_HIGH_BYTES + (2 << 20)

    run(body)


def test_a_close_does_not_wait_for_ever_for_a_peer_that_does_not_read(monkeypatch):
    monkeypatch.setattr(limits, "WRITE_BUFFER_HIGH_BYTES", 1 << 30)
    request = b"".join(encode_frame(Opcode.PING, 0, 1, b"", [bytes(15 << 20)]))

    async def body(bench):
        async with deaf_peer(bench, request) as (_, other):
            for peer in bench.listener._peers:
                if peer._transport.get_write_buffer_size():
                    peer.close()
            bench.later(STALL_MS)
            await other.call(Opcode.PING)
            assert bench.listener.connection_count == 2
            bench.later(1)
            while bench.listener.connection_count > 1:
                await other.call(Opcode.PING)

    run(body)


def lowest_free_descriptor():
    descriptor = os.open(os.devnull, os.O_RDONLY)
    os.close(descriptor)
    return descriptor


def test_running_out_of_descriptors_stops_neither_the_server_nor_its_connections(caplog):
    async def body(bench):
        loop = asyncio.get_running_loop()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        async with bench.connection() as (reader, writer):
            with socket.socket() as waiting:
                waiting.setblocking(False)
                resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free_descriptor(), hard))
                try:
                    await loop.sock_connect(waiting, ("127.0.0.1", bench.port))
                    while "no connection can be accepted" not in caplog.text:
                        await ping(reader, writer)
                    assert bench.listener.connection_count == 1
                finally:
                    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
                await loop.sock_sendall(waiting, PING)
                assert await loop.sock_recv(waiting, PONG_BYTES)

    run(body)


def test_frames_share_the_servers_memory_and_one_in_the_way_is_cut_off_sooner(caplog):
    """Room for one large frame: the second waits, unread, until the first is there or given up."""
    large = b"".join(encode_frame(Opcode.ALLOCATE_ID, Flag.REQUEST, 1, b"", [bytes(12 << 20)]))

    async def body(bench):
        budget = bench.listener._budget = Budget(20 << 20)
        bench.gate.set()
        here_bytes = HERE_BYTES
        async with bench.connection() as (_, slow_writer), bench.connection() as (fast, writer):
            slow_writer.write(large[:here_bytes])
            while budget.taken_bytes < len(large):  # noqa: ASYNC110
                await asyncio.sleep(0)
            writer.write(large)
            while not budget.is_contended:  # noqa: ASYNC110
                await asyncio.sleep(0)
            (peer,) = [each for each in bench.listener._peers if each._intake.is_in_the_way]
            for _ in range(limits.FRAME_CONTENDED_MS // limits.FRAME_STALLED_MS):
                bench.later(limits.FRAME_STALLED_MS)
                slow_writer.write(bytes(limits.RECEIVE_WAKE_BYTES))
                here_bytes += limits.RECEIVE_WAKE_BYTES
                while peer._session.pending_bytes < here_bytes:  # noqa: ASYNC110
                    await asyncio.sleep(0)
            bench.later(limits.FRAME_CONTENDED_MS % limits.FRAME_STALLED_MS)
            assert bench.listener.connection_count == 2
            bench.later(1)
            assert "no whole frame within 5000 ms" in caplog.text
            assert (await fast.readexactly(7))[5:] == Opcode.ALLOCATE_ID.to_bytes(2, "big")
        async with RawClient("127.0.0.1", bench.port) as other:
            await other.call(Opcode.PING)
            while bench.listener.connection_count > 1:
                await other.call(Opcode.PING)
        assert budget.taken_bytes == 0

    run(body)


def test_a_frame_in_the_way_that_stands_still_is_cut_off_at_once(caplog):
    large = b"".join(encode_frame(Opcode.ALLOCATE_ID, Flag.REQUEST, 1, b"", [bytes(12 << 20)]))

    async def body(bench):
        budget = bench.listener._budget = Budget(20 << 20)
        bench.gate.set()
        async with bench.connection() as (_, slow_writer), bench.connection() as (fast, writer):
            slow_writer.write(large[:HERE_BYTES])
            while budget.taken_bytes < len(large):  # noqa: ASYNC110
                await asyncio.sleep(0)
            bench.later(limits.FRAME_STALLED_MS + 1)
            assert bench.listener.connection_count == 2, "nobody waits for its memory"
            writer.write(large)
            while not budget.is_contended:  # noqa: ASYNC110
                await asyncio.sleep(0)
            for ms in (0, limits.FRAME_STALLED_MS, 1):
                assert bench.listener.connection_count == 2
                bench.later(ms)
            assert "no whole frame within 2000 ms" in caplog.text
            assert (await fast.readexactly(7))[5:] == Opcode.ALLOCATE_ID.to_bytes(2, "big")

    run(body)


def test_what_is_announced_and_not_sent_costs_nothing():
    large = b"".join(encode_frame(Opcode.ALLOCATE_ID, Flag.REQUEST, 1, b"", [bytes(12 << 20)]))

    async def body(bench):
        budget = bench.listener._budget = Budget(20 << 20)
        bench.gate.set()
        async with bench.connection() as (_, slow_writer), bench.connection() as (fast, writer):
            slow_writer.write(large[:60_000])
            writer.write(large)
            assert (await fast.readexactly(7))[5:] == Opcode.ALLOCATE_ID.to_bytes(2, "big")
            assert budget.taken_bytes == 0

    run(body)


def test_a_full_server_begins_no_new_requests_until_one_is_done():
    async def body(bench):
        budget = bench.listener._budget = Budget(1 << 20)
        request = b"".join(encode_frame(Opcode.ALLOCATE_ID, Flag.REQUEST, 1, b"", [bytes(40_000)]))
        async with bench.connection() as (reader, writer), bench.connection() as (late, other):
            writer.write(b"".join(_numbered(request, number) for number in range(40)))
            while not budget.is_contended:  # noqa: ASYNC110
                await asyncio.sleep(0)
            other.write(_numbered(request, 1))
            await other.drain()
            for _ in range(100):
                await asyncio.sleep(0)
                assert budget.taken_bytes <= 1 << 20
            bench.gate.set()
            for _ in range(40):
                assert len(await reader.readexactly(1 << 20)) == 1 << 20
                assert budget.taken_bytes <= 1 << 20
            assert len(await late.readexactly(1 << 20)) == 1 << 20
            while budget.taken_bytes:
                await reader.read(1 << 20)

    run(body)


def test_a_request_that_waited_for_room_and_is_answered_at_once_keeps_no_drain_waiting(monkeypatch):
    monkeypatch.setattr(limits, "GOAWAY_GRACE_MS", 0)

    async def body(bench):
        budget = bench.listener._budget = Budget(limits.REQUEST_OVERHEAD_BYTES)
        async with bench.connection() as (first, writer), bench.connection() as (late, other):
            writer.write(b"".join(encode_frame(Opcode.ALLOCATE_ID, Flag.REQUEST, 1)))
            while not budget.taken_bytes:  # noqa: ASYNC110
                await asyncio.sleep(0)
            other.write(b"".join(encode_frame(Opcode.LIST_RANGES, Flag.REQUEST, 1)))
            while not budget.is_contended:  # noqa: ASYNC110
                await asyncio.sleep(0)
            draining = asyncio.create_task(bench.listener.drain(timeout_ms=600_000))
            await asyncio.sleep(0)
            bench.gate.set()
            answers = await late.read(), await first.read()
            await draining
        goaway, answer = opcodes(answers[0])
        assert (goaway, answer) == (Opcode.GOAWAY, Opcode.LIST_RANGES)
        assert opcodes(answers[1]) == [Opcode.GOAWAY, Opcode.ALLOCATE_ID]

    run(body)


def test_what_is_done_for_a_peer_that_is_gone_counts_until_it_is_done():
    async def body(bench):
        budget, request = bench.listener._budget, encode_frame(Opcode.APPEND, Flag.REQUEST, 1)
        async with bench.connection() as (_, writer):
            writer.write(b"".join(request))
            while bench.deferring.ready is None:  # noqa: ASYNC110
                await asyncio.sleep(0)
        while bench.listener.connection_count:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert budget.taken_bytes > 0
        bench.deferring.ready.set_result(AppendResponse())
        await asyncio.sleep(0)
        assert budget.taken_bytes == 0

    run(body)


def test_connections_with_requests_that_wait_take_turns():
    """Whoever sends one request does not wait for all of those that another one sent before."""

    async def body(bench):
        budget = bench.listener._budget = Budget(limits.REQUEST_OVERHEAD_BYTES)
        request = b"".join(encode_frame(Opcode.ALLOCATE_ID, Flag.REQUEST, 1))
        async with bench.connection() as (reader, writer), bench.connection() as (late, other):
            writer.write(b"".join(_numbered(request, number) for number in range(40)))
            while not budget.is_contended:  # noqa: ASYNC110
                await asyncio.sleep(0)
            other.write(_numbered(request, 1))
            while budget.waiting_count < 2:  # noqa: ASYNC110
                await asyncio.sleep(0)
            bench.gate.set()
            await late.readexactly(1 << 20)
            assert bench.served_count < 10
            for _ in range(40):
                await reader.readexactly(1 << 20)

    run(body)


def test_a_flood_of_frames_does_not_keep_the_server_from_what_it_began(monkeypatch):
    """In each turn of the loop a few frames are handled, of all connections in turn."""
    monkeypatch.setattr(limits, "FRAMES_PER_TURN_MAX", 3)

    async def body(bench):
        request = b"".join(encode_frame(Opcode.ALLOCATE_ID, Flag.REQUEST, 1))
        async with bench.connection() as (_, first), bench.connection() as (_, second):
            for writer in (first, second):
                writer.write(b"".join(_numbered(request, number) for number in range(30)))
            turns, begun = 0, 0
            while bench.begun_count < 60:
                await asyncio.sleep(0)
                assert bench.begun_count - begun <= 2 * 3
                turns += bench.begun_count > begun
                begun = bench.begun_count
            assert turns >= 10

    run(body)


@pytest.fixture
def few(monkeypatch):
    """Room for two connections."""
    monkeypatch.setattr(limits, "CONNECTIONS_MAX", 2)
    monkeypatch.setattr(limits, "CONNECTIONS_RESERVED", 0)


async def connect(bench):
    return await asyncio.open_connection("127.0.0.1", bench.port)


async def ask(reader, writer):
    writer.write(QUESTION)
    return opcodes(await reader.readexactly(ANSWER_BYTES))


def test_a_newcomer_gets_the_place_of_who_asked_for_nothing(few):
    async def body(bench):
        idle, used = await connect(bench), await connect(bench)
        await ping(*idle)
        await ask(*used)
        bench.clock.advance(limits.UNUSED_CONNECTION_MS)
        newcomer = await connect(bench)
        assert await ask(*newcomer) == [Opcode.LIST_RANGES]
        assert opcodes(await idle[0].readexactly(PREFIX_BYTES)) == [Opcode.GOAWAY]
        assert await ask(*used) == [Opcode.LIST_RANGES]
        bench.later(limits.GOAWAY_GRACE_MS)
        assert await idle[0].read() == b""
        assert bench.listener.connection_count == 2
        assert not bench.listener._sent_away

    run(body)


def test_a_newcomer_gets_the_place_of_who_asked_for_nothing_for_the_longest_time(few):
    async def body(bench):
        first, second = await connect(bench), await connect(bench)
        for connection in (first, second):
            await ask(*connection)
            bench.clock.advance(1)
        bench.clock.advance(limits.SPARED_CONNECTION_MS)
        assert await ask(*await connect(bench)) == [Opcode.LIST_RANGES]
        assert opcodes(await first[0].readexactly(PREFIX_BYTES)) == [Opcode.GOAWAY]
        assert await ask(*second) == [Opcode.LIST_RANGES]

    run(body)


def test_who_is_young_or_in_use_or_waits_for_an_answer_keeps_its_place(few):
    async def body(bench):
        at_work, used = await connect(bench), await connect(bench)
        at_work[1].write(b"".join(encode_frame(Opcode.ALLOCATE_ID, Flag.REQUEST, 1)))
        while not bench.begun_count:  # noqa: ASYNC110
            await asyncio.sleep(0)
        bench.clock.advance(limits.SPARED_CONNECTION_MS)
        await ask(*used)
        bench.clock.advance(limits.SPARED_CONNECTION_MS - 1)
        refused, _ = await connect(bench)
        assert "2 connections open already" in await farewell(refused)
        bench.clock.advance(limits.EVICTION_PAUSE_MS)
        assert await ask(*await connect(bench)) == [Opcode.LIST_RANGES]
        assert opcodes(await used[0].readexactly(PREFIX_BYTES)) == [Opcode.GOAWAY]
        bench.gate.set()
        assert len(await at_work[0].readexactly(1 << 20)) == 1 << 20

    run(body)


def test_work_that_does_not_end_by_being_cancelled_gives_back_what_it_counts_for(caplog):
    async def body(bench):
        release = asyncio.Event()

        async def stubborn(call):
            while not release.is_set():
                with suppress(asyncio.CancelledError):
                    await release.wait()

        bench.listener._dispatcher._handlers[Opcode.TRIM_STREAMS] = stubborn
        budget = bench.listener._budget
        async with bench.connection() as (_, writer):
            writer.write(b"".join(encode_frame(Opcode.TRIM_STREAMS, Flag.REQUEST, 1)))
            while not budget.taken_bytes:  # noqa: ASYNC110
                await asyncio.sleep(0)
        while bench.listener.connection_count:  # noqa: ASYNC110
            await asyncio.sleep(0)
        bench.later(limits.HANDLER_CANCEL_MS)
        assert budget.taken_bytes > 0
        bench.later(1)
        assert budget.taken_bytes == 0
        assert "does not end by being cancelled" in caplog.text
        release.set()

    run(body)


def test_a_large_ping_is_not_read_while_echoes_are_not_read():
    large = b"".join(encode_frame(Opcode.PING, 0, 1, b"", [bytes(15_000_000)]))
    small = b"".join(encode_frame(Opcode.PING, 0, 2, b"", [bytes(2 * limits.PING_ECHO_BYTES)]))

    async def body(bench):
        unread = bench.listener._unread = Unread(32_000_000, bench.clock.monotonic)
        async with deaf_peer(bench, large, how_often=1) as (_, other):
            assert unread.total_bytes > 0
            async with bench.connection() as (reader, writer):
                writer.write(small + large)
                assert len(await reader.readexactly(len(small))) == len(small)
                while not unread._echoes:
                    await other.call(Opcode.PING)
                bench.later(STALL_MS)
                await other.call(Opcode.PING)
                assert bench.listener.connection_count == 3
                bench.later(1)
                answer = await reader.readexactly(len(large))
                assert answer[16:-4] == bytes(15_000_000)
        assert unread.total_bytes == 0

    run(body)


def opcodes(octets):
    decoder = FrameDecoder()
    decoder.receive_data(octets)
    return [frame.opcode for frame in decoder.frames()]


def _numbered(request, call_id):
    return request[:8] + call_id.to_bytes(4, "big") + request[12:]
