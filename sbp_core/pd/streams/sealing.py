"""Sealing the open ranges of streams and opening the next ones.

Safety comes from the range server: it seals durably and answers where the range ends; only then is
the end recorded and a new range opened there. A seal that was begun goes on when its caller leaves:
a stream must not be left without a range to write to. Each step may be repeated, so one that was
cut short by the end of the server is finished by the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from functools import partial

from sbp_core import limits
from sbp_core.client import AsyncClient
from sbp_core.client.programs.range_placement import stream_id_of
from sbp_core.errors import SbpError, SealUnansweredError, StatusCode, StatusError
from sbp_core.pd.metadata.store_thread import StoreThread
from sbp_core.pd.metadata.tables import primary_address
from sbp_core.pd.model import SealedRange
from sbp_core.pd.servers.proving import Prover
from sbp_core.pd.servers.registry import Membership
from sbp_core.pd.servers.syncing import RangeAnnouncer
from sbp_core.pd.streams import range_operations as ranges
from sbp_core.pd.streams.range_operations import SealPlan
from sbp_core.server.runtime import cancel_all
from sbp_core.wire.headers import (
    RangeId,
    SealRangesRequest,
    SealRangesResponse,
    SealRangesResult,
    StreamRange,
    decode_header,
)
from sbp_core.wire.opcodes import Opcode
from sbp_core.wire.status import SUCCESS, check_status, maybe_error, status_for

_Ends = dict[int, SealedRange | SbpError]
"""By stream id: the range that was sealed, with its end, or why it was not."""


class Sealer:
    """Seals ranges at the servers that host them."""

    def __init__(
        self,
        store: StoreThread,
        membership: Membership,
        announcer: RangeAnnouncer,
        prover: Prover,
    ) -> None:
        self._store = store
        self._prover = prover
        self._membership = membership
        self._announcer = announcer
        self._at_work: set[asyncio.Task[list[SealRangesResult]]] = set()

    async def stop(self) -> None:
        """Give up what is under way."""
        await cancel_all(self._at_work)

    async def seal(self, items: Sequence[RangeId]) -> list[SealRangesResult]:
        """Seal ranges; return each stream's new writable range, or why there is none.

        In the order of `items`. The servers of new ranges are told of them in the background.
        """
        task = asyncio.create_task(self._seal(items))
        self._at_work.add(task)
        task.add_done_callback(self._on_done)
        return await asyncio.shield(task)

    def _on_done(self, task: asyncio.Task[list[SealRangesResult]]) -> None:
        self._at_work.discard(task)
        if not task.cancelled():
            task.exception()  # the caller may be gone

    async def _seal(self, items: Sequence[RangeId]) -> list[SealRangesResult]:
        plans = await self._store.run(ranges.plan_seals, items)
        ends = await _seal_at_servers(
            self._prover, (plan.maybe_open for plan in plans if plan.maybe_open is not None)
        )
        sealed = [end for end in ends.values() if isinstance(end, SealedRange)]
        opened = await self._store.run(
            ranges.open_next_ranges,
            [plan.item.stream_id for plan in plans if _lacks_successor(plan, ends)],
            sealed,
            self._membership.live_servers(),
        )
        self._announcer.announce(each for each in opened.values() if isinstance(each, StreamRange))
        return [_result(plan, ends, opened) for plan in plans]


def _lacks_successor(plan: SealPlan, ends: _Ends) -> bool:
    return not plan.is_settled and not isinstance(ends.get(plan.item.stream_id), SbpError)


def _result(
    plan: SealPlan, ends: _Ends, opened: dict[int, StreamRange | SbpError]
) -> SealRangesResult:
    stream_id = plan.item.stream_id
    answer = plan.maybe_error or plan.maybe_answer
    if answer is None:
        end = ends.get(stream_id)
        answer = end if isinstance(end, SbpError) else opened[stream_id]
    if isinstance(answer, SbpError):
        return SealRangesResult(None, status_for(answer), stream_id)
    return SealRangesResult(answer, SUCCESS, stream_id)


async def _seal_at_servers(prover: Prover, open_ranges: Iterable[StreamRange]) -> _Ends:
    """Seal ranges where they are hosted: one connection and few frames for each server."""
    by_address: dict[str, dict[int, StreamRange]] = {}
    for each in open_ranges:
        by_address.setdefault(primary_address(each), {})[each.stream_id] = each
    ends: _Ends = {}
    for part in await asyncio.gather(
        *(
            _seal_at(prover, address, list(hosted.values()))
            for address, hosted in by_address.items()
        )
    ):
        ends |= part
    return ends


async def _seal_at(prover: Prover, address: str, hosted: Sequence[StreamRange]) -> _Ends:
    ends: _Ends = {}
    try:
        async with AsyncClient(address) as client:
            for start in range(0, len(hosted), limits.STREAMS_PER_CALL):
                chunk = hosted[start : start + limits.STREAMS_PER_CALL]
                asked = tuple(RangeId(each.stream_id, each.range_index) for each in chunk)
                seal = partial(
                    client.call,
                    address,
                    Opcode.SEAL_RANGE,
                    SealRangesRequest(limits.SEAL_TIMEOUT_MS, asked),
                    timeout_ms=limits.SEAL_TIMEOUT_MS,
                )
                frames = await prover.ask(client, address, seal)
                known = {each.stream_id: each for each in chunk}
                for frame in frames:
                    response = decode_header(SealRangesResponse, frame.header)
                    check_status(response.status)
                    for result in response.seal_responses:
                        stream_id = stream_id_of(result)
                        if stream_id in known:
                            ends[stream_id] = _end(result, known[stream_id], address)
    except SbpError as error:
        reason: object = error
    else:
        reason = "its answer leaves the range out"
    for each in hosted:
        ends.setdefault(each.stream_id, _unanswered(each, address, reason))
    return ends


def _end(result: SealRangesResult, sealing: StreamRange, address: str) -> SealedRange | SbpError:
    error = maybe_error(result.status)
    if error is not None:
        return _unanswered(sealing, address, error)
    sealed = result.stream_range
    if sealed is None or sealed.end_offset < sealing.start_offset:
        return StatusError(
            StatusCode.PD_INTERNAL,
            f"the server at {address} sealed range {sealing.range_index} of stream"
            f" {sealing.stream_id} at an impossible end: {sealed}",
        )
    return SealedRange(sealing.stream_id, sealing.range_index, sealed.end_offset, result.writers)


def _unanswered(sealing: StreamRange, address: str, reason: object) -> SealUnansweredError:
    return SealUnansweredError(
        StatusCode.SEAL_NO_SERVER_ANSWERED,
        f"range {sealing.range_index} of stream {sealing.stream_id} cannot be sealed now:"
        f" its server at {address or 'an unknown address'} does not answer as expected"
        f" ({reason}); try again when it is back",
    )
