"""Server-to-server calls: one warm connection for each address of a range server.

`Peers` has one method for each operation. Those on many ranges group them by server, cut them into
requests, and return an answer or an error for each range. All of them use `Peers.exchange`, which
adds two things to a call:

- The proof. A range server with a secret refuses with PERMISSION_DENIED what only its placement
  driver may ask (SPEC "HEARTBEAT", extension). The proof holds for a connection, so it is given
  before the first such call on each. It is given again, and the call repeated, after a refusal: the
  connection was replaced in between, or the server did not have a secret at first.
- One repeat when a connection is lost that served an earlier call: the server was restarted. So
  only operations that may be repeated belong here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from sbp_core import limits
from sbp_core.client.io.aio_transport import AsyncConnection, AsyncPool
from sbp_core.client.operations import calls
from sbp_core.client.operations.open_calls import Call
from sbp_core.client.operations.range_placement import chunks
from sbp_core.client.types import Connecting, TxnPart
from sbp_core.errors import (
    ConnectError,
    ConnectionLostError,
    InvalidRequestError,
    PermissionDeniedError,
    ProtocolError,
    SbpError,
    ShuttingDownError,
)
from sbp_core.server.transactions_at_servers import (
    Caller,
    Ended,
    TxnEnd,
    copy_staged,
    end_txns,
)
from sbp_core.server.trust import proof_of
from sbp_core.tls import Tls
from sbp_core.wire.frame import Frame
from sbp_core.wire.headers import (
    REQUEST_TABLES,
    RESPONSE_TABLES,
    RESULT_FIELDS,
    ClientRole,
    DescribeRangeResult,
    HeartbeatRequest,
    HeartbeatResponse,
    LookupOffsetInfo,
    LookupOffsetsRequest,
    LookupOffsetsResponse,
    RangeId,
    SealRangesResult,
    StreamRange,
    StreamRanges,
    SyncRangesRequest,
    decode_header,
)
from sbp_core.wire.opcodes import Opcode
from sbp_core.wire.status import check_status, maybe_error

T = TypeVar("T")

_FOR_DRIVER: Final = frozenset({Opcode.APPEND, Opcode.END_TXN, Opcode.SEAL_RANGE})
"""Operations that need the proof. All APPENDs of a placement driver are copies of transactions."""
_CONNECTIONS_MAX: Final = 256
"""Warm connections; more only while more servers are being asked."""


class Peers:
    """The range servers of a cluster.

    `secrets_at` returns the secrets that the server at an address may have. Calls raise SbpError
    for a server that does not answer.
    """

    def __init__(
        self,
        cluster_id: str,
        secrets_at: Callable[[str], Awaitable[Sequence[str]]],
        *,
        connections_max: int = _CONNECTIONS_MAX,
        tls: Tls | None = None,
    ) -> None:
        self._tls = tls
        self._cluster_id = cluster_id
        self._secrets_at = secrets_at
        self._connections_max = connections_max
        self._links: dict[str, _Link] = {}
        """By address; what was used last is the last."""
        self._is_closed = False

    async def seal(
        self, address: str, ranges: Sequence[StreamRange]
    ) -> dict[int, SealRangesResult | SbpError]:
        """Seal ranges at one of their servers (SPEC "SEAL_RANGE"), one of each stream.

        Return what the server answered, by stream id, or why it did not.
        """
        return await self._call_at(Opcode.SEAL_RANGE, address, ranges)

    async def describe(
        self, ranges: Iterable[StreamRange]
    ) -> dict[int, DescribeRangeResult | SbpError]:
        """Describe ranges at their primaries (SPEC "DESCRIBE_RANGE"), one of each stream.

        Return what each answered, by stream id, or why it did not.
        """
        hosted = by_address(
            (server_addresses(each)[0], each)
            for each in {each.stream_id: each for each in ranges}.values()
        )
        parts = await asyncio.gather(
            *(self._call_at(Opcode.DESCRIBE_RANGE, *each) for each in hosted.items())
        )
        return {stream_id: answer for part in parts for stream_id, answer in part.items()}

    async def describe_at(
        self, address: str, ranges: Sequence[StreamRange]
    ) -> dict[int, DescribeRangeResult | SbpError]:
        """Describe ranges at one of their servers, one of each stream, as `describe` does."""
        return await self._call_at(Opcode.DESCRIBE_RANGE, address, ranges)

    async def append_times(
        self, address: str, places: Sequence[tuple[int, int]]
    ) -> list[int | None]:
        """Return when the records at places, (stream id, offset) each, were appended, in ms.

        None for a record that its server does not have (SPEC "LOOKUP_OFFSETS").
        """
        times: list[int | None] = []
        for chunk in chunks(places):
            infos = tuple(
                LookupOffsetInfo(stream_id=stream_id, request_index=at, start_offset=offset)
                for at, (stream_id, offset) in enumerate(chunk)
            )
            request = LookupOffsetsRequest(limits.REQUEST_TIMEOUT_MS, infos)
            call = Call(address, Opcode.LOOKUP_OFFSETS, request, limits.REQUEST_TIMEOUT_MS)
            found: dict[int, int] = {}
            for frame in await self.exchange(call):
                response = decode_header(LookupOffsetsResponse, frame.header)
                check_status(response.status)
                for each in response.lookup_responses:
                    if maybe_error(each.status) is None and each.append_time_ms >= 0:
                        found[each.request_index] = each.append_time_ms
            times += map(found.get, range(len(chunk)))
        return times

    async def sync(self, address: str, ranges: Sequence[StreamRange]) -> None:
        """Announce new and sealed ranges to one of their servers (SPEC "SYNC_RANGES")."""
        for chunk in chunks(ranges):
            announced = tuple(StreamRanges(each.stream_id, (each,)) for each in chunk)
            request = SyncRangesRequest(limits.REQUEST_TIMEOUT_MS, announced)
            await self.exchange(
                Call(address, Opcode.SYNC_RANGES, request, limits.REQUEST_TIMEOUT_MS)
            )

    async def end_txns(self, address: str, ends: Sequence[TxnEnd]) -> list[Ended | SbpError]:
        """End transactions at a server (SPEC "END_TXN"); return the result of each of `ends`."""
        return await end_txns(self, address, ends, timeout_ms=limits.END_TXN_TIMEOUT_MS)

    async def copy_staged(
        self,
        address: str,
        part: TxnPart,
        to_address: str,
        to_range_index: int,
        *,
        is_replica: bool = False,
    ) -> None:
        """Stage in another range, perhaps of another server, a copy of what is staged in one."""
        timeout_ms = limits.END_TXN_TIMEOUT_MS
        await copy_staged(
            *(self, address, part, to_address, to_range_index),
            is_replica=is_replica,
            timeout_ms=timeout_ms,
        )

    async def exchange(self, call: Call) -> list[Frame]:
        """Make one call that may be repeated; return the frames of its answer.

        It is made again when a connection was lost that served an earlier call. Raises what `prove`
        raises, and SbpError when there is no complete answer, or when it is a system error.
        """
        if self._is_closed:
            raise ConnectError(
                f"the placement driver is stopping; nothing was sent to {call.endpoint}"
            )
        address = call.endpoint
        link = self._links.pop(address, None) or _Link(address, self._tls)
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
        """Make one call, after the proof if it needs that."""
        if call.opcode in _FOR_DRIVER and not link.is_proven():
            await self._prove(link, call.timeout_ms)
        try:
            return await link.exchange(call)
        except PermissionDeniedError:
            await self._prove(link, call.timeout_ms)
        return await link.exchange(call)

    async def _prove(self, link: _Link, timeout_ms: float) -> None:
        await link.prove(self._cluster_id, await self._secrets_at(link.address), timeout_ms)

    async def _close_spare(self) -> None:
        """Close unused connections beyond the limit, the longest unused ones first."""
        spare_count = max(0, len(self._links) - self._connections_max)
        unused = [address for address, link in self._links.items() if not link.call_count]
        spare = [self._links.pop(address) for address in unused[:spare_count]]
        await asyncio.gather(*(link.close() for link in spare))

    async def _call_at(
        self, opcode: Opcode, address: str, hosted: Sequence[StreamRange]
    ) -> dict[int, Any]:
        table = RESPONSE_TABLES[opcode]
        answers: dict[int, Any] = {}
        reason: SbpError = ProtocolError("its answer leaves the range out")
        try:
            for chunk in chunks(hosted):
                ids = tuple(RangeId(each.stream_id, each.range_index) for each in chunk)
                request = REQUEST_TABLES[opcode](limits.SEAL_TIMEOUT_MS, ids)
                call = Call(address, opcode, request, limits.SEAL_TIMEOUT_MS)
                for frame in await self.exchange(call):
                    response: Any = decode_header(table, frame.header)
                    check_status(response.status)
                    for result in getattr(response, RESULT_FIELDS[table]):
                        answers[result.stream_id] = maybe_error(result.status) or result
        except SbpError as error:
            reason = error
        return {each.stream_id: answers.get(each.stream_id, reason) for each in hosted}


class _Link:
    """The connection to the server at an address; a lost one is replaced."""

    def __init__(self, address: str, tls: Tls | None) -> None:
        self.address = address
        self._pool = AsyncPool(Connecting(tls=tls))
        self._proven: AsyncConnection | None = None
        """The connection on which the proof was given, or not wanted."""
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


def by_server(ranges: Iterable[StreamRange]) -> dict[str, list[StreamRange]]:
    """Group ranges by the address of each of their servers, empty where that is not known."""
    return by_address(
        (address, each) for each in ranges for address in dict.fromkeys(server_addresses(each))
    )


def by_address(items: Iterable[tuple[str, T]]) -> dict[str, list[T]]:
    """Group items that come with an address."""
    grouped: dict[str, list[T]] = {}
    for address, item in items:
        grouped.setdefault(address, []).append(item)
    return grouped


def server_addresses(stream_range: StreamRange) -> tuple[str, ...]:
    """Return where a range's servers are, the primary first; empty where that is not known."""
    servers = (each.server for each in stream_range.servers)
    return tuple((each and each.advertise_addr) or "" for each in servers) or ("",)


async def holds(address: str, cluster_id: str, secret: str, tls: Tls | None = None) -> bool | None:
    """Whether the server that answers at an address now has a secret; None if that is unknown.

    Over a connection of its own: a warm one may be to a process that no longer listens there.
    """
    link = _Link(address, tls)
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

    Return whether it holds one of them; False too for a server that wants no proof. Raises
    PermissionDeniedError if it holds another one, SbpError if one of its answers takes longer than
    `timeout_ms`, or the connection is lost.
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
