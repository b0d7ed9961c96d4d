"""Seals that nobody asks for: fail-over from silent servers, and replicas that are missing.

Open ranges with several replicas are sealed when their primary sends no heartbeat, and does not
answer either when it is asked (sealing.py): the stream goes on in a new range on other servers.
The primary cannot acknowledge anything afterwards, whatever it does (see `sbp_core.replication`).

A stream whose open range does not have the replicas that it is to have gets another range: because
servers were missing when it was opened, because the stream was changed, or because one of its
servers is being drained.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import zip_longest
from math import inf
from typing import Final

from sbp_core import limits
from sbp_core.errors import SbpError, StatusError, ThrottledError
from sbp_core.pd.metadata.store import MetadataStore, StoreThread
from sbp_core.pd.model import BEFORE_RANGES, Copies, RangeKey, RangeRecord, ServerLoad
from sbp_core.pd.placement import Placement
from sbp_core.pd.server_membership import Membership
from sbp_core.pd.streams.sealing import Sealer
from sbp_core.server.runtime import Clock, cancel_all
from sbp_core.wire.headers import RangeId, SealCause, SealRangesResult, StreamRange
from sbp_core.wire.status import maybe_error

_LOG: Final = logging.getLogger(__name__)


class FailOver:
    """Seals these ranges in the background, FAIL_OVER_RANGES_MAX at a time.

    After a start, a server that was not heard yet has a whole heartbeat timeout. A placement driver
    that was a follower has heard the servers already, and gives them the usual time.
    """

    def __init__(
        self,
        store: StoreThread,
        membership: Membership,
        sealer: Sealer,
        clock: Clock,
        *,
        interval_ms: int = limits.FAIL_OVER_INTERVAL_MS,
    ) -> None:
        self._store = store
        self._interval_seconds = interval_ms / 1000
        self._membership = membership
        self._sealer = sealer
        self._clock = clock
        self._after: dict[int, RangeKey] = {}
        """Maps the id of a silent server to the last of its ranges that was looked at."""
        self._at_work: set[int] = set()
        """The streams that are being sealed."""
        self._begun: set[int] = set()
        """The streams whose fail-over was logged as begun."""
        self._failures: dict[int, tuple[float, str]] = {}
        """Maps a stream that could not be sealed yet to when that was logged, and the reason."""
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Begin to look."""
        self._add_task(asyncio.create_task(self._run()))

    async def stop(self) -> None:
        """Cancel the work in progress; seals go on until the sealer is stopped."""
        await cancel_all(self._tasks)

    async def renew(self, stream_ids: Sequence[int]) -> None:
        """Seal the open ranges of streams, so that the next ones are as the streams were changed.

        A range that cannot be sealed now is sealed later.
        """
        await self._seal_for_copies([RangeId(stream_id=each) for each in stream_ids])

    async def drain(self) -> None:
        """Seal the open ranges of servers that are to have none; the next ones are on others."""
        await self._begin_renewal()

    async def obstacles(self) -> dict[int, str]:
        """Return why open ranges stay on servers that are being drained, and the remedy.

        Maps server id to the reason. Servers whose ranges are moving are not in the map.
        """
        drained = await self._store.run(
            lambda store: {
                server_id: store.open_ranges_on(server_id, limits.FAIL_OVER_RANGES_MAX)
                for server_id in self._membership.draining
            }
        )
        live = self._membership.live_server_ids()
        found: dict[int, str] = {}
        for server_id, ranges in drained.items():
            alone = [each for each in ranges if len(each.server_ids) == 1]
            if alone and server_id not in live:
                found[server_id] = lost_alone(alone)
                continue
            failed = (self._failures.get(each.stream_id) for each in ranges)
            reason = next((each for each in failed if each is not None), None)
            if reason is not None:
                found[server_id] = reason[1]
        return found

    async def _run(self) -> None:
        renewed = self._clock.monotonic()
        while True:
            await asyncio.sleep(self._interval_seconds)
            now = self._clock.monotonic()
            try:
                await self._begin_fail_over()
                is_due = round(1000 * (now - renewed)) >= limits.RENEWAL_INTERVAL_MS
                if is_due and self._membership.has_listened:
                    renewed = now
                    await self._begin_renewal()
            except SbpError as error:  # a store that fails, or does not lead
                _LOG.debug("silent primaries not looked for: %s", error)

    async def _begin_fail_over(self) -> None:
        count_max = limits.FAIL_OVER_RANGES_MAX - len(self._at_work)
        if not self._membership.live_server_ids() or count_max <= 0:
            return
        known = await self._store.run(lambda store: sorted(store.servers.addresses()))
        lost = [each for each in known if self._membership.may_be_lost(each)]
        if not lost:
            return
        found = await self._store.run(find_led_ranges, lost, self._after, count_max)
        self._after = {
            server_id: max((each.stream_id, each.range_index) for each in held)
            for server_id, held in found.items()
            if held
        }
        primaries = {
            each.stream_id: server_id
            for server_id, held in found.items()
            for each in held
            if each.stream_id not in self._at_work
        }
        items = [each for held in found.values() for each in held if each.stream_id in primaries]
        if items:
            self._add_task(asyncio.create_task(self._fail_over(items, primaries)))

    async def _fail_over(self, items: Sequence[RangeId], primaries: Mapping[int, int]) -> None:
        def on_begin(lost: Sequence[RangeId]) -> None:
            for item in lost:
                if item.stream_id not in self._begun:
                    self._begun.add(item.stream_id)
                    _LOG.warning(
                        "fail-over began stream=%d range=%d primary=%d: it sends no heartbeat, and"
                        " does not serve the range",
                        *(item.stream_id, item.range_index, primaries[item.stream_id]),
                    )

        opened = await self._seal(items, SealCause.PRIMARY_SILENT, on_begin)
        for item, successor in opened:
            self._begun.discard(item.stream_id)
            primary = successor.servers[0].server
            _LOG.warning(
                "fail-over ended stream=%d range=%d old_primary=%d next_range=%d new_primary=%d",
                *(item.stream_id, item.range_index, primaries[item.stream_id]),
                *(successor.range_index, -1 if primary is None else primary.server_id),
            )

    async def _begin_renewal(self) -> None:
        count_max = limits.FAIL_OVER_RANGES_MAX - len(self._at_work)
        renewable = await self._store.run(find_renewable, self._membership.live_servers())
        drained = await self._store.run(
            find_drained, self._membership.draining, limits.FAIL_OVER_RANGES_MAX
        )
        renewed = {each.stream_id: RangeId(each.stream_id, each.range_index) for each in renewable}
        items = in_turn(
            [each for each in drained.values() if each.stream_id not in self._at_work],
            [
                each
                for stream_id, each in renewed.items()
                if stream_id not in self._at_work and stream_id not in drained
            ],
        )
        if items and count_max > 0:
            self._add_task(asyncio.create_task(self._seal_for_copies(items[:count_max])))

    async def _seal_for_copies(self, items: Sequence[RangeId]) -> None:
        for item, opened in await self._seal(items):
            _LOG.info(
                "replicas placed stream=%d range=%d replicas=%d",
                *(item.stream_id, opened.range_index, opened.replica_count),
            )

    async def _seal(
        self,
        items: Sequence[RangeId],
        cause: SealCause = SealCause.REQUESTED,
        on_begin: Callable[[Sequence[RangeId]], None] = lambda _: None,
    ) -> list[tuple[RangeId, StreamRange]]:
        """Return the ranges that are sealed, with the next ones; log why others are not."""
        stream_ids = {each.stream_id for each in items}
        self._at_work |= stream_ids
        try:
            results = await self._sealer.seal(items, cause, on_begin)
        finally:
            self._at_work -= stream_ids
        opened = []
        for item, result in zip(items, results, strict=True):
            if result.stream_range is not None:
                self._failures.pop(item.stream_id, None)
                opened.append((item, result.stream_range))
            elif error := self._maybe_news(item, result):
                reason = (item.stream_id, item.range_index, error)
                if cause is SealCause.PRIMARY_SILENT:
                    _LOG.warning("fail-over waits stream=%d range=%d: %s", *reason)
                else:
                    _LOG.warning("replicas not placed stream=%d range=%d: %s", *reason)
        return opened

    def _maybe_news(self, item: RangeId, result: SealRangesResult) -> SbpError | None:
        """Return why a range is not sealed, or has no successor, each STUCK_LOG_INTERVAL_MS."""
        error = maybe_error(result.status)
        if isinstance(error, ThrottledError):
            _LOG.debug("primary answers stream=%d: %s", item.stream_id, error)
            return None
        now = self._clock.monotonic()
        logged_at, _ = self._failures.get(item.stream_id, (-inf, ""))
        is_due = 1000 * (now - logged_at) >= limits.STUCK_LOG_INTERVAL_MS
        self._failures[item.stream_id] = now if is_due else logged_at, str(error)
        return error if is_due else None

    def _add_task(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, StatusError):  # the store has said so
            _LOG.error("ranges not sealed", exc_info=error)


def find_led_ranges(
    store: MetadataStore,
    server_ids: Sequence[int],
    after: Mapping[int, RangeKey],
    count_max: int,
) -> dict[int, list[RangeId]]:
    """Return the open replicated ranges of which these servers are the primaries, by primary.

    Return ranges behind `after`, `count_max` at most, and begin again behind the last range.
    """
    found: dict[int, list[RangeId]] = {}
    for server_id in server_ids:
        found[server_id] = store.replicated_ranges(
            server_id, after.get(server_id, BEFORE_RANGES), count_max
        )
        count_max -= len(found[server_id])
    return found


def find_renewable(store: MetadataStore, servers: Sequence[ServerLoad]) -> list[Copies]:
    """Return the streams that can be given the replicas now that they are to have."""
    server_count = Placement(servers, {}).server_count
    return [
        each
        for each in store.wrong_copies()
        if not each.missing_count or not each.placed_count or server_count >= each.wanted_count
    ]


def find_drained(
    store: MetadataStore, draining: Collection[int], count_max: int
) -> dict[int, RangeId]:
    """Return open ranges of servers that are to have none, by stream."""
    return {
        each.stream_id: RangeId(each.stream_id, each.range_index)
        for server_id in draining
        for each in store.open_ranges_on(server_id, max(0, count_max))
    }


def lost_alone(ranges: Sequence[RangeRecord]) -> str:
    """Return why open ranges with one replica stay on a server that is down, and the remedy."""
    first = ranges[0]
    return (
        f"{len(ranges)} open ranges have their only replica on this server, which is down; the"
        f" first is range {first.range_index} of stream {first.stream_id}. Start it with its data"
        " directory; if that is lost permanently, so are their records: delete the streams"
    )


def in_turn(first: Sequence[RangeId], second: Sequence[RangeId]) -> list[RangeId]:
    """Return the items of both, one of each in turn: neither keeps the others waiting."""
    pairs = zip_longest(first, second)
    return [each for pair in pairs for each in pair if each is not None]


def missing_replicas(store: MetadataStore) -> dict[int, int]:
    """Return how many replicas are missing, by stream (SPEC `range_missing_replica_cnt`)."""
    wrong = store.wrong_copies()
    return {each.stream_id: each.missing_count for each in wrong if each.missing_count}
