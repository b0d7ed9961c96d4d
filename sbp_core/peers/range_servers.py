"""The calls of a placement driver to range servers: a method for each operation.

Operations on many ranges group them by server, cut them into requests, and return an answer or an
error for each range.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from sbp_core import limits
from sbp_core.client.operations.open_calls import Call
from sbp_core.client.operations.range_placement import chunks
from sbp_core.client.types import TxnPart
from sbp_core.errors import (
    ProtocolError,
    SbpError,
)
from sbp_core.peers.links import Links
from sbp_core.peers.transactions import (
    Ended,
    TxnEnd,
    copy_staged,
    end_txns,
)
from sbp_core.wire.headers import (
    REQUEST_TABLES,
    RESPONSE_TABLES,
    RESULT_FIELDS,
    DescribeRangeResult,
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


class Peers:
    """The range servers of a cluster, for its placement driver.

    Calls raise SbpError for a server that does not answer.
    """

    def __init__(self, links: Links) -> None:
        self._links = links

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
            for frame in await self._links.exchange(call):
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
            await self._links.exchange(
                Call(address, Opcode.SYNC_RANGES, request, limits.REQUEST_TIMEOUT_MS)
            )

    async def end_txns(self, address: str, ends: Sequence[TxnEnd]) -> list[Ended | SbpError]:
        """End transactions at a server (SPEC "END_TXN"); return the result of each of `ends`."""
        return await end_txns(self._links, address, ends, timeout_ms=limits.END_TXN_TIMEOUT_MS)

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
            *(self._links, address, part, to_address, to_range_index),
            is_replica=is_replica,
            timeout_ms=timeout_ms,
        )

    async def close(self) -> None:
        """Close all connections. Open calls fail; new ones are refused."""
        await self._links.close()

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
                for frame in await self._links.exchange(call):
                    response: Any = decode_header(table, frame.header)
                    check_status(response.status)
                    for result in getattr(response, RESULT_FIELDS[table]):
                        answers[result.stream_id] = maybe_error(result.status) or result
        except SbpError as error:
            reason = error
        return {each.stream_id: answers.get(each.stream_id, reason) for each in hosted}


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
