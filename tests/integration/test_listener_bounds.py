"""Limits on the time and memory that a peer may cost a server. The clock is frozen.

The listener's sweep is called by the tests, with a clock that they move.
"""

import asyncio
import os
import resource
import socket
import struct
from contextlib import AsyncExitStack

from sbp_core import limits
from sbp_core.server.budget import Budget
from sbp_core.wire.frame import encode_frame
from sbp_core.wire.headers import (
    AppendResponse,
)
from sbp_core.wire.opcodes import Flag, Opcode
from tests.support.listener import (
    ANSWER_BYTES,
    FIRST_FRAME_MS,
    FRAME_MS,
    HERE_BYTES,
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


def test_unread_answers_stop_the_reading_of_requests():
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


def test_frames_share_the_servers_memory_and_one_in_the_way_is_cut_off_sooner(caplog):
    """Memory for one large frame: the second waits, unread, until the first is read or given up."""
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
            (peer,) = [
                each for each in bench.listener._peers if each._incoming._intake.is_in_the_way
            ]
            for _ in range(limits.FRAME_CONTENDED_MS // limits.FRAME_STALLED_MS):
                bench.later(limits.FRAME_STALLED_MS)
                slow_writer.write(bytes(limits.RECEIVE_WAKE_BYTES))
                here_bytes += limits.RECEIVE_WAKE_BYTES
                while peer._session.decoder.pending_bytes < here_bytes:  # noqa: ASYNC110
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
            assert bench.listener.connection_count == 2, "no connection waits for its memory"
            writer.write(large)
            while not budget.is_contended:  # noqa: ASYNC110
                await asyncio.sleep(0)
            for ms in (0, limits.FRAME_STALLED_MS, 1):
                assert bench.listener.connection_count == 2
                bench.later(ms)
            assert "no whole frame within 2000 ms" in caplog.text
            assert (await fast.readexactly(7))[5:] == Opcode.ALLOCATE_ID.to_bytes(2, "big")

    run(body)


def test_announced_bytes_that_are_not_sent_cost_nothing():
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


def test_connections_with_requests_that_wait_take_turns():
    """A connection with one request does not wait for all earlier requests of another one."""

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
            first, *others = bench.served_for
            assert others[:2].count(first) < 2
            for _ in range(40):
                await reader.readexactly(1 << 20)

    run(body)


def test_a_request_that_waits_is_not_started_if_its_peer_leaves():
    async def body(bench):
        budget = bench.listener._budget = Budget(limits.REQUEST_OVERHEAD_BYTES)
        request = b"".join(encode_frame(Opcode.ALLOCATE_ID, Flag.REQUEST, 1))
        async with bench.connection() as (reader, writer):
            writer.write(request)
            while not budget.taken_bytes:  # noqa: ASYNC110
                await asyncio.sleep(0)
            for left_count in range(1, 4):
                async with bench.connection() as (_, leaving):
                    leaving.write(request)
                    while budget.waiting_count < left_count:  # noqa: ASYNC110
                        await asyncio.sleep(0)
            bench.gate.set()
            await reader.readexactly(1 << 20)
            while budget.taken_bytes or bench.listener.connection_count > 1:  # noqa: ASYNC110
                await asyncio.sleep(0)
            assert bench.begun_count == 1

    run(body)


def test_requests_that_waited_are_begun_in_turns_once_there_is_room(monkeypatch):
    monkeypatch.setattr(limits, "FRAMES_PER_TURN_MAX", 3)

    async def body(bench):
        budget = bench.listener._budget = Budget(40 * limits.REQUEST_OVERHEAD_BYTES)
        small = b"".join(encode_frame(Opcode.ALLOCATE_ID, Flag.REQUEST, 1))
        large = b"".join(
            encode_frame(Opcode.APPEND, Flag.REQUEST, 1, b"", [bytes(budget.bytes_max)])
        )
        async with AsyncExitStack() as connections:
            _, first = await connections.enter_async_context(bench.connection())
            first.write(large)
            while bench.ready is None:  # noqa: ASYNC110
                await asyncio.sleep(0)
            for number in range(21):  # the first of them is admitted in any case
                _, writer = await connections.enter_async_context(bench.connection())
                writer.write(small)
                while bench.begun_count + budget.waiting_count <= number:  # noqa: ASYNC110
                    await asyncio.sleep(0)
            bench.ready.set_result(AppendResponse())
            begun_count = 1
            while bench.begun_count < 21:
                await asyncio.sleep(0)
                assert bench.begun_count - begun_count <= 2 * 3
                begun_count = bench.begun_count
            bench.gate.set()

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
