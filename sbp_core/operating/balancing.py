"""Which ranges have to move so that the range servers of a cluster have even shares.

First every server leads as many open ranges as the others, give or take one, and has as many
replicas of open ranges. Then copies of sealed ranges even out the stored bytes, if these differ by
more than BYTES_APART. The plan is a pure function of the servers and ranges, and is empty for a
balanced cluster. Ranges with a server that is down or drained stay: fail-over and repair move them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final, NamedTuple

from sbp_core import limits

BYTES_APART: Final = 0.1
"""The difference of the stored bytes of two servers that is left alone, as a share of the mean."""
_BYTES_GOAL: Final = BYTES_APART / 2
"""The difference that a plan aims at, so that appends do not soon exceed BYTES_APART."""
OPEN: Final = -1
"""The range index that stands for the open range of a stream."""


@dataclass(frozen=True, slots=True)
class Server:
    """A range server, usable while it is live and not drained. A rack "" is one of its own."""

    server_id: int
    rack: str = ""
    is_usable: bool = True
    free_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Placed:
    """A range and its servers, the primary first. Its stream wants `replica_count` servers."""

    stream_id: int
    range_index: int
    server_ids: tuple[int, ...]
    replica_count: int
    is_open: bool
    size_bytes: int = 0

    @property
    def can_be_copied(self) -> bool:
        """Whether the range can get other servers once it is sealed."""
        return len(self.server_ids) > 1


class Move(NamedTuple):
    """A range and its new servers. The range `OPEN` is sealed, and the next one is on the servers.

    `copied_bytes` are sent to servers that do not have the range.
    """

    stream_id: int
    range_index: int
    server_ids: tuple[int, ...]
    copied_bytes: int = 0


class Share(NamedTuple):
    """The share of a server: the open ranges that it leads and has, and its stored bytes."""

    led: int
    open: int
    stored_bytes: int


def plan_balance(servers: Iterable[Server], ranges: Sequence[Placed]) -> list[Move]:
    """Return the moves that balance a cluster, open ranges first."""
    planner = _Planner(servers, ranges)
    return [*planner.move_open(), *planner.move_sealed()]


def plan_stream(ranges: Iterable[Placed], server_ids: tuple[int, ...]) -> list[Move]:
    """Return the moves of all ranges of a stream to these servers, the primary first."""
    moves = []
    for each in ranges:
        if each.is_open and not _is_same(each.server_ids, server_ids):
            moves.append(Move(each.stream_id, OPEN, server_ids))
        if each.can_be_copied and {*each.server_ids} != {*server_ids}:
            moves.append(_copy(each, server_ids))
    return sorted(moves, key=lambda move: move.range_index != OPEN)


def shares(ranges: Iterable[Placed], moves: Iterable[Move] = ()) -> dict[int, Share]:
    """Return the share of each server once ranges have moved, by id."""
    led: Counter[int] = Counter()
    opened: Counter[int] = Counter()
    stored: Counter[int] = Counter()
    targets = {(each.stream_id, each.range_index): each.server_ids for each in moves}
    for each in ranges:
        if each.is_open:
            members = targets.get((each.stream_id, OPEN), each.server_ids)
            led[members[0]] += 1
            opened.update(members)
        for member in targets.get((each.stream_id, each.range_index), each.server_ids):
            stored[member] += each.size_bytes
    return {each: Share(led[each], opened[each], stored[each]) for each in opened | stored}


_Members = dict[Placed, tuple[int, ...]]
"""Ranges that can be moved, and their new servers."""


class _Held(NamedTuple):
    """A range of a server, sorted by weight, then by a unique number."""

    weight: int
    number: int
    placed: Placed


class _Planner:
    """The shares of usable servers after the moves that are planned so far."""

    def __init__(self, servers: Iterable[Server], ranges: Sequence[Placed]) -> None:
        self._ranges = ranges
        usable = [each for each in servers if each.is_usable]
        self._racks = {each.server_id: each.rack or each.server_id for each in usable}
        self._free = {
            each.server_id: each.free_bytes - limits.PLACEMENT_DISK_FREE_BYTES
            for each in usable
            if each.free_bytes is not None
        }
        self._resealed: set[int] = set()
        """The streams whose open range is sealed."""

    def move_open(self) -> Iterator[Move]:
        """Even out the leaders and the replicas of open ranges."""
        opened = [each for each in self._ranges if each.is_open]
        members = self._movable(
            each for each in opened if len(each.server_ids) == each.replica_count
        )
        led = Counter(each.server_ids[0] for each in opened)
        copies = Counter(member for each in opened for member in each.server_ids)
        while self._even_leaders(members, led, copies) | self._even_open(members, copies):
            pass
        for each, server_ids in members.items():
            if not _is_same(each.server_ids, server_ids):
                self._resealed.add(each.stream_id)
                yield Move(each.stream_id, OPEN, server_ids)

    def move_sealed(self) -> Iterator[Move]:
        """Take surplus replicas away, and even out the stored bytes, after `move_open`."""
        stored = Counter(dict.fromkeys(self._racks, 0))
        for each in self._ranges:
            for member in stored.keys() & {*each.server_ids}:
                stored[member] += each.size_bytes
        members = self._movable(
            each
            for each in self._ranges
            if (not each.is_open or each.stream_id in self._resealed)
            and each.can_be_copied
            and len(each.server_ids) >= each.replica_count
        )
        for each in [*members]:
            while len(members[each]) > each.replica_count:
                self._drop(members, each, stored)
        mean = stored.total() / max(1, len(stored))
        if stored and max(stored.values()) - min(stored.values()) > BYTES_APART * mean:
            held = [(each, each.size_bytes, members[each]) for each in members]
            self._even_replicas(members, held, stored, _BYTES_GOAL * mean)
        for each, server_ids in members.items():
            if {*server_ids} != {*each.server_ids}:
                yield _copy(each, server_ids)

    def _movable(self, ranges: Iterable[Placed]) -> _Members:
        """Return the servers of each range whose servers are all usable."""
        return {
            each: each.server_ids for each in ranges if self._racks.keys() >= {*each.server_ids}
        }

    def _drop(self, members: _Members, each: Placed, stored: Counter[int]) -> None:
        """Drop a replica: one in a rack with another replica, of the server with most bytes."""
        left = {leaver: _without(members[each], leaver) for leaver in members[each]}
        leaver = max(left, key=lambda server: (self._rack_count(left[server]), stored[server]))
        members[each] = left[leaver]
        stored[leaver] -= each.size_bytes

    def _even_leaders(self, members: _Members, led: Counter[int], copies: Counter[int]) -> bool:
        """Move leaders to servers that lead few ranges; return whether any was moved."""
        has_changed = False
        by_leader: dict[int, dict[Placed, None]] = {each: {} for each in self._racks}
        for each, server_ids in members.items():
            by_leader[server_ids[0]][each] = None
        while step := self._maybe_new_leader(members, by_leader, led, copies):
            each, changed = step
            giver, taker = members[each][0], changed[0]
            copies.subtract(members[each])
            copies.update(changed)
            members[each] = changed
            led[giver] -= 1
            led[taker] += 1
            del by_leader[giver][each]
            by_leader[taker][each] = None
            has_changed = True
        return has_changed

    def _maybe_new_leader(
        self,
        members: _Members,
        by_leader: Mapping[int, Iterable[Placed]],
        led: Counter[int],
        copies: Counter[int],
    ) -> tuple[Placed, tuple[int, ...]] | None:
        """Return a range, and its servers with another leader.

        A leader with few replicas gets one more, which evens out the replicas, too. Other servers
        become leaders of ranges that they already have, if possible.
        """
        for giver, taker in self._pairs(led, 2):
            is_wanted = copies[taker] + 2 > max(copies[each] for each in self._racks)
            for is_member in (is_wanted, not is_wanted):
                for each in by_leader[giver]:
                    server_ids = members[each]
                    if (taker in server_ids) is not is_member:
                        continue
                    leavers = sorted(server_ids, key=lambda server: -copies[server])
                    for leaver in (taker,) if is_member else leavers:
                        changed = (taker, *_without(server_ids, leaver))
                        if self._rack_count(changed) >= self._rack_count(server_ids):
                            return each, changed
        return None

    def _even_open(self, members: _Members, copies: Counter[int]) -> bool:
        """Let servers with few replicas replace secondaries; return whether any was replaced."""
        # Ranges that are sealed anyway come last here, and move first.
        ordered = sorted(members, key=lambda each: not _is_same(each.server_ids, members[each]))
        held = [(each, 1, members[each][1:]) for each in ordered]
        return self._even_replicas(members, held, copies, 2)

    def _even_replicas(
        self,
        members: _Members,
        replicas: Iterable[tuple[Placed, int, tuple[int, ...]]],
        counts: Counter[int],
        apart: float,
    ) -> bool:
        """Move replicas between servers until their counts differ by less than `apart`.

        `replicas` are ranges, the weight of each, and the servers that it may leave. Return whether
        any was moved.
        """
        has_changed = False
        held: dict[int, list[_Held]] = {each: [] for each in self._racks}
        for number, (each, weight, server_ids) in enumerate(replicas):
            for member in server_ids:
                held[member].append(_Held(weight, number, each))
        for items in held.values():
            items.sort()
        for item, giver, taker in self._replica_moves(members, held, counts, apart):
            members[item.placed] = _replaced(members[item.placed], giver, taker)
            del held[giver][bisect_left(held[giver], item)]
            insort(held[taker], item)
            counts[giver] -= item.weight
            counts[taker] += item.weight
            if taker in self._free:
                self._free[taker] -= item.weight
            has_changed = True
        return has_changed

    def _replica_moves(
        self,
        members: _Members,
        held: Mapping[int, list[_Held]],
        counts: Counter[int],
        apart: float,
    ) -> Iterator[tuple[_Held, int, int]]:
        """Yield ranges, the server that each leaves, and the server that it goes to.

        The caller moves each range before it asks for the next one. The first moves bring no server
        beyond the mean, in one pass for each pair of servers. The last moves are chosen one by one,
        among all servers.
        """
        mean = sum(counts[each] for each in self._racks) / max(1, len(self._racks))
        for giver, taker in [*self._pairs(counts, apart)]:
            for item in [*reversed(held[giver])]:
                room = min(counts[giver] - mean, mean - counts[taker])
                if 2 * room < max(apart, 1):
                    break
                if item.weight <= room and self._fits(item, members, giver, taker):
                    yield item, giver, taker
        while step := self._maybe_replica_move(members, held, counts, apart):
            yield step

    def _maybe_replica_move(
        self,
        members: _Members,
        held: Mapping[int, list[_Held]],
        counts: Counter[int],
        apart: float,
    ) -> tuple[_Held, int, int] | None:
        """Return the largest range of at most half a difference, or else the next larger one."""
        for giver, taker in self._pairs(counts, apart):
            gap = counts[giver] - counts[taker]
            items = held[giver]
            middle = bisect_right(items, gap / 2, key=lambda item: item.weight)
            for at in chain(range(middle - 1, -1, -1), range(middle, len(items))):
                if items[at].weight >= gap:
                    break
                if self._fits(items[at], members, giver, taker):
                    return items[at], giver, taker
        return None

    def _fits(self, item: _Held, members: _Members, giver: int, taker: int) -> bool:
        """Whether server `taker` may replace `giver` in a range."""
        server_ids = members[item.placed]
        if not item.weight or taker in server_ids:
            return False
        has_room = item.weight <= self._free.get(taker, item.weight)
        changed = _replaced(server_ids, giver, taker)
        return has_room and self._rack_count(changed) >= self._rack_count(server_ids)

    def _pairs(self, counts: Counter[int], apart: float) -> Iterator[tuple[int, int]]:
        """Yield pairs of servers whose counts are `apart` or more, the furthest apart first.

        The second server has room. For whole counts `apart` is 2, as a difference of 1 stays.
        """
        takers = [each for each in self._racks if self._free.get(each, 0) >= 0]
        takers.sort(key=lambda each: counts[each])
        for giver in sorted(self._racks, key=lambda each: -counts[each]):
            for taker in takers:
                if counts[giver] - counts[taker] < max(apart, 1):
                    break
                yield giver, taker

    def _rack_count(self, server_ids: Sequence[int]) -> int:
        return len({self._racks[each] for each in server_ids})


def _copy(each: Placed, server_ids: tuple[int, ...]) -> Move:
    new_count = len({*server_ids} - {*each.server_ids})
    return Move(each.stream_id, each.range_index, server_ids, new_count * each.size_bytes)


def _is_same(before: tuple[int, ...], after: tuple[int, ...]) -> bool:
    """Whether these are the same servers with the same primary."""
    return before[:1] == after[:1] and {*before} == {*after}


def _replaced(server_ids: tuple[int, ...], leaver: int, newcomer: int) -> tuple[int, ...]:
    return tuple(newcomer if each == leaver else each for each in server_ids)


def _without(server_ids: tuple[int, ...], leaver: int) -> tuple[int, ...]:
    return tuple(each for each in server_ids if each != leaver)
