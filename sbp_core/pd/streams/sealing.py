"""Sealing the open ranges of streams, opening the next ones, and announcing these to their servers.

The range server makes it safe: it seals durably and answers where the range ends; only then the end
is stored and a new range opened there. A seal goes on when its caller disconnects: a stream must
not be left without a range to write to. Each step may be repeated, so the next seal finishes one
that was interrupted by a restart.

The functions at the end run on the store's thread, as those of stream_operations.py do.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from sbp_core import limits
from sbp_core.errors import (
    InvalidRequestError,
    RangeNotFoundError,
    RangeOpenError,
    SbpError,
    SealUnansweredError,
    StatusCode,
    StatusError,
    invalid,
)
from sbp_core.pd.metadata.store import MetadataStore, StoreThread
from sbp_core.pd.model import RangeRecord, SealedRange, ServerLoad, range_table
from sbp_core.pd.range_servers import Membership, Placement
from sbp_core.pd.streams.stream_operations import no_stream
from sbp_core.server.peers import Peers, by_server, primary_address
from sbp_core.server.runtime import cancel_all
from sbp_core.wire.headers import RangeId, SealRangesResult, StreamRange
from sbp_core.wire.status import SUCCESS, status_for

_LOG: Final = logging.getLogger(__name__)

_Ends = dict[int, SealedRange | SbpError]
"""By stream id: the range that was sealed, with its end, or why it was not."""


class RangeAnnouncer:
    """Sends new ranges to the servers that host them (SPEC "SYNC_RANGES"), in the background.

    Best effort: it never delays or fails its caller. A server looks a range up that it does not
    know when a request names it.
    """

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._tasks: set[asyncio.Task[None]] = set()

    def announce(self, opened: Iterable[StreamRange]) -> None:
        """Announce these ranges to their servers, unless SYNC_TASKS_MAX tasks do that already."""
        for address, hosted in by_server(opened).items():
            if address and len(self._tasks) < limits.SYNC_TASKS_MAX:
                task = asyncio.create_task(self._send(address, hosted))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """Cancel the work in progress."""
        await cancel_all(self._tasks)

    async def _send(self, address: str, hosted: Sequence[StreamRange]) -> None:
        try:
            await self._peers.sync(address, hosted)
        except SbpError as error:
            _LOG.debug("ranges not announced address=%s ranges=%d: %s", address, len(hosted), error)


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
        """Cancel the work in progress."""
        await cancel_all(self._at_work)

    async def seal(self, items: Sequence[RangeId]) -> list[SealRangesResult]:
        """Seal ranges; return each stream's new writable range, or why there is none.

        In the order of `items`. New ranges are announced to their servers in the background.
        """
        task = asyncio.create_task(self._seal(items))
        self._at_work.add(task)
        task.add_done_callback(self._on_done)
        return await asyncio.shield(task)

    def _on_done(self, task: asyncio.Task[list[SealRangesResult]]) -> None:
        self._at_work.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved, as the caller may have disconnected

    async def _seal(self, items: Sequence[RangeId]) -> list[SealRangesResult]:
        plans = await self._store.run(plan_seals, items)
        sealing = {
            plan.item.stream_id: plan.open_range for plan in plans if plan.open_range is not None
        }
        answers = await self._peers.seal(sealing.values())
        ends: _Ends = {each: _end(answers[each], where) for each, where in sealing.items()}
        sealed = [end for end in ends.values() if isinstance(end, SealedRange)]
        opened = await self._store.run(
            open_next_ranges,
            [
                plan.item.stream_id
                for plan in plans
                if plan.answer is None and not isinstance(ends.get(plan.item.stream_id), SbpError)
            ],
            sealed,
            self._membership.live_servers(),
        )
        self._announcer.announce(each for each in opened.values() if isinstance(each, StreamRange))
        return [_result(plan, ends, opened) for plan in plans]


def _result(
    plan: SealPlan, ends: _Ends, opened: dict[int, StreamRange | SbpError]
) -> SealRangesResult:
    stream_id = plan.item.stream_id
    answer = plan.answer
    if answer is None:
        end = ends.get(stream_id)
        answer = end if isinstance(end, SbpError) else opened[stream_id]
    if isinstance(answer, SbpError):
        return SealRangesResult(None, status_for(answer), stream_id)
    return SealRangesResult(answer, SUCCESS, stream_id)


def _end(answer: SealRangesResult | SbpError, sealing: StreamRange) -> SealedRange | SbpError:
    address = primary_address(sealing)
    if isinstance(answer, SbpError):
        return SealUnansweredError.of(
            f"range {sealing.range_index} of stream {sealing.stream_id} cannot be sealed now:"
            f" its server at {address or 'an unknown address'} does not answer as expected"
            f" ({answer}); retry when it is reachable"
        )
    sealed = answer.stream_range
    if sealed is None or sealed.end_offset < sealing.start_offset:
        return StatusError(
            StatusCode.PD_INTERNAL,
            f"the server at {address} sealed range {sealing.range_index} of stream"
            f" {sealing.stream_id} at an end before its start: {sealed}; see the log of that"
            " server",
        )
    return SealedRange(sealing.stream_id, sealing.range_index, sealed.end_offset, answer.writers)


@dataclass(frozen=True, slots=True)
class SealPlan:
    """One item of SEAL_RANGE: refused already, answered already, or to be done.

    `open_range` is the range that its server has to seal first; without it only the next range is
    missing.
    """

    item: RangeId
    answer: StreamRange | SbpError | None = None
    open_range: StreamRange | None = None


def plan_seals(store: MetadataStore, items: Sequence[RangeId]) -> list[SealPlan]:
    """Look at what SEAL_RANGE asks for.

    Sealing a range that is no longer the last one is a repeat: it has its answer already.
    """
    addresses = store.servers.addresses()
    plans = []
    for item in items:
        last = store.maybe_last_range(item.stream_id)
        if last is None:
            plans.append(SealPlan(item, no_stream(item.stream_id)))
        elif item.range_index > last.range_index:
            error = RangeNotFoundError.of(
                f"stream {item.stream_id} has no range {item.range_index}; list its ranges again"
            )
            plans.append(SealPlan(item, error))
        elif last.end_offset is not None:
            plans.append(SealPlan(item))
        elif 0 <= item.range_index < last.range_index:
            plans.append(SealPlan(item, range_table(last, addresses)))
        else:
            plans.append(_plan_open(store, item, range_table(last, addresses)))
    return plans


def _plan_open(store: MetadataStore, item: RangeId, open_range: StreamRange) -> SealPlan:
    """Return the plan of a range that is open: sealed without a successor, it would end appends."""
    try:
        store.capacity.check_ranges(item.stream_id, store.range_count(item.stream_id))
    except InvalidRequestError as error:
        return SealPlan(item, error)
    return SealPlan(item, open_range=open_range)


def open_next_ranges(
    store: MetadataStore,
    stream_ids: Sequence[int],
    sealed: Sequence[SealedRange],
    servers: Sequence[ServerLoad],
) -> dict[int, StreamRange | SbpError]:
    """Record where ranges were sealed, and open the next range of each stream that has none open.

    Returns the writable range of each stream, or why it has none; the seals are recorded
    nevertheless.
    """
    store.seal_ranges(sealed)
    addresses = store.servers.addresses()
    placement = Placement(servers, store.open_range_counts())
    opened: dict[int, StreamRange | SbpError] = {}
    news: list[RangeRecord] = []
    for stream_id in dict.fromkeys(stream_ids):
        last = store.maybe_last_range(stream_id)
        if last is not None and last.end_offset is None:
            opened[stream_id] = range_table(last, addresses)
            continue
        try:
            news.append(_next_range(store, StreamRange(stream_id=stream_id), placement))
        except StatusError as error:
            opened[stream_id] = error
    for new, is_made in zip(news, store.create_ranges(news), strict=True):
        opened[new.stream_id] = range_table(new, addresses) if is_made else _overtaken(new)
    return opened


def create_range(
    store: MetadataStore, wanted: StreamRange | None, servers: Sequence[ServerLoad]
) -> StreamRange:
    """Open the next range of a stream (SPEC "Frame Definitions", 0x2004).

    Raises StatusError when the stream is unknown, its last range open, or no server alive.
    """
    if wanted is None:
        raise invalid("CREATE_RANGE names no stream; set stream_range.stream_id")
    new = _next_range(store, wanted, Placement(servers, store.open_range_counts()))
    if store.create_ranges([new]) != [True]:
        raise _overtaken(new)
    return range_table(new, store.servers.addresses())


def _next_range(store: MetadataStore, wanted: StreamRange, placement: Placement) -> RangeRecord:
    stream_id = wanted.stream_id
    (stream,) = store.streams_by_id([stream_id])
    if stream is None:
        raise no_stream(stream_id)
    last = store.maybe_last_range(stream_id)
    index, start = 0, 0
    if last is not None:
        if last.end_offset is None:
            raise RangeOpenError.of(
                f"range {last.range_index} of stream {stream_id} is open; seal it first"
            )
        index, start = last.range_index + 1, last.end_offset
    if wanted.range_index not in {-1, index}:
        raise invalid(
            f"the next range of stream {stream_id} has index {index}, not {wanted.range_index};"
            " list its ranges again"
        )
    store.capacity.check_ranges(stream_id, store.range_count(stream_id))
    return RangeRecord(
        stream_id,
        index,
        start,
        None,
        stream.ack_count,
        (placement.next_server(),),
        stream.created_at_ms,
    )


def _overtaken(new: RangeRecord) -> StatusError:
    return StatusError(
        StatusCode.PD_INTERNAL,
        f"range {new.range_index} of stream {new.stream_id} was created by another request; list"
        " its ranges again",
    )
