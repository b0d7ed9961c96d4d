"""Sealing the open ranges of streams, opening the next ones, and telling servers of these.

Safety comes from the range server: it seals durably and answers where the range ends; only then is
the end recorded and a new range opened there. A seal that was begun goes on when its caller leaves:
a stream must not be left without a range to write to. Each step may be repeated, so one that was
cut short by the end of the server is finished by the next one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from sbp_core import limits
from sbp_core.errors import SbpError, SealUnansweredError, StatusCode, StatusError
from sbp_core.pd.metadata.store import StoreThread
from sbp_core.pd.model import SealedRange
from sbp_core.pd.servers.registry import Membership
from sbp_core.pd.streams import range_operations as ranges
from sbp_core.pd.streams.range_operations import SealPlan
from sbp_core.server.peers import Peers, by_server, primary_address
from sbp_core.server.runtime import cancel_all
from sbp_core.wire.headers import RangeId, SealRangesResult, StreamRange
from sbp_core.wire.status import SUCCESS, status_for

_LOG: Final = logging.getLogger(__name__)

_Ends = dict[int, SealedRange | SbpError]
"""By stream id: the range that was sealed, with its end, or why it was not."""


class RangeAnnouncer:
    """Sends new ranges to the servers that host them (SPEC "SYNC_RANGES"), in the background.

    Best effort: it never delays or fails its caller. What is not told, a server looks up when a
    request names it.
    """

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._tasks: set[asyncio.Task[None]] = set()

    def announce(self, opened: Iterable[StreamRange]) -> None:
        """Tell the servers of these ranges soon, unless too much is under way already."""
        for address, hosted in by_server(opened).items():
            if address and len(self._tasks) < limits.SYNC_TASKS_MAX:
                task = asyncio.create_task(self._send(address, hosted))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """Give up what is under way."""
        await cancel_all(self._tasks)

    async def _send(self, address: str, hosted: Sequence[StreamRange]) -> None:
        try:
            await self._peers.sync(address, hosted)
        except SbpError as error:
            _LOG.debug("%s was not told of %d new ranges: %s", address, len(hosted), error)


class Sealer:
    """Seals ranges at the servers that host them."""

    def __init__(
        self,
        store: StoreThread,
        membership: Membership,
        announcer: RangeAnnouncer,
        peers: Peers,
    ) -> None:
        self._store = store
        self._peers = peers
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
        sealing = {
            plan.item.stream_id: plan.maybe_open for plan in plans if plan.maybe_open is not None
        }
        ends = _ends(sealing, await self._peers.seal(sealing.values()))
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


def _ends(
    sealing: Mapping[int, StreamRange], answers: Mapping[int, SealRangesResult | SbpError]
) -> _Ends:
    return {stream_id: _end(answers[stream_id], each) for stream_id, each in sealing.items()}


def _end(answer: SealRangesResult | SbpError, sealing: StreamRange) -> SealedRange | SbpError:
    address = primary_address(sealing)
    if isinstance(answer, SbpError):
        return _unanswered(sealing, address, answer)
    sealed = answer.stream_range
    if sealed is None or sealed.end_offset < sealing.start_offset:
        return StatusError(
            StatusCode.PD_INTERNAL,
            f"the server at {address} sealed range {sealing.range_index} of stream"
            f" {sealing.stream_id} at an impossible end: {sealed}",
        )
    return SealedRange(sealing.stream_id, sealing.range_index, sealed.end_offset, answer.writers)


def _unanswered(sealing: StreamRange, address: str, reason: SbpError) -> SealUnansweredError:
    return SealUnansweredError(
        StatusCode.SEAL_NO_SERVER_ANSWERED,
        f"range {sealing.range_index} of stream {sealing.stream_id} cannot be sealed now:"
        f" its server at {address or 'an unknown address'} does not answer as expected"
        f" ({reason}); try again when it is back",
    )
