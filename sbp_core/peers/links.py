"""Warm connections between servers: one for each address.

`Links.exchange` adds two things to a call:

- One repeat if a connection is lost that served an earlier call, because the server was restarted.
  So only operations that may be repeated belong here.
- The proof. A range server with a secret refuses calls that only its placement driver may make,
  with PERMISSION_DENIED (SPEC "HEARTBEAT", extension). A proof holds for one connection, and is
  given before the first such call. After a refusal the proof is given again, and the call repeated:
  the connection was replaced in between, or the server had no secret at first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from msgspec.structs import replace

from sbp_core import limits
from sbp_core.client.connecting import Connecting
from sbp_core.client.io.aio_connection import AsyncConnection
from sbp_core.client.io.aio_transport import AsyncPool
from sbp_core.client.operations import calls
from sbp_core.client.operations.open_calls import Call
from sbp_core.errors import (
    ConnectError,
    ConnectionLostError,
    InvalidRequestError,
    PermissionDeniedError,
    SbpError,
    ShuttingDownError,
)
from sbp_core.server.trust import proof_of
from sbp_core.tls import Tls
from sbp_core.wire.frame import Frame
from sbp_core.wire.headers import ClientRole, HeartbeatRequest, HeartbeatResponse, decode_header
from sbp_core.wire.opcodes import Opcode
from sbp_core.wire.status import check_status

_FOR_DRIVER: Final = frozenset({Opcode.APPEND, Opcode.END_TXN, Opcode.SEAL_RANGE})
"""Operations that need the proof. All APPENDs of a placement driver are copies of transactions."""
_CONNECTIONS_MAX: Final = 256
"""Warm connections; more only while more servers are being asked."""


class Caller(Protocol):
    """A client, or `Links`."""

    async def exchange(self, call: Call) -> list[Frame]:
        """Make one call; return the frames of its answer. Raises SbpError."""


@dataclass(frozen=True, slots=True)
class Secrets:
    """The proof of a placement driver: `of` returns the secrets that a server may have."""

    cluster_id: str
    of: Callable[[str], Awaitable[Sequence[str]]]


class Links:
    """The connections of a server to others. Only a placement driver has `secrets`."""

    def __init__(
        self,
        connecting: Connecting,
        secrets: Secrets | None = None,
        *,
        connections_max: int = _CONNECTIONS_MAX,
    ) -> None:
        self._connecting = connecting
        self._secrets = secrets
        self._connections_max = connections_max
        self._links: dict[str, _Link] = {}
        """The links by address, in the order of their last use."""
        self._is_closed = False

    async def exchange(self, call: Call) -> list[Frame]:
        """Make one call that may be repeated; return the frames of its answer.

        The call is made again if a connection was lost that served an earlier call. Raises SbpError
        if no complete answer arrives, or if the answer is a system error.
        """
        if self._is_closed:
            raise ConnectError(f"the server is stopping; nothing was sent to {call.endpoint}")
        address = call.endpoint
        link = self._links.pop(address, None) or _Link(address, self._connecting)
        self._links[address] = link
        link.call_count += 1
        loop = asyncio.get_running_loop()
        was_warm, began = link.is_warm, loop.time()
        try:
            await self._close_spare()
            try:
                return await self._ask(link, call)
            except (ConnectionLostError, ShuttingDownError):  # the latter: closed as idle
                link.is_warm = False
                left_ms = call.timeout_ms - 1000 * (loop.time() - began)
                if not was_warm or left_ms <= 0:
                    raise
                return await self._ask(link, replace(call, timeout_ms=left_ms))
        finally:
            link.call_count -= 1

    async def close(self) -> None:
        """Close all connections. Open calls fail; new ones are refused."""
        self._is_closed = True
        await asyncio.gather(*(link.close() for link in self._links.values()))

    async def _ask(self, link: _Link, call: Call) -> list[Frame]:
        """Make one call, after the proof if the call needs it."""
        if self._secrets is None:
            return await link.exchange(call)
        if call.opcode in _FOR_DRIVER and not link.is_proven():
            await self._prove(link, self._secrets, call.timeout_ms)
        try:
            return await link.exchange(call)
        except PermissionDeniedError:
            await self._prove(link, self._secrets, call.timeout_ms)
        return await link.exchange(call)

    async def _prove(self, link: _Link, secrets: Secrets, timeout_ms: float) -> None:
        await link.prove(secrets.cluster_id, await secrets.of(link.address), timeout_ms)

    async def _close_spare(self) -> None:
        """Close unused connections beyond the limit, the longest unused ones first."""
        spare_count = max(0, len(self._links) - self._connections_max)
        unused = [address for address, link in self._links.items() if not link.call_count]
        spare = [self._links.pop(address) for address in unused[:spare_count]]
        await asyncio.gather(*(link.close() for link in spare))


class _Link:
    """The connection to the server at an address; a lost connection is replaced."""

    def __init__(self, address: str, connecting: Connecting) -> None:
        self.address = address
        self._pool = AsyncPool(connecting)
        self._proven: AsyncConnection | None = None
        """The connection on which the proof was given, or was not wanted."""
        self.is_warm = False
        """Whether a call was served since the last connection was lost."""
        self.call_count = 0
        """Calls in progress."""

    def is_proven(self) -> bool:
        """Whether the next call uses a connection on which the proof was given.

        Raises SbpError if there is no connection and none can be made.
        """
        return self._pool.acquire(self.address) is self._proven

    async def prove(self, cluster_id: str, secrets: Sequence[str], timeout_ms: float) -> bool:
        """Prove to know the server's secret; return and raise what the function `prove` does."""
        connection = self._pool.acquire(self.address)
        has_proven = await prove(self, self.address, cluster_id, secrets, timeout_ms)
        self._proven = connection
        return has_proven

    async def exchange(self, call: Call) -> list[Frame]:
        """Make one call. Raises SbpError when there is no complete answer."""
        frames = await calls.exchange(self._pool.open_calls, call)
        self.is_warm = True
        return frames

    async def close(self) -> None:
        """Close the connection; open calls fail."""
        await self._pool.close()


async def holds(address: str, cluster_id: str, secret: str, tls: Tls | None = None) -> bool | None:
    """Whether the server that listens at an address has a secret; None if that is unknown.

    A new connection is made, because a warm one may be to a process that no longer listens there.
    """
    link = _Link(address, Connecting(tls=tls))
    try:
        has_proven = await link.prove(cluster_id, [secret], limits.PROOF_TIMEOUT_MS)
    except (PermissionDeniedError, InvalidRequestError):
        return False
    except SbpError:
        return None
    finally:
        await link.close()
    return True if has_proven else None


async def prove(
    caller: Caller,
    address: str,
    cluster_id: str,
    secrets: Sequence[str],
    timeout_ms: float = limits.PROOF_TIMEOUT_MS,
) -> bool:
    """Prove to the server at `address` to know its secret, one of `secrets`.

    Return whether the server holds one of the secrets; False for a server that wants no proof.
    Raises PermissionDeniedError if it holds another secret, SbpError if an answer takes longer than
    `timeout_ms`, or if the connection is lost.
    """

    async def greet(proof: str | None) -> None:
        request = HeartbeatRequest(
            client_id="placement-driver",
            client_role=ClientRole.PD,
            cluster_id=cluster_id,
            server_secret=proof,
        )
        call = Call(address, Opcode.HEARTBEAT, request, timeout_ms)
        frames = await caller.exchange(call)
        check_status(decode_header(HeartbeatResponse, frames[-1].header).status)

    try:
        await greet(None)
    except PermissionDeniedError as error:
        challenge, refusal = error.detail, error
    else:
        return False
    for secret in secrets:
        try:
            await greet(proof_of(secret, challenge))
        except PermissionDeniedError as error:
            refusal = error
        else:
            return True
    raise refusal
