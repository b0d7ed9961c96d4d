"""Limits on the time and memory that a peer may cost a server. The clock is frozen.

The listener's sweep is called by the tests, with a clock that they move.
"""

import asyncio
import os
import resource
import socket

from sbp_core import limits
from sbp_core.server.budget import Budget
from sbp_core.wire.frame import encode_frame
from sbp_core.wire.opcodes import Flag, Opcode
from tests.support.listener import (
    ANSWER_BYTES,
    FIRST_FRAME_MS,
    FRAME_MS,
    PING,
    PONG_BYTES,
    PREFIX_BYTES,
    QUESTION,
    STALL_MS,
    deaf_peer,
    farewell,
    opcodes,
    ping,
    run,
)
from tests.support.wire import RawClient


def test_a_silent_peer_is_closed():
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
            for byte in PING[:-1]:
                writer.write(bytes([byte]))
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
    """Each byte waits for its turn; the socket is not read during the wait."""
    monkeypatch.setattr(limits, "FRAMES_PER_TURN_MAX", 1)

    async def body(bench):
        async with bench.connection() as (reader, writer), bench.connection() as (_, busy):
            await ping(reader, writer)
            for byte in PING[:10]:
                busy.write(PING * 10)
                writer.write(bytes([byte]))
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


def test_a_close_does_not_wait_for_ever_for_a_peer_that_does_not_read(monkeypatch):
    monkeypatch.setattr(limits, "WRITE_BUFFER_HIGH_BYTES", 1 << 30)
    request = b"".join(encode_frame(Opcode.PING, 0, 1, b"", [bytes(15 << 20)]))

    async def body(bench):
        async with deaf_peer(bench, request) as (_, other):
            for peer in bench.listener._peers:
                if peer._outgoing._unsent_bytes():
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
                    while "accept failed" not in caplog.text:
                        await ping(reader, writer)
                    assert bench.listener.connection_count == 1
                finally:
                    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
                await loop.sock_sendall(waiting, PING)
                assert await loop.sock_recv(waiting, PONG_BYTES)

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


def _numbered(request, call_id):
    return request[:8] + call_id.to_bytes(4, "big") + request[12:]
