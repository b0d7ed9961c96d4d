"""Trimming streams: forget what lies below an offset, never beyond the tail.

The placement driver knows where an open range starts, its server where it ends: so the server is
asked first, and the tail only moves forward until the trim is recorded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace

from sbp_core import limits
from sbp_core.client import AsyncClient
from sbp_core.client.programs.range_placement import stream_id_of
from sbp_core.errors import NoRangeServerError, SbpError, StatusCode
from sbp_core.pd.metadata.store_thread import StoreThread
from sbp_core.pd.metadata.tables import primary_address
from sbp_core.pd.streams import change_operations as changes
from sbp_core.pd.streams.change_operations import TrimPlan
from sbp_core.wire.headers import (
    DescribeRangesRequest,
    DescribeRangesResponse,
    RangeId,
    StreamRange,
    TrimmedStream,
    TrimStreamResult,
    decode_header,
)
from sbp_core.wire.opcodes import Opcode
from sbp_core.wire.status import check_status, maybe_error


class Trimmer:
    """Trims streams at the placement driver."""

    def __init__(self, store: StoreThread) -> None:
        self._store = store

    async def trim(self, items: Sequence[TrimmedStream]) -> list[TrimStreamResult]:
        """Trim streams; return the result of each, in the order of `items`."""
        plans = await self._store.run(changes.plan_trims, items)
        tails = await _tails(plan.maybe_open for plan in plans if plan.maybe_open is not None)
        checked = [plan if plan.maybe_open is None else _check(plan, tails) for plan in plans]
        return await self._store.run(changes.trim_streams, checked)


def _check(plan: TrimPlan, tails: dict[int, int | SbpError]) -> TrimPlan:
    tail = tails.get(plan.item.stream_id, _silent(plan.item.stream_id, "says nothing about it"))
    if isinstance(tail, SbpError):
        return replace(plan, maybe_error=tail)
    return changes.check_tail(plan, tail)


async def _tails(ranges: Iterable[StreamRange]) -> dict[int, int | SbpError]:
    """Ask the servers of open ranges where they end now; return that by stream id."""
    by_address: dict[str, dict[int, StreamRange]] = {}
    for each in ranges:
        by_address.setdefault(primary_address(each), {})[each.stream_id] = each
    answers = await asyncio.gather(
        *(
            _ask(address, stream_ranges[start : start + limits.STREAMS_PER_CALL])
            for address, known in by_address.items()
            for stream_ranges in [list(known.values())]
            for start in range(0, len(stream_ranges), limits.STREAMS_PER_CALL)
        )
    )
    return {stream_id: tail for answer in answers for stream_id, tail in answer.items()}


async def _ask(address: str, ranges: Sequence[StreamRange]) -> dict[int, int | SbpError]:
    request = DescribeRangesRequest(
        limits.SEAL_TIMEOUT_MS,
        tuple(RangeId(each.stream_id, each.range_index) for each in ranges),
    )
    try:
        async with AsyncClient(address) as client:
            frames = await client.call(
                address, Opcode.DESCRIBE_RANGE, request, timeout_ms=limits.SEAL_TIMEOUT_MS
            )
        tails: dict[int, int | SbpError] = {}
        for frame in frames:
            response = decode_header(DescribeRangesResponse, frame.header)
            check_status(response.status)
            for result in response.describe_responses:
                stream_id, error = stream_id_of(result), maybe_error(result.status)
                if error is not None:
                    tails[stream_id] = _silent(stream_id, str(error))
                elif result.stream_range is not None:
                    tails[stream_id] = result.stream_range.next_offset
        return tails
    except SbpError as error:
        where = f"at {address or 'an unknown address'} does not answer as expected ({error})"
        return {each.stream_id: _silent(each.stream_id, where) for each in ranges}


def _silent(stream_id: int, what: str) -> SbpError:
    return NoRangeServerError(
        StatusCode.PD_NO_AVAILABLE_RS,
        f"stream {stream_id} cannot be trimmed now, its tail is not known: the server of its open"
        f" range {what}; try again when it is back",
    )
