"""Attackers at a range server: they get an error or are closed, and other clients are not affected.

Every attack runs against one server while a well-behaved client appends and fetches beside it.
Afterwards the data are right, and no task and no descriptor is left.
"""

import asyncio
import os
import random
import struct
from contextlib import suppress
from pathlib import Path

import pytest

from sbp_core import limits
from sbp_core.client import AppendItem, StreamSpec
from sbp_core.rangeserver.fetching.batch_finder import LATEST_OFFSET
from sbp_core.tls import ready
from sbp_core.wire.frame import FrameDecoder, encode_frame
from sbp_core.wire.headers import (
    AppendInfo,
    AppendRequest,
    FetchInfo,
    FetchRequest,
    HeartbeatRequest,
    decode_system_error,
    encode_header,
)
from sbp_core.wire.opcodes import Flag, Opcode
from tests.support.cluster import core_cluster, rows_batch
from tests.support.security import Authority
from tests.support.wire import RawClient

OWN_CONNECTIONS = 2
"""Connections of the client, and of the placement driver, which announced the range."""
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
FIRST_VALUE = b"honest 0"
ROUNDS = 10
"""Appends of the well-behaved client, spread over the attack."""


def frame(opcode, header=b"", payload=b"", *, call_id=1, flags=Flag.REQUEST):
    raw = header if isinstance(header, bytes) else encode_header(header)
    return b"".join(encode_frame(opcode, flags, call_id, raw, [payload] if payload else []))


PING = frame(Opcode.PING, payload=b"hello")
BATCH = rows_batch([b"hostile"])
UNKNOWN_STREAM = 2**40


def append_frame(*lengths, payload=BATCH, stream_id=UNKNOWN_STREAM, **info):
    infos = tuple(
        AppendInfo(request_index=0, batch_length=length, stream_id=stream_id, **info)
        for length in lengths
    )
    return frame(Opcode.APPEND, AppendRequest(timeout_ms=1, append_requests=infos), payload)


def shared_tables_header(count):
    """A FETCH header whose `count` items are one and the same table: small, large when decoded."""
    encoded = bytearray(encode_header(FetchRequest(fetch_requests=(FetchInfo(stream_id=1),))))
    vector = encoded.index(struct.pack("<I", 1), 4)
    (relative,) = struct.unpack_from("<I", encoded, vector + 4)
    item = vector + 4 + relative
    start = len(encoded)
    field = next(
        position
        for position in range(0, start, 4)
        if position + struct.unpack_from("<I", encoded, position)[0] == vector
    )
    struct.pack_into("<I", encoded, field, start - field)
    encoded += struct.pack("<I", count)
    # Offsets are unsigned and point forward, so the table moves after them.
    table_at = start + 4 + 4 * count
    encoded += b"".join(struct.pack("<I", table_at - start - 4 - 4 * i) for i in range(count))
    vtable = item - struct.unpack_from("<i", encoded, item)[0]
    size = struct.unpack_from("<H", encoded, vtable + 2)[0]
    encoded += struct.pack("<i", table_at - vtable) + encoded[item + 4 : item + size]
    return bytes(encoded)


def wrong_checksum():
    broken = bytearray(PING)
    broken[-1] ^= 1
    return bytes(broken)


def wrong_magic_run():
    foreign = bytearray(PING)
    foreign[4] = 99
    return bytes(foreign) * (limits.BAD_MAGIC_FRAMES_MAX + 1)


def header_length_beyond_the_frame():
    lying = bytearray(PING)
    lying[13:16] = b"\xff\xff\xff"
    return bytes(lying)


CLOSING_ATTACKS = {
    "garbage": random.Random(1).randbytes(100_000),
    "http": b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n",
    "wrong checksum": wrong_checksum(),
    "wrong magic again and again": wrong_magic_run(),
    "length too large": struct.pack(">I", limits.FRAME_BYTES_MAX + 1),
    "length too small": struct.pack(">I", 15),
    "header longer than its frame": header_length_beyond_the_frame(),
    "an unrequested answer": frame(Opcode.PING, flags=Flag.RESPONSE | Flag.END),
    "an unrequested error": frame(
        Opcode.APPEND, flags=Flag.RESPONSE | Flag.END | Flag.SYSTEM_ERROR
    ),
    "negative call id": frame(Opcode.PING, call_id=2**32 - 1),
    "the id of an open request": frame(
        Opcode.FETCH,
        FetchRequest(
            max_wait_ms=60_000, fetch_requests=(FetchInfo(stream_id=1, fetch_offset=LATEST_OFFSET),)
        ),
    )
    * 2,
}

REFUSED_ATTACKS = {
    "header of garbage": frame(Opcode.APPEND, random.Random(2).randbytes(5000)),
    "no header": frame(Opcode.FETCH),
    "length beyond the payload": append_frame(len(BATCH) + 1),
    "length below the payload": append_frame(len(BATCH) - 1),
    "negative length": append_frame(-1, len(BATCH) + 1),
    "lengths that overflow": append_frame(2**31 - 1, 2**31 - 1),
    "header bomb": frame(Opcode.FETCH, shared_tables_header(500_000)),
    "an operation of the placement driver": frame(Opcode.CREATE_STREAMS),
}


async def exchange(endpoint, raw, *, then_close=False, tls=None):
    """Send bytes; return what the server answers until it closes, or after a PING's answer."""
    host, _, port = endpoint.rpartition(":")
    context = None if tls is None else ready(tls).current()
    reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
    decoder, answers = FrameDecoder(), []
    try:
        writer.write(raw)
        if then_close:
            return answers
        while data := await reader.read(1 << 16):
            decoder.receive_data(data)
            answers += decoder.frames()
            if answers and answers[-1].opcode != Opcode.GOAWAY and answers[-1].is_end:
                return answers
    except ConnectionResetError:
        pass
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
    return answers


async def serve_honestly(cluster, stream_id, attack, tls):
    """Append and fetch while `attack` goes on; everything must be answered and right."""
    expected = [(0, FIRST_VALUE)]
    attacking = asyncio.create_task(attack)
    async with RawClient.at(cluster.server.endpoint, tls=tls) as honest:
        number = 1
        while number < ROUNDS or not attacking.done():
            value = b"honest %d" % number
            item = AppendItem(stream_id, rows_batch([value]))
            (outcome,) = await cluster.client.append([item])
            assert outcome.base_offset == number
            expected.append((number, value))
            await honest.call(Opcode.PING)
            number += 1
    assert await cluster.read(stream_id) == expected
    return await attacking


def attack(folder, make_attack, files=None):
    """Run an attack on a fresh cluster, and look for leaks."""
    tls = None if files is None else files.as_client

    async def body():
        async with core_cluster(folder, tls=files) as cluster:
            (stream,) = await cluster.client.create_streams([StreamSpec("honest")])
            await cluster.client.append([AppendItem(stream.stream_id, rows_batch([FIRST_VALUE]))])
            before = await settled(cluster)
            result = await asyncio.wait_for(
                serve_honestly(cluster, stream.stream_id, make_attack(cluster), tls), 60
            )
            async with asyncio.timeout(20):  # a heartbeat may be under way
                while (after := await settled(cluster))[0] > before[0]:  # noqa: ASYNC110
                    await asyncio.sleep(0)
            assert after[1] - before[1] <= 2  # fewer if connections of earlier tests were closed
            return result

    return asyncio.run(body())


async def settled(cluster):
    """(tasks, descriptors) once only the cluster's own connections are left."""
    listener = cluster.server._listener
    async with asyncio.timeout(20):
        while listener.connection_count != OWN_CONNECTIONS:  # noqa: ASYNC110
            await asyncio.sleep(0)
    return len(asyncio.all_tasks()), descriptor_count()


def descriptor_count():
    return len(list(Path("/proc/self/fd").iterdir()))


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES


@pytest.mark.parametrize("has_tls", [False, True], ids=["plain", "tls"])
def test_attacks_are_met_with_an_error_or_a_reason_to_close(tmp_path, has_tls):
    files = Authority(tmp_path / "authority").server() if has_tls else None
    attacks = CLOSING_ATTACKS | REFUSED_ATTACKS

    async def go(cluster):
        at, tls = cluster.server.endpoint, files and files.as_client
        return {name: await exchange(at, raw, tls=tls) for name, raw in attacks.items()}

    answers = attack(tmp_path, go, files)
    for name in CLOSING_ATTACKS.keys() - {"garbage"}:  # its reason may be lost in a reset
        (last,) = (each for each in answers[name] if each.opcode == Opcode.GOAWAY)
        assert decode_system_error(last.header).status.message
    for name in REFUSED_ATTACKS:
        (answer,) = answers[name]
        assert answer.is_system_error
        assert decode_system_error(answer.header).status.code


def test_half_frames_and_silence_cost_little_memory(tmp_path):
    announced = struct.pack(">IBHBII", limits.FRAME_BYTES_MAX, 23, Opcode.PING, 0, 1, 1 << 24)
    sent = announced + bytes(70_000)
    grown = []

    async def go(cluster):
        host, _, port = cluster.server.endpoint.rpartition(":")
        before = resident_bytes()
        writers = []
        for _ in range(200):
            _, writer = await asyncio.open_connection(host, int(port))
            writer.write(sent)
            await writer.drain()
            writers.append(writer)
        async with RawClient.at(cluster.server.endpoint) as client:
            await client.call(Opcode.PING)
        grown.append(resident_bytes() - before)
        for writer in writers:
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for writer in writers))

    attack(tmp_path, go)
    assert grown[0] <= 64 * limits.MIB


def test_long_strings_in_a_heartbeat_are_bounded(tmp_path):
    async def go(cluster):
        answers = []
        for length in (limits.STRING_BYTES_MAX, limits.STRING_BYTES_MAX + 1, 3 * limits.MIB):
            raw = frame(Opcode.HEARTBEAT, HeartbeatRequest(client_id="\x1b\n" + "x" * (length - 2)))
            answers += await exchange(cluster.server.endpoint, raw)
        return answers

    assert [answer.is_system_error for answer in attack(tmp_path, go)] == [False, True, True]


def test_connections_that_break_at_every_byte_leave_nothing(tmp_path):
    whole = append_frame(len(BATCH), stream_id=1)

    async def go(cluster):
        for cut in range(0, len(whole), 7):
            await exchange(cluster.server.endpoint, whole[:cut], then_close=True)

    attack(tmp_path, go)
