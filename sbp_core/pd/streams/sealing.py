"""Sealing the open ranges of streams, opening the next ones, and announcing both to their servers.

The range servers make it safe: they seal durably and answer where the range ends; only then the
end is stored, once, and a new range opened there. A seal goes on when its caller disconnects: a
stream must not be left without a range to write to. Each step may be repeated, so the next seal
finishes one that was interrupted by a restart.

The functions at the end run on the store's thread, as those of stream_operations.py do.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sbp_core import limits
from sbp_core.errors import (
    InvalidRequestError,
    NoRangeServerError,
    RangeNotFoundError,
    RangeOpenError,
    SbpError,
    StatusCode,
    StatusError,
    ThrottledError,
    invalid,
)
from sbp_core.pd.metadata.store import MetadataStore, StoreThread
from sbp_core.pd.model import NO_SEQ, RangeRecord, SealedRange, ServerLoad, range_table
from sbp_core.pd.placement import Placement
from sbp_core.pd.range_servers import Membership
from sbp_core.pd.streams.fencing import Fence
from sbp_core.pd.streams.primaries import Primaries, SealBackoff
from sbp_core.pd.streams.stream_operations import no_stream
from sbp_core.peers.range_servers import Peers, by_address, by_server, server_addresses
from sbp_core.server.runtime import Clock, cancel_all
from sbp_core.wire.headers import RangeId, SealCause, SealRangesResult, StreamRange
from sbp_core.wire.status import SUCCESS, status_for

_LOG: Final = logging.getLogger(__name__)

_PRIMARY_FIRST_SECONDS: Final = 1.0
"""How long the other servers of a range wait for the seal at its primary."""

_Opened = dict[int, StreamRange | SbpError]
"""By stream id: the writable range, or why there is none."""

_Call = asyncio.Task[dict[int, SealRangesResult | SbpError]]
"""A seal at one server, with an answer for each stream."""

_Targets = Mapping[int, Sequence[int]]
"""By stream id: the servers of its next range, the primary first."""
_NO_TARGETS: Final[_Targets] = {}


class RangeAnnouncer:
    """Sends new and sealed ranges to their servers (SPEC "SYNC_RANGES"), in the background.

    Best effort: it never delays or fails its caller. A server looks a range up that it does not
    know when a request names it.
    """

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._tasks: set[asyncio.Task[None]] = set()

    def announce(self, ranges: Iterable[StreamRange]) -> None:
        """Announce ranges to all their servers, unless SYNC_TASKS_MAX tasks do that already."""
        for address, hosted in by_server(ranges).items():
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
        clock: Clock,
    ) -> None:
        self._store = store
        self._peers = peers
        self._primaries = Primaries(membership, peers, clock)
        self._backoff = SealBackoff(clock)
        self._membership = membership
        self._announcer = announcer
        self._at_work: set[asyncio.Task[list[SealRangesResult]]] = set()
        self._calls: set[_Call] = set()

    async def stop(self) -> None:
        """Cancel the work in progress."""
        await cancel_all(self._at_work)
        await cancel_all(self._calls)

    async def seal(
        self,
        items: Sequence[RangeId],
        cause: int = SealCause.REQUESTED,
        on_begin: Callable[[Sequence[RangeId]], None] = lambda _: None,
        targets: _Targets = _NO_TARGETS,
    ) -> list[SealRangesResult]:
        """Seal ranges; return each stream's new writable range, or why there is none.

        In the order of `items`. New ranges are announced to their servers in the background.

        If the cause is PRIMARY_SILENT, ranges that their primary serves go on, and others may
        exceed `ranges_per_stream_max`: the stream could not be appended to otherwise. If it is
        REPLICA_LACKING, a stream that goes on in one new range after the other has to wait.
        `on_begin` gets the ranges that are sealed. The next ranges are on the servers of `targets`
        as far as these can be given ranges then.
        """
        task = asyncio.create_task(self._seal(items, cause, on_begin, targets))
        self._at_work.add(task)
        task.add_done_callback(self._on_done)
        return await asyncio.shield(task)

    def _on_done(self, task: asyncio.Task[list[SealRangesResult]]) -> None:
        self._at_work.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved, as the caller may have disconnected

    async def _seal(
        self,
        items: Sequence[RangeId],
        cause: int,
        on_begin: Callable[[Sequence[RangeId]], None],
        targets: _Targets,
    ) -> list[SealRangesResult]:
        planned = self._membership.live_servers()
        is_bounded = cause != SealCause.PRIMARY_SILENT
        plans = await self._store.run(plan_seals, items, planned, is_bounded=is_bounded)
        if cause == SealCause.PRIMARY_SILENT:
            plans = await self._without_sound(plans)
        elif cause == SealCause.REPLICA_LACKING:
            plans = [self._after_pause(each) for each in plans]
        on_begin([plan.item for plan in plans if plan.open_range is not None])
        sealing = {
            plan.item.stream_id: plan.open_range for plan in plans if plan.open_range is not None
        }
        fences = {stream_id: Fence(where) for stream_id, where in sealing.items()}
        unsealed = [
            plan.item.stream_id for plan in plans if plan.answer is None and plan.open_range is None
        ]
        opened: _Opened = {}
        if unsealed:
            opened = await self._open(unsealed, {}, planned, targets, is_bounded=is_bounded)
        calls = self._begin_calls(
            sealing.values(), primaries_first=cause != SealCause.PRIMARY_SILENT
        )
        async for decided in self._decisions(calls, fences):
            opened |= await self._open(decided, fences, planned, targets, is_bounded=is_bounded)
        return [_result(plan, fences, opened) for plan in plans]

    async def _without_sound(self, plans: Sequence[SealPlan]) -> list[SealPlan]:
        """Refuse to seal ranges that their primary serves."""
        sound = await self._primaries.sound(
            plan.open_range for plan in plans if plan.open_range is not None
        )
        return [
            plan
            if plan.open_range is None or plan.item.stream_id not in sound
            else SealPlan(
                plan.item,
                ThrottledError.of(
                    f"range {plan.open_range.range_index} of stream {plan.item.stream_id} goes on:"
                    f" its primary at {server_addresses(plan.open_range)[0]} answers the placement"
                    " driver. Retry there; if that fails again, check the network between here and"
                    " that server"
                ),
            )
            for plan in plans
        ]

    def _after_pause(self, plan: SealPlan) -> SealPlan:
        """Refuse to seal a range of a stream that has done so a short time ago.

        But not if too few of its servers are left for an append: other servers may be.
        """
        if plan.open_range is None:
            return plan
        members = {each.server.server_id for each in plan.open_range.servers if each.server}
        live_count = len(members.intersection(self._membership.live_server_ids()))
        if live_count < plan.open_range.ack_count:
            return plan
        wait_ms = self._backoff.maybe_wait_ms(plan.item.stream_id)
        if wait_ms is None:
            return plan
        refusal = ThrottledError.of(
            f"stream {plan.item.stream_id} went on in a new range a short time ago, and keeps range"
            f" {plan.open_range.range_index} for {wait_ms} ms more although a replica lacks entries"
        )
        return SealPlan(plan.item, refusal)

    def _begin_calls(
        self, sealing: Iterable[StreamRange], *, primaries_first: bool
    ) -> dict[_Call, str]:
        """Begin to seal ranges at all their servers; return the calls, each with an address.

        A primary that is alive seals first if it may: it commits what it has accepted. Sealed
        before it, the others would refuse that, and appends wait until the range is settled.
        """
        if not primaries_first:
            calls = {
                asyncio.create_task(self._peers.seal(address, hosted)): address
                for address, hosted in by_server(sealing).items()
            }
        else:
            calls = {}
            led_by = by_address((server_addresses(each)[0], each) for each in sealing)
            for primary, led in led_by.items():
                first = asyncio.create_task(self._peers.seal(primary, led))
                calls[first] = primary
                calls |= {
                    asyncio.create_task(self._seal_after(first, address, copied)): address
                    for address, copied in by_server(led).items()
                    if address != primary
                }
        for call in calls:
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)
        return calls

    async def _seal_after(
        self, first: _Call, address: str, ranges: Sequence[StreamRange]
    ) -> dict[int, SealRangesResult | SbpError]:
        await asyncio.wait({first}, timeout=_PRIMARY_FIRST_SECONDS)
        return await self._peers.seal(address, ranges)

    async def _decisions(
        self, calls: Mapping[_Call, str], fences: Mapping[int, Fence]
    ) -> AsyncIterator[list[int]]:
        """Yield the streams whose range's end is decided, by the answers to their seals.

        A server is not waited for once the others have decided. It is asked nevertheless.
        """
        waiting = set(calls)
        undecided = set(fences)
        while waiting and undecided:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for call in done:
                for stream_id, answer in call.result().items():
                    fences[stream_id].add(calls[call], answer)
            decided = [
                each for each in undecided if isinstance(fences[each].maybe_end(), SealedRange)
            ]
            undecided = {each for each in undecided if not fences[each].is_over}
            if decided:
                yield sorted(decided)

    async def _open(
        self,
        stream_ids: Sequence[int],
        fences: Mapping[int, Fence],
        planned: Sequence[ServerLoad],
        targets: _Targets,
        *,
        is_bounded: bool,
    ) -> _Opened:
        """Store decided ends and open the next ranges, on servers that are likely to be alive.

        If none is any more, those that were `planned` with are used: a stream needs a range.
        """
        silent = {each for fence in fences.values() for each in fence.silent_ids}
        unreachable = {each for fence in fences.values() for each in fence.unreachable_ids}
        unreachable |= {each for each in silent if self._membership.may_be_lost(each)}
        self._membership.suspect(unreachable)
        servers = self._membership.live_servers() or planned
        ends = (fences[each].maybe_end() for each in stream_ids if each in fences)
        sealed = [each for each in ends if isinstance(each, SealedRange)]
        opened, ended = await self._store.run(
            open_next_ranges,
            stream_ids,
            sealed,
            [each for each in servers if each.server_id not in unreachable],
            silent,
            targets=targets,
            is_bounded=is_bounded,
        )
        news = [each for each in opened.values() if isinstance(each, StreamRange)]
        self._announcer.announce([*news, *ended])
        for end in sealed:
            _LOG.info("range sealed stream=%d range=%d end_offset=%d", *end[:3])
        return opened


def _result(plan: SealPlan, fences: Mapping[int, Fence], opened: _Opened) -> SealRangesResult:
    stream_id = plan.item.stream_id
    answer = plan.answer or opened.get(stream_id)
    if answer is None:
        end = fences[stream_id].maybe_end()
        answer = end if isinstance(end, SbpError) else fences[stream_id].refusal()
    if isinstance(answer, SbpError):
        return SealRangesResult(None, status_for(answer), stream_id)
    return SealRangesResult(answer, SUCCESS, stream_id)


@dataclass(frozen=True, slots=True)
class SealPlan:
    """One item of SEAL_RANGE: refused already, answered already, or to be done.

    `open_range` is the range that its server has to seal first; without it only the next range is
    missing.
    """

    item: RangeId
    answer: StreamRange | SbpError | None = None
    open_range: StreamRange | None = None


def plan_seals(
    store: MetadataStore,
    items: Sequence[RangeId],
    servers: Sequence[ServerLoad],
    *,
    is_bounded: bool = True,
) -> list[SealPlan]:
    """Look at what SEAL_RANGE asks for, while these servers can be given new ranges.

    Sealing a range that is no longer the last one is a repeat: it has its answer already. Unless
    it `is_bounded`, a stream may get more ranges than it is to have.
    """
    addresses = store.servers.addresses()
    placement = Placement(servers, {})
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
            where = range_table(last, addresses)
            plans.append(_plan_open(store, item, where, placement, is_bounded=is_bounded))
    return plans


def _plan_open(
    store: MetadataStore,
    item: RangeId,
    open_range: StreamRange,
    placement: Placement,
    *,
    is_bounded: bool,
) -> SealPlan:
    """Return the plan of a range that is open: sealed without a successor, it would end appends."""
    try:
        if is_bounded:
            store.capacity.check_ranges(item.stream_id, store.range_count(item.stream_id))
        (stream,) = store.streams_by_id([item.stream_id])
        placement.check(1 if stream is None else max(1, stream.ack_count))
    except (InvalidRequestError, NoRangeServerError) as error:
        return SealPlan(item, error)
    return SealPlan(item, open_range=open_range)


def open_next_ranges(
    store: MetadataStore,
    stream_ids: Sequence[int],
    sealed: Sequence[SealedRange],
    servers: Sequence[ServerLoad],
    last_servers: Collection[int] = (),
    *,
    targets: _Targets = _NO_TARGETS,
    is_bounded: bool = True,
) -> tuple[_Opened, list[StreamRange]]:
    """Record where ranges were sealed, and open the next range of each stream that has none open.

    Returns the writable range of each stream, or why it has none, and the replicated ranges that
    are sealed. The seals are recorded if no range can be opened, too. A range that was sealed
    before keeps its end. New ranges are on the servers of `targets` where possible, on the
    `last_servers` only if there are no others.
    """
    store.seal_ranges(sealed)
    addresses = store.servers.addresses()
    placement = Placement(servers, store.primary_counts(), last_servers)
    opened: _Opened = {}
    news: list[RangeRecord] = []
    for stream_id in dict.fromkeys(stream_ids):
        last = store.maybe_last_range(stream_id)
        if last is not None and last.end_offset is None:
            opened[stream_id] = range_table(last, addresses)
            continue
        try:
            wanted = StreamRange(stream_id=stream_id)
            servers_wanted = targets.get(stream_id, ())
            news.append(
                _next_range(store, wanted, placement, servers_wanted, is_bounded=is_bounded)
            )
        except StatusError as error:
            opened[stream_id] = error
    for new, is_made in zip(news, store.create_ranges(news), strict=True):
        opened[new.stream_id] = range_table(new, addresses) if is_made else _overtaken(new)
    ended = [
        range_table(each, addresses)
        for stream_id, index, *_ in sealed
        for each in store.ranges_after(
            (stream_id, index - 1), 1, stream_id=stream_id, server_id=None
        )
        if each.range_index == index and each.end_seq != NO_SEQ
    ]
    return opened, ended


def create_range(
    store: MetadataStore, wanted: StreamRange | None, servers: Sequence[ServerLoad]
) -> StreamRange:
    """Open the next range of a stream (SPEC "CREATE_RANGE").

    Raises StatusError when the stream is unknown, its last range open, or no server alive.
    """
    if wanted is None:
        raise invalid("CREATE_RANGE names no stream; set stream_range.stream_id")
    new = _next_range(store, wanted, Placement(servers, store.primary_counts()))
    if store.create_ranges([new]) != [True]:
        raise _overtaken(new)
    return range_table(new, store.servers.addresses())


def _next_range(
    store: MetadataStore,
    wanted: StreamRange,
    placement: Placement,
    servers_wanted: Sequence[int] = (),
    *,
    is_bounded: bool = True,
) -> RangeRecord:
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
    if is_bounded:
        store.capacity.check_ranges(stream_id, store.range_count(stream_id))
    return RangeRecord(
        stream_id,
        index,
        start,
        None,
        stream.ack_count,
        placement.next_servers(stream.replica_count, stream.ack_count, servers_wanted),
        stream.created_at_ms,
    )


def _overtaken(new: RangeRecord) -> StatusError:
    return StatusError(
        StatusCode.PD_INTERNAL,
        f"range {new.range_index} of stream {new.stream_id} was created by another request; list"
        " its ranges again",
    )
