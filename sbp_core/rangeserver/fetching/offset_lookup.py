"""LOOKUP_OFFSETS: from a time to the first record that was appended then or later.

The time of a record is when the log wrote its batch. Of the ranges that are hosted here the first
record in the order of offsets is the answer, also where the clock was set back meanwhile: so who
starts to read there misses nothing that was appended at the time or later.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from sbp_core.errors import InvalidRequestError, LogError, SbpError, StatusCode
from sbp_core.log.durable_log import Log
from sbp_core.log.states.range_states import RangeKey
from sbp_core.rangeserver.hosted_ranges import RangeInput, RangeTable
from sbp_core.rangeserver.hosting import RangeHost
from sbp_core.server.answers import cut, respond_in_parts
from sbp_core.server.dispatch import ServerCall
from sbp_core.wire.headers import (
    LookupOffsetInfo,
    LookupOffsetResult,
    LookupOffsetsRequest,
    LookupOffsetsResponse,
)
from sbp_core.wire.status import SUCCESS, status_for


@dataclass(frozen=True, slots=True)
class _Piece:
    """The records [start_offset, next_offset) of a range, at least one."""

    key: RangeKey
    start_offset: int
    next_offset: int


@dataclass(frozen=True, slots=True)
class _Search:
    """What to look for, in which pieces of the stream, and where that ends."""

    info: LookupOffsetInfo
    pieces: tuple[_Piece, ...]
    tail_offset: int


class LookupHandler:
    """Serves LOOKUP_OFFSETS."""

    def __init__(self, host: RangeHost, log: Log, readers: ThreadPoolExecutor) -> None:
        self._host = host
        self._log = log
        self._readers = readers

    async def __call__(self, call: ServerCall) -> None:
        """Answer one frame; a frame's worth of answers at a time is looked up on a thread."""
        request = call.decode(LookupOffsetsRequest)
        infos = request.lookup_requests
        await self._host.learn((info.stream_id, -1) for info in infos)

        async def parts() -> AsyncIterator[tuple[LookupOffsetResult, ...]]:
            loop = asyncio.get_running_loop()
            for part in cut(infos):
                planned = [_plan(self._host.table, info) for info in part]
                yield await loop.run_in_executor(self._readers, _look_up, self._log, planned)

        await respond_in_parts(
            call, parts(), lambda part: LookupOffsetsResponse(lookup_responses=part, status=SUCCESS)
        )


def _plan(table: RangeTable, info: LookupOffsetInfo) -> _Search | LookupOffsetResult:
    """Return what to look up, or why not. The tail of now bounds it: so nothing is missed."""
    try:
        if info.timestamp_us < 0 or info.start_offset < 0:
            raise InvalidRequestError(
                StatusCode.INVALID_REQUEST,
                "timestamp_us and start_offset must be 0 or more, got"
                f" {info.timestamp_us} and {info.start_offset}",
            )
        ranges = table.ranges_of(info.stream_id)
        ranges[0].receive(RangeInput.FETCH)
    except SbpError as error:
        return LookupOffsetResult(info.stream_id, info.request_index, status=status_for(error))
    pieces = (
        _Piece(each.key, max(each.start_offset, info.start_offset), each.next_offset)
        for each in ranges
    )
    return _Search(
        info,
        tuple(piece for piece in pieces if piece.start_offset < piece.next_offset),
        ranges[-1].next_offset,
    )


def _look_up(
    log: Log, planned: Sequence[_Search | LookupOffsetResult]
) -> tuple[LookupOffsetResult, ...]:
    """Answer what is planned. Runs on a reader thread."""
    return tuple(_search(log, each) if isinstance(each, _Search) else each for each in planned)


def _search(log: Log, search: _Search) -> LookupOffsetResult:
    info = search.info
    offset, time_ms = search.tail_offset, -1
    try:
        for piece in search.pieces:
            found = log.maybe_since(piece.key, piece.start_offset, info.timestamp_us // 1000)
            if found is not None and found.offset < piece.next_offset:
                offset, time_ms = found.offset, found.time_ms
                break
    except LogError as error:
        return LookupOffsetResult(info.stream_id, info.request_index, status=status_for(error))
    return LookupOffsetResult(info.stream_id, info.request_index, offset, SUCCESS, time_ms)
