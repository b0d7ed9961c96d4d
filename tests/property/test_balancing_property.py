"""`plan_balance`: fair shares, no more moves than needed, and nothing to do the second time."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from sbp_core import limits
from sbp_core.operating.balancing import (
    BYTES_APART,
    OPEN,
    Move,
    Placed,
    Server,
    plan_balance,
    plan_stream,
    shares,
)

ROOM = limits.PLACEMENT_DISK_FREE_BYTES


@st.composite
def servers(draw: st.DrawFn, *, is_plain: bool = False) -> list[Server]:
    count = draw(st.integers(1, 6))
    if is_plain:
        return [Server(each) for each in range(1, count + 1)]
    racks = st.sampled_from(["", "a", "b", "c"])
    free = st.none() | st.sampled_from([0, ROOM + 50, ROOM + 5_000])
    return [
        Server(each, draw(racks), draw(st.integers(0, 9)) < 8, draw(free))
        for each in range(1, count + 1)
    ]


@st.composite
def views(draw: st.DrawFn, *, is_plain: bool = False) -> tuple[list[Server], list[Placed]]:
    found = draw(servers(is_plain=is_plain))
    ids = [each.server_id for each in found]
    ranges = []
    for stream_id in range(draw(st.integers(0, 12))):
        replica_count = draw(st.integers(1, min(3, len(ids))))
        sealed_count = draw(st.integers(0, 3))
        for index in range(sealed_count + 1):
            is_open = index == sealed_count
            least = replica_count if is_open or is_plain else 1
            most = replica_count if is_open or is_plain else min(4, len(ids))
            members = draw(
                st.lists(st.sampled_from(ids), min_size=least, max_size=most, unique=True)
            )
            size = draw(st.integers(0, 1_000))
            ranges.append(Placed(stream_id, index, tuple(members), replica_count, is_open, size))
    return found, ranges


def moved(
    found: list[Server], ranges: list[Placed], moves: list[Move]
) -> tuple[list[Server], list[Placed]]:
    """Return the cluster once all moves are done."""
    targets = {(each.stream_id, each.range_index): each.server_ids for each in moves}
    after: list[Placed] = []
    free: Counter[int] = Counter()
    for each in ranges:
        key = each.stream_id, each.range_index
        target = targets.get(key, each.server_ids)
        free.subtract(dict.fromkeys({*target} - {*each.server_ids}, each.size_bytes))
        opened = targets.get((each.stream_id, OPEN)) if each.is_open else None
        is_open = each.is_open and opened is None
        after.append(replace(each, server_ids=target, is_open=is_open))
        if opened is not None:
            after.append(replace(each, range_index=key[1] + 1, server_ids=opened, size_bytes=0))
    return [
        each
        if each.free_bytes is None
        else replace(each, free_bytes=each.free_bytes + free[each.server_id])
        for each in found
    ], after


@given(views())
def test_a_balanced_cluster_has_nothing_to_move(
    view: tuple[list[Server], list[Placed]],
) -> None:
    found, ranges = view
    after = moved(found, ranges, plan_balance(found, ranges))
    assert plan_balance(*after) == []


@given(views())
def test_a_move_is_possible_and_keeps_replicas_and_racks(
    view: tuple[list[Server], list[Placed]],
) -> None:
    found, ranges = view
    by_key = {(each.stream_id, each.range_index): each for each in ranges}
    opened = {each.stream_id: each for each in ranges if each.is_open}
    racks = {each.server_id: each.rack or each.server_id for each in found}
    usable = {each.server_id for each in found if each.is_usable}
    received: Counter[int] = Counter()
    moves = plan_balance(found, ranges)
    assert len({each[:2] for each in moves}) == len(moves)
    for move in moves:
        placed = opened[move.stream_id] if move.range_index == OPEN else by_key[move[:2]]
        before, after = {*placed.server_ids}, {*move.server_ids}
        assert after <= usable
        assert len(move.server_ids) == len(after) == placed.replica_count
        if len(before) == len(after):
            assert len({racks[each] for each in after}) >= len({racks[each] for each in before})
        if move.range_index != OPEN:
            assert len(before) > 1, "a range with one replica stays"
            received.update(dict.fromkeys(after - before, placed.size_bytes))
            assert move.copied_bytes == len(after - before) * placed.size_bytes
    for each in found:
        if each.free_bytes is not None:
            assert received[each.server_id] <= max(0, each.free_bytes - ROOM)


@given(views(is_plain=True))
def test_shares_are_even_where_nothing_is_in_the_way(
    view: tuple[list[Server], list[Placed]],
) -> None:
    """Leaders are even after as many seals as that takes; replicas and bytes where they can be."""
    found, ranges = view
    moves = plan_balance(found, ranges)
    before, after = shares(ranges), shares(ranges, moves)
    led = [after[each.server_id].led if each.server_id in after else 0 for each in found]
    assert max(led) - min(led) <= 1
    low, extra = divmod(sum(led), len(found))
    surplus = sorted(
        (before[each].led - low for each in before if before[each].led > low), reverse=True
    )
    needed = sum(surplus) - min(extra, len(surplus))
    first = {each.stream_id: each.server_ids[0] for each in ranges if each.is_open}
    seals = [each for each in moves if each.range_index == OPEN]
    assert sum(each.server_ids[0] != first[each.stream_id] for each in seals) == needed


@given(st.integers(2, 60), st.integers(1, 3))
def test_a_server_that_is_added_gets_its_share_of_all(stream_count: int, added: int) -> None:
    size = 1_000
    ranges = []
    for stream_id in range(stream_count):
        members = tuple(1 + (stream_id + each) % 3 for each in range(3))
        ranges.append(Placed(stream_id, 0, members, 3, is_open=False, size_bytes=size))
        ranges.append(Placed(stream_id, 1, members, 3, is_open=True))
    found = [Server(each) for each in range(1, 4 + added)]
    mean = 3 * size * stream_count / len(found)
    after = shares(ranges, plan_balance(found, ranges))
    for part, apart in ((0, 1), (1, 1), (2, max(BYTES_APART * mean, size))):
        values = [after[each.server_id][part] if each.server_id in after else 0 for each in found]
        assert max(values) - min(values) <= apart


@given(views(is_plain=True), st.data())
def test_a_stream_is_moved_once(
    view: tuple[list[Server], list[Placed]], data: st.DataObject
) -> None:
    found, ranges = view
    ranges = [each for each in ranges if each.stream_id == 0]
    if not ranges:
        return
    ids = [each.server_id for each in found]
    target = tuple(data.draw(st.permutations(ids))[: ranges[0].replica_count])
    _, after = moved(found, ranges, plan_stream(ranges, target))
    assert plan_stream(after, target) == []
    assert all(each.server_ids[0] == target[0] for each in after if each.is_open)
    assert all({*each.server_ids} == {*target} for each in after if each.can_be_copied)
