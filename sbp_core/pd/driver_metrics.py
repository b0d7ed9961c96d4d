"""The metrics of a placement driver.

How far groups lag is asked of the range servers, which alone know where open ranges end. That is
done in the background when metrics are read, every LAG_INTERVAL_SECONDS at most, so a range server
that does not answer delays no one: its streams are left out.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import Final

from sbp_core.errors import SbpError
from sbp_core.pd.backups.restore_handlers import Restorer
from sbp_core.pd.groups.group_operations import GroupOperations
from sbp_core.pd.metadata.store import MetadataStore, StoreThread
from sbp_core.pd.model import range_table
from sbp_core.pd.server_membership import Membership
from sbp_core.pd.txns.publishing import Publisher
from sbp_core.peers.driver_calls import Peers, by_address, server_addresses
from sbp_core.server.metrics import Catalog, Reading
from sbp_core.server.runtime import Clock, cancel_all
from sbp_core.server.served import Unready
from sbp_core.wire.headers import StreamRange

_LOG: Final = logging.getLogger(__name__)

LAG_INTERVAL_SECONDS: Final = 10.0
LAG_SERIES_MAX: Final = 200
"""How many cursors, the ones that lag most, have a series of their own. The others are summed."""
STREAM_RANGES_MAX: Final = 200
LAG_CURSORS_MAX: Final = 5_000
"""How many cursors, the most recently committed, are looked at."""
_LAG_STALE_SECONDS: Final = 60.0
_LAG_WAIT_SECONDS: Final = 1.0

METRICS: Final = Catalog()

LEADER: Final = METRICS.gauge(
    "sbp_pd_leader", "1 if this placement driver leads, else 0; the metrics below are the leader's."
)
TERM: Final = METRICS.gauge("sbp_pd_term", "The term in which it leads; 0 while it does not.")
_SERVERS: Final = METRICS.gauge(
    "sbp_pd_range_servers", "Range servers that were heard lately (`live`), or drained.", "state"
)
_ROWS: Final = METRICS.gauge(
    "sbp_pd_rows",
    "Streams, cursors, members of groups, decided batches, claims of producers and aborted"
    " transactions that are kept.",
    "of",
)
_ROWS_MAX: Final = METRICS.gauge("sbp_pd_rows_limit", "The most that the settings allow.", "of")
_OPEN: Final = METRICS.gauge(
    "sbp_pd_transactions_publishing", "Committed batches that are not visible everywhere yet."
)
_OPEN_AGE: Final = METRICS.gauge(
    "sbp_pd_transaction_age_seconds", "Age of the oldest of them; 0 if there is none."
)
_STUCK: Final = METRICS.gauge(
    "sbp_pd_transactions_stuck", "Those that cannot be published as they were committed, so far."
)
_RESTORING: Final = METRICS.gauge(
    "sbp_pd_restoring",
    "1 while the cluster is being restored from a backup, and serves nobody; else 0.",
)
_EXPELLED: Final = METRICS.counter(
    "sbp_pd_group_members_expelled_total",
    "Members of groups that were silent, or did not give a stream up.",
)
_MOVED: Final = METRICS.counter(
    "sbp_pd_group_streams_moved_total", "Streams that went from one member of a group to another."
)
_LAG: Final = METRICS.gauge(
    "sbp_group_lag_records",
    f"Records behind the cursor of a group in a stream, of the {LAG_SERIES_MAX} cursors that lag"
    f" most. Read every {LAG_INTERVAL_SECONDS:.0f} s.",
    *("group", "stream"),
)
_LAG_REST: Final = METRICS.gauge(
    "sbp_group_lag_rest_records", "Records behind the other cursors together."
)
_LAG_SECONDS: Final = METRICS.gauge(
    "sbp_group_lag_seconds",
    "Age of the record that the group reads next in a stream, of the same cursors; 0 at the tail."
    " Missing if its server does not tell.",
    *("group", "stream"),
)
_CURSORS: Final = METRICS.gauge(
    "sbp_group_cursors",
    "Cursors with a series of their own (`listed`), those in the rest (`rest`), and those whose lag"
    " is not known (`unknown`).",
    "lag",
)
_RANGES: Final = METRICS.gauge("sbp_pd_ranges", "Ranges of all streams that are not trimmed.")
_STREAM_RANGES: Final = METRICS.gauge(
    "sbp_stream_ranges",
    f"Ranges of a stream, of the {STREAM_RANGES_MAX} streams that have most.",
    "stream",
)


_StreamOffset = tuple[int, int]
"""A stream's id and an offset."""


@dataclass(frozen=True, slots=True)
class _Cursor:
    group: str
    stream_id: int
    stream_name: str
    next_offset: int

    @property
    def position(self) -> _StreamOffset:
        """The record that is read next."""
        return self.stream_id, self.next_offset


@dataclass(frozen=True, slots=True)
class _Lag:
    cursor: _Cursor
    records: int
    seconds: float | None = 0.0


class GroupLags:
    """How far groups lag, as it was read last."""

    def __init__(self, store: StoreThread, peers: Peers, clock: Clock) -> None:
        self._store = store
        self._peers = peers
        self._clock = clock
        self._listed: Sequence[_Lag] = ()
        """The cursors that lag most."""
        self._rest_count = 0
        self._rest_records = 0
        self._ranges: tuple[int, list[tuple[str, int]]] = (0, [])
        self._unknown_count = 0
        self._read_at = -float("inf")
        self._begun_at = -float("inf")
        self._refreshing: asyncio.Task[None] | None = None

    async def read(self) -> list[Reading]:
        """Return the series; begin to read the lags again if they are old."""
        loop = asyncio.get_running_loop()
        is_over = self._refreshing is None or self._refreshing.done()
        if is_over and loop.time() - self._begun_at >= LAG_INTERVAL_SECONDS:
            self._begun_at = loop.time()
            self._refreshing = asyncio.create_task(self._refresh())
        if self._refreshing is not None:
            await asyncio.wait({self._refreshing}, timeout=_LAG_WAIT_SECONDS)
        if loop.time() - self._read_at > _LAG_STALE_SECONDS:
            return []
        return list(self._series())

    async def stop(self) -> None:
        """Stop reading."""
        if self._refreshing is not None:
            await cancel_all([self._refreshing])

    def _series(self) -> Iterator[Reading]:
        for lag in self._listed:
            labels = lag.cursor.group, lag.cursor.stream_name
            yield _LAG.of(lag.records, *labels)
            if lag.seconds is not None:
                yield _LAG_SECONDS.of(lag.seconds, *labels)
        yield _LAG_REST.of(self._rest_records)
        yield _CURSORS.of(len(self._listed), "listed")
        yield _CURSORS.of(self._rest_count, "rest")
        yield _CURSORS.of(self._unknown_count, "unknown")
        count, streams = self._ranges
        yield _RANGES.of(count)
        for name, range_count in streams:
            yield _STREAM_RANGES.of(range_count, name)

    async def _refresh(self) -> None:
        try:
            await self._look()
        except SbpError as error:
            _LOG.debug("lags not read: %s", error)

    async def _look(self) -> None:
        cursors, count, ranges = await self._store.peek(_look)
        self._ranges = await self._store.peek(lambda each: each.most_ranges(STREAM_RANGES_MAX))
        answers = await self._peers.describe([each for each in ranges if each.end_offset < 0])
        ends = {each.stream_id: each.end_offset for each in ranges if each.end_offset >= 0}
        for stream_id, answer in answers.items():
            if not isinstance(answer, SbpError) and answer.stream_range is not None:
                ends[stream_id] = answer.stream_range.next_offset
        lags = [
            _Lag(each, max(0, ends[each.stream_id] - each.next_offset))
            for each in cursors
            if each.stream_id in ends
        ]
        listed = heapq.nlargest(LAG_SERIES_MAX, lags, key=attrgetter("records"))
        self._listed = await self._dated(listed, {each.stream_id: each for each in ranges})
        self._rest_count = len(lags) - len(listed)
        listed_records = sum([each.records for each in listed])
        self._rest_records = sum([each.records for each in lags]) - listed_records
        self._unknown_count = count - len(lags)
        self._read_at = asyncio.get_running_loop().time()

    async def _dated(
        self, lags: Sequence[_Lag], last_ranges: Mapping[int, StreamRange]
    ) -> list[_Lag]:
        """Return lags with the ages of the records that are read next, where servers tell."""
        behind = [each.cursor for each in lags if each.records]
        earlier = [
            each.position
            for each in behind
            if each.next_offset < last_ranges[each.stream_id].start_offset
        ]
        found = await self._store.peek(partial(_ranges_at, positions=earlier))
        by_server = by_address(
            (
                server_addresses(found.get(each.position) or last_ranges[each.stream_id])[0],
                each.position,
            )
            for each in behind
        )
        answers = await asyncio.gather(*(self._times_at(*each) for each in by_server.items()))
        times = {
            position: time_ms
            for positions, answer in zip(by_server.values(), answers, strict=True)
            for position, time_ms in zip(positions, answer, strict=True)
        }
        now_ms = self._clock.wall_ms()

        def maybe_seconds(cursor: _Cursor) -> float | None:
            time_ms = times.get(cursor.position)
            return None if time_ms is None else max(0, now_ms - time_ms) / 1000

        return [
            replace(each, seconds=maybe_seconds(each.cursor)) if each.records else each
            for each in lags
        ]

    async def _times_at(self, address: str, positions: Sequence[_StreamOffset]) -> list[int | None]:
        try:
            return await self._peers.append_times(address, positions)
        except SbpError as error:
            _LOG.debug("ages of records not read: %s", error)
            return [None] * len(positions)


def _look(store: MetadataStore) -> tuple[list[_Cursor], int, list[StreamRange]]:
    """Return the cursors to look at, how many there are, and the last range of each stream."""
    cursors = [
        _Cursor(group, stream_id, name or str(stream_id), next_offset)
        for group, stream_id, name, next_offset in store.cursors.latest(LAG_CURSORS_MAX)
    ]
    addresses = store.servers.addresses()
    found = map(store.maybe_last_range, {each.stream_id for each in cursors})
    ranges = [range_table(each, addresses) for each in found if each is not None]
    return cursors, store.capacity.counts()["cursors"][0], ranges


def _ranges_at(
    store: MetadataStore, positions: Iterable[_StreamOffset]
) -> dict[_StreamOffset, StreamRange]:
    """Return the ranges that hold records, by their positions; trimmed ones are left out."""
    addresses = store.servers.addresses()
    found = {position: store.maybe_range_at(*position) for position in positions}
    return {
        position: range_table(each, addresses)
        for position, each in found.items()
        if each is not None
    }


class Observation:
    """The readiness and the metrics of a placement driver while it leads."""

    def __init__(
        self,
        store: StoreThread,
        membership: Membership,
        publisher: Publisher,
        peers: Peers,
        *,
        clock: Clock,
        restorer: Restorer,
        groups: GroupOperations,
    ) -> None:
        self._store = store
        self._membership = membership
        self._publisher = publisher
        self._restorer = restorer
        self._groups = groups
        self._clock = clock
        self.lags: Final = GroupLags(store, peers, clock)

    def unready(self) -> Iterator[Unready]:
        """Yield why the cluster serves no clients."""
        if self._restorer.restoring is not None:
            yield Unready("restoring", self._restorer.notice)

    async def read(self) -> AsyncIterator[Reading]:
        """Yield the metrics as they are now. Raises SbpError if the store cannot be read."""
        live = self._membership.live_server_ids()
        draining = self._membership.draining
        yield _SERVERS.of(len(live), "live")
        yield _SERVERS.of(len(draining), "draining")
        now_ms = self._clock.wall_ms()
        open_count, oldest_ms = self._publisher.open_decisions.count()
        yield _OPEN.of(open_count)
        age_ms = 0 if oldest_ms is None else max(0, now_ms - oldest_ms)
        yield _OPEN_AGE.of(age_ms / 1000)
        yield _RESTORING.of(self._restorer.restoring is not None)
        yield _STUCK.of(len(self._publisher.stuck_numbers()))
        counts = await self._store.peek(lambda store: store.capacity.counts())
        for table, (count, count_max) in counts.items():
            yield _ROWS.of(count, table)
            yield _ROWS_MAX.of(count_max, table)
        yield _EXPELLED.of(self._groups.expelled_count)
        yield _MOVED.of(self._groups.moved_count)
        for each in await self.lags.read():
            yield each
