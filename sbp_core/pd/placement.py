"""Which range servers a new range goes to."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Final, NamedTuple

from sbp_core import limits
from sbp_core.errors import NoRangeServerError
from sbp_core.pd.model import ServerLoad

_COPIES_MIN: Final = 2
"""Copies of a stream with replicas for which also unsteady servers are used."""


class Placement:
    """Chooses servers for a batch of new ranges, counting the ranges that it placed.

    `primary_counts` has the open ranges of which each server is the primary. The `last` ones are
    chosen when there are no others; unsteady ones only if a record would have one copy without
    them, or fewer than `ack_count`, or if a lost copy has no other place.
    """

    def __init__(
        self,
        servers: Iterable[ServerLoad],
        primary_counts: Mapping[int, int],
        last: Collection[int] = (),
    ) -> None:
        live = list(servers)
        rates = [each.append_rate for each in live if each.append_rate is not None]
        neutral_rate = fmean(rates) if rates else 0.0
        self._has_servers = bool(live)
        self._racks = {each.server_id: each.rack for each in live if each.rack}
        candidates = [
            (
                each.is_unsteady,
                _Candidate(
                    each.server_id in last,
                    _is_nearly_full(each),
                    primary_counts.get(each.server_id, 0),
                    neutral_rate if each.append_rate is None else each.append_rate,
                    each.server_id,
                ),
            )
            for each in live
            if each.disk_free_bytes is None or each.disk_free_bytes > 0
        ]
        self._servers = [each for is_unsteady, each in candidates if not is_unsteady]
        self._unsteady = [each for is_unsteady, each in candidates if is_unsteady]
        heapq.heapify(self._servers)

    @property
    def server_count(self) -> int:
        """How many servers a range can be placed on."""
        return len(self._servers)

    def next_servers(
        self, count: int, ack_count: int, wanted: Sequence[int] = ()
    ) -> tuple[int, ...]:
        """Return the ids of the best servers, `count` of them if there are as many; primary first.

        The `wanted` servers that can be given a range come first, in their order. The order of the
        others: servers on racks that are not used yet, servers with room on their disk, primaries
        of the fewest open ranges, the lowest append rate, the smallest id. A server that never
        reported counts as having room and the mean rate. Raises
        NoRangeServerError if fewer than `ack_count` are alive and have any room.
        """
        self._use_unsteady(max(ack_count, min(count, _COPIES_MIN)))
        self.check(ack_count)
        chosen = self._take(wanted[:count])
        passed_over: list[_Candidate] = []
        used_racks = {self._racks.get(each.server_id, "") for each in chosen}
        while self._servers and len(chosen) < count:
            best = heapq.heappop(self._servers)
            rack = self._racks.get(best.server_id)
            (passed_over if rack in used_racks else chosen).append(best)
            if rack is not None:
                used_racks.add(rack)
        chosen += passed_over[: count - len(chosen)]
        primary = chosen[0]
        heapq.heappush(self._servers, primary._replace(primary_count=primary.primary_count + 1))
        for each in {*chosen[1:], *passed_over}:
            heapq.heappush(self._servers, each)
        return tuple(each.server_id for each in chosen)

    def _take(self, wanted: Sequence[int]) -> list[_Candidate]:
        """Remove servers from the candidates; return the ones that were candidates."""
        taken = [each for each in self._servers if each.server_id in wanted]
        if taken:
            self._servers = [each for each in self._servers if each not in taken]
            heapq.heapify(self._servers)
        return sorted(taken, key=lambda each: wanted.index(each.server_id))

    def maybe_newcomer(self, members: Collection[int], kept: Collection[int]) -> int | None:
        """Return the best server with room that is not a member of a range, None without any.

        It is on another rack than the members that are `kept`, if possible.
        """
        used_racks = {self._racks[each] for each in kept if each in self._racks}
        others = self._others(members)
        if not others:
            self._use_unsteady(self.server_count + 1)
            others = self._others(members)
        best = min(
            others,
            key=lambda each: (self._racks.get(each.server_id) in used_racks, each),
            default=None,
        )
        if best is None:
            return None
        self._servers.remove(best)
        self._servers.append(best._replace(primary_count=best.primary_count + 1))
        heapq.heapify(self._servers)
        return best.server_id

    def _others(self, members: Collection[int]) -> list[_Candidate]:
        return [
            each
            for each in self._servers
            if each.server_id not in members and not each.is_nearly_full
        ]

    def _use_unsteady(self, count: int) -> None:
        """Count unsteady servers with the others if there are fewer than `count` of these."""
        if len(self._servers) < count:
            for each in self._unsteady:
                heapq.heappush(self._servers, each)
            self._unsteady = []

    def check(self, ack_count: int) -> None:
        """Raise NoRangeServerError if fewer than `ack_count` servers can be given a range."""
        self._use_unsteady(ack_count)
        if len(self._servers) >= ack_count:
            return
        if self._servers:
            raise NoRangeServerError.of(
                f"an append has to be stored on ack_count = {ack_count} range servers, and"
                f" {len(self._servers)} can be given new ranges now: start more range servers, wait"
                " for their heartbeats, or lower the stream's ack_count"
            )
        raise NoRangeServerError.of(
            "the disks of all range servers are full: free space, or start another range server"
            if self._has_servers
            else "no range server is alive that is not being drained: start one, or wait for its"
            " first heartbeat"
        )


class _Candidate(NamedTuple):
    """A server that a range can be placed on; the smallest is the best."""

    is_last: bool
    is_nearly_full: bool
    primary_count: int
    append_rate: float
    server_id: int


def _is_nearly_full(server: ServerLoad) -> bool:
    free_bytes = server.disk_free_bytes
    return free_bytes is not None and free_bytes < limits.PLACEMENT_DISK_FREE_BYTES
