"""A listener in a thread of its own, and clients that speak TLS to it without a transport."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Any

from certificates import Authority

from sbp_core import limits
from sbp_core.client import AsyncClient, Client, Connecting, RetryPolicy
from sbp_core.server.listener import Listener
from sbp_core.server.runtime import Clock, SystemClock
from sbp_core.tls import Channel, Contexts, ServerTls, Tls
from sbp_core.wire.dialect import ServerRole, Speech
from sbp_core.wire.headers import HeartbeatRequest, HeartbeatResponse
from sbp_core.wire.opcodes import Opcode
from sbp_core.wire.status import SUCCESS

ONCE = RetryPolicy(budget_ms=1)


async def greet(call: Any) -> None:
    request = call.decode(HeartbeatRequest)
    rest = call.greet(request, HeartbeatResponse(client_id="c", cluster_id="c", status=SUCCESS))
    if rest is not None:
        await rest()


class ServedListener:
    """A listener in a thread of its own, which answers HEARTBEAT and PING."""

    def __init__(
        self,
        files: ServerTls | None = None,
        clock: Clock | None = None,
        *,
        connections_per_address_max: int = limits.CONNECTIONS_PER_ADDRESS_MAX,
    ) -> None:
        self._files = files
        self._per_address_max = connections_per_address_max
        self._clock = clock or SystemClock()
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    async def _serve(self) -> None:
        self._stop, self._loop = asyncio.Event(), asyncio.get_running_loop()
        self.listener = Listener(
            {Opcode.HEARTBEAT: greet},
            speech=Speech(ServerRole.PLACEMENT_DRIVER),
            clock=self._clock,
            connections_per_address_max=self._per_address_max,
            tls=None if self._files is None else Contexts(self._files),
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


def ping_asyncio(endpoint: str, tls: Tls | None) -> None:
    async def ping() -> None:
        async with AsyncClient(endpoint, connecting=Connecting(tls=tls), retry=ONCE) as client:
            await client.ping()

    asyncio.run(ping())


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
