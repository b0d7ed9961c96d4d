"""Connections that a full server closes for new ones, and those it keeps. The clock is frozen."""

import asyncio
from contextlib import suppress

from sbp_core import limits
from sbp_core.server.outgoing import Unread
from sbp_core.wire.frame import encode_frame
from sbp_core.wire.opcodes import Flag, Opcode
from tests.support.listener import (
    ANSWER_BYTES,
    PREFIX_BYTES,
    QUESTION,
    STALL_MS,
    deaf_peer,
    farewell,
    opcodes,
    run,
)

FEW = {"connections_max": 2, "connections_reserved": 0}
"""Capacity for two connections."""


async def connect(bench):
    return await asyncio.open_connection("127.0.0.1", bench.port)


async def ask(reader, writer):
    writer.write(QUESTION)
    return opcodes(await reader.readexactly(ANSWER_BYTES))


def test_a_newcomer_gets_the_place_of_the_longest_idle_connection():
    async def body(bench):
        first, second = await connect(bench), await connect(bench)
        for connection in (first, second):
            await ask(*connection)
            bench.clock.advance(1)
        bench.clock.advance(limits.SPARED_CONNECTION_MS)
        assert await ask(*await connect(bench)) == [Opcode.LIST_RANGES]
        assert opcodes(await first[0].readexactly(PREFIX_BYTES)) == [Opcode.GOAWAY]
        assert await ask(*second) == [Opcode.LIST_RANGES]

    run(body, **FEW)


def test_a_young_busy_or_waiting_connection_keeps_its_place():
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

    run(body, **FEW)


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
        assert "ignores cancellation" in caplog.text
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
