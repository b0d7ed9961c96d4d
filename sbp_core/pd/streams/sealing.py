"""Sealing the open ranges of streams, opening the next ones, and announcing both to their servers.

The range servers make it safe: they seal durably and answer where the range ends; only then the
end is stored, once, and a new range opened there. A seal goes on when its caller disconnects: a
stream must not be left without a range to write to. Each step may be repeated, so the next seal
finishes a seal that a restart interrupted.

A server that sends no heartbeat, or that a client does not reach, may be alive. So the placement
driver asks the server before it ends a range (SPEC "SEAL_RANGE"): a range that is open there, and
that the server leads, goes on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Final

from sbp_core import limits
from sbp_core.errors import SbpError, ThrottledError
from sbp_core.pd.metadata.store import StoreThread
from sbp_core.pd.model import SealedRange, ServerLoad
from sbp_core.pd.server_membership import Membership
from sbp_core.pd.streams.fencing import UNREACHABLE, Fence
from sbp_core.pd.streams.range_operations import (
    NO_TARGETS,
    Opened,
    SealPlan,
    Targets,
    open_next_ranges,
    plan_seals,
)
from sbp_core.peers.driver_calls import Peers, by_address, by_server, server_addresses
from sbp_core.server.runtime import Clock, cancel_all
from sbp_core.wire.headers import (
    DescribeRangeResult,
    RangeId,
    SealCause,
    SealRangesResult,
    StreamRange,
)
from sbp_core.wire.status import SUCCESS, status_for

_LOG: Final = logging.getLogger(__name__)

SEAL_BACKOFF_MS: Final = 1_000
SEAL_BACKOFF_MS_MAX: Final = 60_000
"""The first and the longest pause between ranges of a stream that end as a replica is lacking."""
_LOOKS: Final = 3
"""Intervals of heartbeats in which a server that sends these has to answer."""
_PRIMARY_FIRST_SECONDS: Final = 1.0
"""How long the other servers of a range wait for the seal at its primary."""

_Call = asyncio.Task[dict[int, SealRangesResult | SbpError]]
"""A seal at one server, with an answer for each stream."""


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


class Primaries:
    """Asks the primaries of ranges whether they serve these."""

    def __init__(self, membership: Membership, peers: Peers, clock: Clock) -> None:
        self._membership = membership
        self._peers = peers
        self._clock = clock

    async def sound(self, ranges: Iterable[StreamRange]) -> set[int]:
        """Return the streams whose open range is served by its primary."""
        by_primary: dict[tuple[int, str], list[StreamRange]] = {}
        for each in ranges:
            first = each.servers[0].server
            if first is not None and first.advertise_addr:
                primary = first.server_id, first.advertise_addr
                by_primary.setdefault(primary, []).append(each)
        asked = (self._ask(*primary, led) for primary, led in by_primary.items())
        return {stream_id for part in await asyncio.gather(*asked) for stream_id in part}

    async def _ask(self, server_id: int, address: str, led: Sequence[StreamRange]) -> set[int]:
        """Return the streams of which a server says that it leads the range.

        The server has the time between two heartbeats for its answer, or three times as long if a
        heartbeat comes. A server that does not answer gets no new ranges.
        """
        began = self._clock.monotonic()
        call = asyncio.create_task(self._peers.describe_at(address, led))
        try:
            for _ in range(_LOOKS):
                await asyncio.wait({call}, timeout=self._membership.interval_ms / 1000)
                if call.done() or not self._membership.has_heard_since(server_id, began):
                    break
            answers = call.result() if call.done() else {}
        finally:
            await cancel_all([call])
        if any(not isinstance(each, UNREACHABLE) for each in answers.values()):
            self._membership.note_answer(server_id)
        else:
            self._membership.suspect([server_id])
        return {
            stream_id
            for stream_id, answer in answers.items()
            if isinstance(answer, DescribeRangeResult)
            and answer.stream_range is not None
            and answer.stream_range.end_offset < 0
        }


class SealBackoff:
    """How long streams wait before they leave a range again whose primary serves it.

    A server that is half dead may be named as the reason for ever.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last: dict[int, tuple[float, float]] = {}
        """By stream: when it went on in a new range last, and the pause in ms from then on."""

    def maybe_wait_ms(self, stream_id: int) -> int | None:
        """Return how long a stream has to wait, None if it may go on now, which is noted."""
        now = self._clock.monotonic()
        went_on_at, pause_ms = self._last.get(stream_id, (now, 0.0))
        elapsed_ms = 1000 * (now - went_on_at)
        if elapsed_ms < pause_ms:
            return round(pause_ms - elapsed_ms)
        is_over = elapsed_ms >= 2 * SEAL_BACKOFF_MS_MAX
        self._last = {
            each: last
            for each, last in self._last.items()
            if 1000 * (now - last[0]) < 2 * SEAL_BACKOFF_MS_MAX
        }
        next_ms = SEAL_BACKOFF_MS if is_over or not pause_ms else 2 * pause_ms
        self._last[stream_id] = now, min(next_ms, SEAL_BACKOFF_MS_MAX)
        return None


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
        targets: Targets = NO_TARGETS,
    ) -> list[SealRangesResult]:
        """Seal ranges; return each stream's new writable range, or the error.

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
        targets: Targets,
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
        opened: Opened = {}
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
        targets: Targets,
        *,
        is_bounded: bool,
    ) -> Opened:
        """Store decided ends and open the next ranges, on servers that are likely to be alive.

        If no server is alive any longer, the `planned` servers are used: a stream needs a range.
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


def _result(plan: SealPlan, fences: Mapping[int, Fence], opened: Opened) -> SealRangesResult:
    stream_id = plan.item.stream_id
    answer = plan.answer or opened.get(stream_id)
    if answer is None:
        end = fences[stream_id].maybe_end()
        answer = end if isinstance(end, SbpError) else fences[stream_id].refusal()
    if isinstance(answer, SbpError):
        return SealRangesResult(None, status_for(answer), stream_id)
    return SealRangesResult(answer, SUCCESS, stream_id)
