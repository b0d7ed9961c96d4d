"""Ranges that a range server hosts: their starts, their writers, and lookups of missing ones."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from sbp_core.log.entry import Entry
from sbp_core.log.states.range_states import LoggedRange, RangeState
from sbp_core.log.states.writer_states import WriterStates
from sbp_core.rangeserver.hosted_ranges import RangeTable
from sbp_core.rangeserver.hosting import PlacedRange, RangeHost, StreamWaiters
from sbp_core.wire.headers import StreamRange

RANGE_COUNT = 500


class CountingTable(RangeTable):
    """Counts the ranges that are looked for."""

    looked_for = 0

    def has_whole_ranges(self, stream_id: int, range_indexes: range) -> bool:
        self.looked_for += len(range_indexes)
        return super().has_whole_ranges(stream_id, range_indexes)


def host_of(*range_indexes: int) -> tuple[RangeHost, CountingTable]:
    table = CountingTable(LoggedRange(1, index, 0, 0) for index in range_indexes)
    unused: Any = None
    return RangeHost(table, unused, unused, unused, WriterStates()), table


def test_the_ranges_before_one_are_looked_for_once() -> None:
    host, table = host_of(*range(RANGE_COUNT))
    for _ in range(10):
        assert host.knows_writers(1, RANGE_COUNT - 1)
    assert table.looked_for == RANGE_COUNT - 1
    assert host.knows_writers(1, RANGE_COUNT)
    assert table.looked_for == RANGE_COUNT
    assert host.knows_writers(1, 3)


@pytest.mark.parametrize(
    ("start_offset", "listed_end", "is_hosted"),
    [(9, 9, True), (9, None, True), (8, 9, False), (10**15, 9, False), (10**15, 10**15, False)],
)
def test_a_range_starts_where_the_one_before_ends(
    start_offset: int, listed_end: int | None, is_hosted: bool
) -> None:
    table = RangeTable([LoggedRange(1, 0, 3, 9, RangeState.SEALED)])
    written: list[Entry] = []

    class Committer:
        async def submit(self, entries: Sequence[Entry]) -> None:
            written.extend(entries)

    class Placement:
        async def list_hosted_ranges(self, stream_ids: Sequence[int]) -> list[PlacedRange]:
            ends = {1: listed_end, 2: 5}
            return [
                PlacedRange(StreamRange(stream_id, index, start, end))
                for stream_id in stream_ids
                for index, start, end in ((0, 3, ends[stream_id]), (1, start_offset, -1))
                if end is not None
            ]

    async def main() -> None:
        fakes: Any = (Committer(), StreamWaiters(), Placement())
        await RangeHost(table, *fakes, WriterStates()).learn([(1, 1), (2, 1)])

    asyncio.run(main())
    created = [(entry.stream_id, entry.base_offset) for entry in written]
    assert created == ([(1, start_offset)] if is_hosted else [])


def test_a_missing_range_is_looked_for_until_it_is_there() -> None:
    host, table = host_of(0, 1, 3)
    assert not host.knows_writers(1, 4)
    assert host.knows_writers(1, 2)
    assert not host.knows_writers(1, 4)
    table.publish(LoggedRange(1, 2, 0, 0))
    assert host.knows_writers(1, 4)
