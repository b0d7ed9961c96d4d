"""New members for sealed ranges with several replicas, so that none stays on too few servers.

A sealed range gets another member when one of its members was not heard for
`replace_server_after_ms` or is being drained, or when it has fewer than its stream is to have. The
newcomer is listed first, and copies the range from the others (SPEC "READ_ENTRIES"). The lost
member is taken off the list only when as many others as the stream is to have are known to have
settled, by DESCRIBE_RANGE.

The members of an open range never change: they decide together where it ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from sbp_core.errors import SbpError
from sbp_core.pd.metadata.store import MetadataStore, StoreThread
from sbp_core.pd.model import (
    BEFORE_RANGES,
    NO_SEQ,
    RangeKey,
    RangeRecord,
    RangeServerRecord,
    ServerLoad,
    range_table,
)
from sbp_core.pd.placement import Placement
from sbp_core.pd.server_membership import Membership
from sbp_core.pd.streams.sealing import RangeAnnouncer
from sbp_core.peers.driver_calls import Peers, by_address
from sbp_core.server.runtime import Clock, cancel_all
from sbp_core.wire.headers import StreamRange
from sbp_core.wording import listed

_LOG: Final = logging.getLogger(__name__)

_INTERVAL_MS: Final = 1_000
"""Pause between looks."""
_COPIED_MAX: Final = 16
"""Ranges that are copied at a time."""
_SCANNED_MAX: Final = 200
"""Ranges that are looked at in one look."""
_PATIENCE_MS: Final = 600_000
"""How long a range is copied before another one gets its turn."""


@dataclass(frozen=True, slots=True)
class Incomplete:
    """A sealed range, how many replicas it is to have, and the server that may get one more.

    `kept` are the members that are not lost; `others` are servers that are no members and not lost.
    """

    record: RangeRecord
    wanted_count: int
    kept: tuple[int, ...]
    newcomer: int | None
    others: tuple[int, ...]

    @property
    def key(self) -> RangeKey:
        """Its stream and index."""
        return self.record.key

    @property
    def can_be_changed(self) -> bool:
        """Whether the range can get a missing member, or do without a lost member."""
        if len(self.kept) < self.wanted_count:
            return self.newcomer is not None
        return len(self.kept) < len(self.record.server_ids)


class Repair:
    """Replaces members in the background, in _COPIED_MAX ranges of different streams at a time."""

    def __init__(
        self,
        store: StoreThread,
        membership: Membership,
        peers: Peers,
        announcer: RangeAnnouncer,
        clock: Clock,
        *,
        replace_after_ms: int,
    ) -> None:
        self._store = store
        self._membership = membership
        self._peers = peers
        self._announcer = announcer
        self._clock = clock
        self._replace_after_ms = replace_after_ms
        self._after = BEFORE_RANGES
        self._copied: dict[RangeKey, float] = {}
        """The ranges that are being copied, and since when."""
        self._live: frozenset[int] = frozenset()
        self._set_aside: set[RangeKey] = set()
        """The ranges that wait for a server that is not among the `_live` ones."""
        self._blocked: dict[int, Incomplete] = {}
        """Maps a server that is being drained to a range that cannot be copied from there now."""
        self._obstacles: dict[int, str] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Stop; what is copied goes on after the next start."""
        if self._task is not None:
            await cancel_all([self._task])

    def is_lost(self, server_id: int) -> bool:
        """Whether a server is to have no replicas of sealed ranges any more."""
        is_silent = self._membership.is_silent_for(server_id, self._replace_after_ms)
        return is_silent or server_id in self._membership.draining

    def obstacles(self) -> dict[int, str]:
        """Return why sealed ranges stay on servers that are being drained, and the remedy.

        Maps server id to the reason at the last look. Servers whose ranges move are not in the map.
        """
        draining = self._membership.draining
        return {each: text for each, text in self._obstacles.items() if each in draining}

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_INTERVAL_MS / 1000)
            if not self._membership.has_listened:
                continue
            try:
                await self.look()
            except SbpError as error:  # a store that fails, or does not lead
                _LOG.debug("sealed ranges not looked at: %s", error)

    async def look(self) -> None:
        """Go on with the ranges that are being copied, and begin with the next ones."""
        servers = self._membership.live_servers()
        if not servers:
            return
        live = frozenset(self._membership.live_server_ids())
        if live != self._live:
            self._live = live
            self._set_aside.clear()
        known = await self._store.run(self._find_copied, servers)
        self._copied = {each.key: self._copied[each.key] for each in known}
        room = _COPIED_MAX - len(known)
        if room > 0:
            busy = {stream_id for stream_id, _ in self._copied}
            found = await self._store.run(self._find_next, servers, busy, room)
            self._copied |= {each.key: self._clock.monotonic() for each in found}
            known += found
        settled = await self.settled([each.record for each in known])
        self._obstacles = {}
        for each in (*self._blocked.values(), *known):
            obstacle = self._maybe_obstacle(each, settled.get(each.key, ()))
            if obstacle is not None:
                self._obstacles |= dict.fromkeys(each.record.server_ids, obstacle)
        for each in known:
            await self._go_on(each, settled[each.key])

    async def _go_on(self, each: Incomplete, settled: set[int]) -> None:
        """Add a member to a range that lacks a member; else remove the lost members."""
        lacks_one = len(each.kept) < each.wanted_count
        if lacks_one and each.newcomer is not None and settled:
            await self._add(each, each.newcomer)
        elif not lacks_one and settled.issuperset(each.kept):
            del self._copied[each.key]
            await self._remove_lost(each)
        elif lacks_one and each.newcomer is None:
            del self._copied[each.key]
        elif self._live.intersection(each.record.server_ids).issubset(settled):
            del self._copied[each.key]  # it waits for servers that are down
            self._set_aside.add(each.key)
        else:
            self._check_time(each, settled)

    async def settled(self, ranges: Sequence[RangeRecord]) -> dict[RangeKey, set[int]]:
        """Return which live members have the whole of each range: one range of each stream."""
        addresses = await self._store.run(lambda store: store.servers.addresses())
        asked = by_address(
            (server.address, (server.server_id, each))
            for each in ranges
            for server in (
                RangeServerRecord(member, addresses.get(member, "")) for member in each.server_ids
            )
            if self._membership.is_live(server)
        )
        settled: dict[RangeKey, set[int]] = {each.key: set() for each in ranges}

        async def ask(address: str, items: Sequence[tuple[int, RangeRecord]]) -> None:
            tables = [range_table(record, addresses) for _, record in items]
            answers = await self._peers.describe_at(address, tables)
            for server_id, record in items:
                answer = answers[record.stream_id]
                if isinstance(answer, SbpError) or answer.stream_range is None:
                    continue
                if answer.stream_range.end_offset == record.end_offset:
                    settled[record.key].add(server_id)

        await asyncio.gather(*(ask(*each) for each in asked.items()))
        return settled

    async def _add(self, each: Incomplete, newcomer: int) -> None:
        announced = await self._store.run(_added, each.key, newcomer)
        self._announcer.announce(announced)
        if announced:
            _LOG.info(
                "replica added stream=%d range=%d server_id=%d: it copies the range",
                *(*each.key, newcomer),
            )

    async def _remove_lost(self, each: Incomplete) -> None:
        lost = sorted({*each.record.server_ids} - {*each.kept})
        if not lost:
            return
        if await self._store.run(_removed, each.key, lost):
            _LOG.info(
                "replicas removed stream=%d range=%d server_ids=%s: as many others have the range",
                *(*each.key, lost),
            )

    def _maybe_obstacle(self, each: Incomplete, settled: Collection[int]) -> str | None:
        """Return what the copies of a range wait for, besides being copied, and the remedy."""
        live = self._membership.live_server_ids()
        if len(each.kept) < each.wanted_count and each.newcomer is None:
            down = [server_id for server_id in each.others if server_id not in live]
            if down:
                return (
                    f"range servers that could have its ranges are down ({listed(down)}): start"
                    " them, or another one"
                )
            if each.others:
                return (
                    f"range servers {listed(each.others)} have too little free space for its"
                    " ranges: free some, or start another range server"
                )
            return "there is no other range server for its ranges: start another one"
        needed = each.kept
        if len(each.kept) < each.wanted_count:  # it gets another member, from any that is complete
            needed = () if settled else each.record.server_ids
        down = [server_id for server_id in needed if server_id not in {*settled, *live}]
        if not down:
            return None
        return (
            f"range servers are down that have to have complete copies first ({listed(down)}):"
            " start them, or drain them, too, if they are lost permanently"
        )

    def _check_time(self, each: Incomplete, settled: Collection[int]) -> None:
        """Let another range have its turn if this one cannot be copied for long."""
        if 1000 * (self._clock.monotonic() - self._copied[each.key]) < _PATIENCE_MS:
            return
        del self._copied[each.key]
        _LOG.warning(
            "range not copied stream=%d range=%d servers=%s settled=%s: see the logs of the"
            " servers that have not settled it; it is tried again",
            *(*each.key, each.record.server_ids, sorted(settled)),
        )

    def _find_copied(self, store: MetadataStore, servers: Sequence[ServerLoad]) -> list[Incomplete]:
        """Return the ranges that are being copied and still exist."""
        found = (store.maybe_range(*key) for key in self._copied)
        return self._with_newcomers(store, [each for each in found if each is not None], servers)

    def _find_next(
        self,
        store: MetadataStore,
        servers: Sequence[ServerLoad],
        busy: Collection[int],
        count_max: int,
    ) -> list[Incomplete]:
        """Return the next ranges that can be given the members that they lack, or lose lost ones.

        At most one of each stream, none of the `busy` ones. That is the newest: appends may wait
        until enough servers have it.
        """
        page = store.sealed_replicated_ranges(self._after, _SCANNED_MAX)
        if self._after == BEFORE_RANGES:
            self._blocked = {}
        self._after = BEFORE_RANGES
        if len(page) == _SCANNED_MAX:
            self._after = page[-1].key
        found: dict[int, Incomplete] = {}
        for each in self._with_newcomers(store, page, servers):
            if not each.can_be_changed or each.key in self._set_aside:
                drained = self._membership.draining.intersection(each.record.server_ids)
                self._blocked |= dict.fromkeys(drained, each)
            elif each.record.stream_id not in busy:
                if len(found) == count_max and each.record.stream_id not in found:
                    self._after = (each.record.stream_id, each.record.range_index - 1)
                    break
                found[each.record.stream_id] = each
        return list(found.values())

    def _with_newcomers(
        self, store: MetadataStore, records: Sequence[RangeRecord], servers: Sequence[ServerLoad]
    ) -> list[Incomplete]:
        stream_ids = list(dict.fromkeys(each.stream_id for each in records))
        streams = store.streams_by_id(stream_ids)
        wanted = {each.stream_id: each.replica_count for each in streams if each is not None}
        placement = Placement(servers, {})
        usable = {each for each in store.servers.addresses() if not self.is_lost(each)}
        found = []
        for record in records:
            if record.stream_id not in wanted or record.end_seq == NO_SEQ:
                continue
            kept = [each for each in record.server_ids if not self.is_lost(each)]
            newcomer = None
            if len(kept) < wanted[record.stream_id]:
                newcomer = placement.maybe_newcomer(record.server_ids, kept)
            wanted_count = wanted[record.stream_id]
            is_drained = self._membership.draining.issuperset({*record.server_ids} - {*kept})
            others = tuple(sorted(usable.difference(record.server_ids)))  # also one that restarts
            if is_drained and not others and len(kept) >= record.ack_count:
                wanted_count = min(wanted_count, len(kept))
            found.append(Incomplete(record, wanted_count, tuple(kept), newcomer, others))
        return found


def _added(store: MetadataStore, key: RangeKey, newcomer: int) -> list[StreamRange]:
    """Let a server be a member of a sealed range; return it as it is announced."""
    if not store.change_replicas(*key, added=[newcomer], removed=()):
        return []
    added = store.maybe_range(*key)
    return [] if added is None else [range_table(added, store.servers.addresses())]


def _removed(store: MetadataStore, key: RangeKey, lost: Sequence[int]) -> bool:
    return store.change_replicas(*key, added=(), removed=lost)
