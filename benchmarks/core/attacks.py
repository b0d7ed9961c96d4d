"""Attacks on servers over bare sockets, from a process of its own.

Each attack is some connections that do the same; one that was closed or refused is opened again.
They send valid frames, so that only the server's bounds limit them.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sbp_core import limits
from sbp_core.tls import Channel, Tls, ready
from sbp_core.wire.frame import encode_frame
from sbp_core.wire.headers import (
    CommitTxnRequest,
    CreateRangeRequest,
    CreateStreamsRequest,
    FetchInfo,
    FetchRequest,
    JoinGroupRequest,
    Stream,
    StreamRange,
    encode_header,
)
from sbp_core.wire.opcodes import Flag, Opcode

_RECEIVED_BYTES: Final = 128 * 1024
_PAUSE_S: Final = 0.25
"""Pause before a connection that was closed is opened again."""
_BYTE_S: Final = 1.0
_PING_S: Final = 1.0
_LEAVE_S: Final = 0.05
LONG_NAME: Final = "s" * 240
"""Begins the names of the streams among which groups look for theirs."""


@dataclass(frozen=True, slots=True)
class Target:
    """The ports of a placement driver and of a range server, and a stream with old records.

    Servers that speak TLS have certificates of an authority in `ca_file`.
    """

    driver_port: int
    server_port: int
    stream_id: int
    old_batches: int
    ca_file: Path | None = None


class _Wire:
    """One connection of an attacker, with TLS after `shake_hands`."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._loop = asyncio.get_running_loop()
        self._channel: Channel | None = None

    async def shake_hands(self, channel: Channel) -> None:
        while not channel.shake_hands():
            await self._loop.sock_sendall(self._socket, channel.take())
            channel.feed(memoryview(await self.receive()))
        await self._loop.sock_sendall(self._socket, channel.take())
        self._channel = channel

    async def send(self, data: bytes) -> None:
        for piece in [data] if self._channel is None else self._channel.seal([data]):
            await self._loop.sock_sendall(self._socket, piece)

    async def receive(self) -> bytes:
        """Return what came, with TLS as it came: no attacker looks at it."""
        data = await self._loop.sock_recv(self._socket, _RECEIVED_BYTES)
        if not data:
            raise ConnectionResetError
        return data


Attacker = Callable[[_Wire, Target, int], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Attack:
    """Connections to one of the two servers, each doing what `attacker` does."""

    name: str
    connection_count: int
    is_at_driver: bool
    attacker: Attacker


def _frame(opcode: Opcode, header: object, payload: bytes = b"", call_id: int = 1) -> bytes:
    data = header if isinstance(header, bytes) else encode_header(header)
    return b"".join(encode_frame(opcode, Flag.REQUEST, call_id, data, [payload]))


def _padded(header: object) -> bytes:
    data = encode_header(header)
    return data + bytes(limits.HEADER_BYTES_MAX - len(data))


async def _fetch_padded(wire: _Wire, target: Target, _: int) -> None:
    info = FetchInfo(stream_id=target.stream_id, fetch_offset=-1)
    header = _padded(FetchRequest(max_wait_ms=60_000, fetch_requests=(info,)))
    await _ask_on_and_on(wire, Opcode.FETCH, header)


async def _commit_padded(wire: _Wire, _: Target, number: int) -> None:
    header = _padded(
        CommitTxnRequest(producer=f"attacker-{number}", timeout_ms=60_000, batch_number=1)
    )
    await _ask_on_and_on(wire, Opcode.COMMIT_TXN, header)


async def _join_with_patterns(wire: _Wire, _: Target, number: int) -> None:
    """Subscribe to prefixes of every length that begin the names of streams, and match none."""
    patterns = tuple(f"{LONG_NAME[:length]}x*" for length in range(1, 241))
    request = JoinGroupRequest(
        group=f"attacker-{number}",
        member_id="member",
        patterns=patterns,
        session_timeout_ms=1_800_000,
    )
    await _ask_on_and_on(wire, Opcode.JOIN_GROUP, encode_header(request))


async def _ask_on_and_on(wire: _Wire, opcode: Opcode, header: bytes) -> None:
    frame = _frame(opcode, header)
    while True:
        await wire.send(frame)
        await wire.receive()
        await asyncio.sleep(_PAUSE_S)


async def _announce(wire: _Wire, _: Target, number: int) -> None:
    """Send a byte a second of a frame of 16 MiB; half of them a good part of it before."""
    frame = _LARGE_PING
    here = 200_000 if number % 2 else 100
    await wire.send(frame[:here])
    for at in range(here, len(frame)):
        await asyncio.sleep(_BYTE_S)
        await wire.send(frame[at : at + 1])


async def _ping_unread(wire: _Wire, _: Target, __: int) -> None:
    while True:
        await wire.send(_LARGE_PING)


async def _fetch_unread(wire: _Wire, target: Target, _: int) -> None:
    """Ask for all that is old, in many calls at a time, and read nothing of it."""
    infos = tuple(
        FetchInfo(
            request_index=at,
            stream_id=target.stream_id,
            fetch_offset=at,
            batch_max_bytes=limits.BATCH_BYTES_MAX,
        )
        for at in range(target.old_batches)
    )
    header = encode_header(FetchRequest(fetch_requests=infos))
    for call_id in range(1, 1_000):
        await wire.send(_frame(Opcode.FETCH, header, call_id=call_id))
    await asyncio.sleep(3_600)


async def _ping_idly(wire: _Wire, _: Target, __: int) -> None:
    while True:
        await wire.send(_SMALL_PING)
        await wire.receive()
        await asyncio.sleep(_PING_S)


async def _create_and_leave(wire: _Wire, target: Target, number: int) -> None:
    await asyncio.sleep(_LEAVE_S)
    if number % 2:
        stream = Stream(name=f"left-{number}-{time.monotonic_ns()}")
        frame = _frame(Opcode.CREATE_STREAMS, CreateStreamsRequest(streams=(stream,)))
    else:
        stream_range = StreamRange(stream_id=target.stream_id, range_index=0)
        frame = _frame(Opcode.CREATE_RANGE, CreateRangeRequest(stream_range=stream_range))
    await wire.send(frame)
    raise ConnectionResetError


_LARGE_PING: Final = _frame(Opcode.PING, b"", bytes(15_000_000))
_SMALL_PING: Final = _frame(Opcode.PING, b"", b"still here")

ATTACKS: Final[Mapping[str, Attack]] = {
    attack.name: attack
    for attack in (
        Attack("padded-fetches", 5, False, _fetch_padded),
        Attack("padded-commits", 12, True, _commit_padded),
        Attack("slow-announcers", 300, False, _announce),
        Attack("unread-pings", 200, False, _ping_unread),
        Attack("unread-fetches", 200, False, _fetch_unread),
        Attack("idle-pingers", 1_040, False, _ping_idly),
        Attack("callers-that-leave", 20, True, _create_and_leave),
        Attack("group-patterns", 40, True, _join_with_patterns),
    )
}


class Attackers:
    """An attack that goes on in a process of its own, until the body is over."""

    def __init__(self, name: str, target: Target) -> None:
        context = multiprocessing.get_context("spawn")
        self._process = context.Process(target=_attack, args=(name, target), daemon=True)

    def __enter__(self) -> int:
        """Begin; return the process id."""
        self._process.start()
        assert self._process.pid is not None
        return self._process.pid

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.join()


def _attack(name: str, target: Target) -> None:
    attack = ATTACKS[name]
    asyncio.run(_attack_with_all(attack, target))


async def _attack_with_all(attack: Attack, target: Target) -> None:
    port = target.driver_port if attack.is_at_driver else target.server_port
    numbers = range(attack.connection_count)
    await asyncio.gather(*(_attack_again(attack.attacker, port, target, n) for n in numbers))


async def _attack_again(attacker: Attacker, port: int, target: Target, number: int) -> None:
    loop = asyncio.get_running_loop()
    while True:
        with socket.socket() as connected, suppress(OSError):
            connected.setblocking(False)
            await loop.sock_connect(connected, ("127.0.0.1", port))
            wire = _Wire(connected)
            if target.ca_file is not None:
                await wire.shake_hands(ready(Tls(target.ca_file)).client_channel("127.0.0.1"))
            await attacker(wire, target, number)
        await asyncio.sleep(_PAUSE_S)
