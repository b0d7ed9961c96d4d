"""What a range server knows of its ranges."""

from typing import Any

from sbp_core.log.range_states import LoggedRange
from sbp_core.log.writer_states import WriterStates
from sbp_core.rangeserver.hosting import RangeHost
from sbp_core.rangeserver.ranges import RangeTable

RANGE_COUNT = 500


class CountingTable(RangeTable):
    """Counts the ranges that are looked for."""

    looked_for = 0

    def has_ranges(self, stream_id: int, range_indexes: range) -> bool:
        self.looked_for += len(range_indexes)
        return super().has_ranges(stream_id, range_indexes)


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


def test_a_missing_range_is_looked_for_until_it_is_there() -> None:
    host, table = host_of(0, 1, 3)
    assert not host.knows_writers(1, 4)
    assert host.knows_writers(1, 2)
    assert not host.knows_writers(1, 4)
    table.publish(LoggedRange(1, 2, 0, 0))
    assert host.knows_writers(1, 4)
