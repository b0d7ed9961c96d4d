"""Which member is to read each stream: balanced, with as few moves as that takes.

The result follows from the arguments alone. Every stream that moves does so to a member that has
two streams less at least, which makes the sum of the squares of the loads smaller: so moves come to
an end.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Mapping

Eligible = Mapping[str, frozenset[int]]
"""By member: the streams that it subscribes to and may read."""


def assign(eligible: Eligible, planned: Mapping[int, str]) -> dict[int, str]:
    """Return the member that is to have each stream; streams that nobody is eligible for have none.

    `planned` is the result before. A stream stays where it is planned unless that member is not
    eligible any more, or a balance needs it. If all members are eligible for the same streams,
    their numbers of streams differ by one at most.
    """
    held: dict[str, list[int]] = {member: [] for member in eligible}
    free: set[int] = set().union(*eligible.values())
    for stream_id, member in sorted(planned.items()):
        if stream_id in eligible.get(member, ()):
            held[member].append(stream_id)
            free.remove(stream_id)
    _add(eligible, held, free)
    _balance(eligible, held)
    return {stream_id: member for member, streams in held.items() for stream_id in streams}


def _add(eligible: Eligible, held: Mapping[str, list[int]], free: set[int]) -> None:
    """Give each stream to the eligible member that has fewest."""
    heap = [(len(streams), member) for member, streams in held.items()]
    heapq.heapify(heap)
    for stream_id in sorted(free):
        passed = []
        while stream_id not in eligible[heap[0][1]]:
            passed.append(heapq.heappop(heap))
        load, member = heap[0]
        insort(held[member], stream_id)
        heapq.heapreplace(heap, (load + 1, member))
        for each in passed:
            heapq.heappush(heap, each)


def _balance(eligible: Eligible, held: Mapping[str, list[int]]) -> None:
    """Move streams, each time between the members with the greatest difference that is possible.

    Pairs without a stream to move are remembered, or each move would look at all streams again.
    """
    idle: set[tuple[str, str]] = set()
    while (move := _maybe_move(eligible, held, idle)) is not None:
        giver, taker, stream_id = move
        held[giver].remove(stream_id)
        insort(held[taker], stream_id)
        idle -= {(taker, each) for each in held if stream_id in eligible[each]}


def _maybe_move(
    eligible: Eligible, held: Mapping[str, list[int]], idle: set[tuple[str, str]]
) -> tuple[str, str, int] | None:
    by_load = sorted(held, key=lambda member: (len(held[member]), member))
    for giver in reversed(by_load):
        for taker in by_load:
            if len(held[giver]) - len(held[taker]) < 2:
                break
            if (giver, taker) not in idle:
                for stream_id in reversed(held[giver]):
                    if stream_id in eligible[taker]:
                        return giver, taker, stream_id
                idle.add((giver, taker))
    return None
