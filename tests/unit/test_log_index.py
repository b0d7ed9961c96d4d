from __future__ import annotations

import pytest

from sbp_core.errors import LogError
from sbp_core.log.entry import Location
from sbp_core.log.index import RangeIndex, Slot


def index_of(counts: list[int], start_offset: int = 100) -> RangeIndex:
    index = RangeIndex(start_offset)
    for number, count in enumerate(counts):
        index.append(index.next_offset, count, Location(2**40 + 1000 * number, 500 + number))
    return index


def test_empty() -> None:
    index = RangeIndex(100)
    assert (index.start_offset, index.next_offset, len(index)) == (100, 100, 0)
    assert list(index.slots_from(0)) == []
    for offset in (99, 100, 101):
        with pytest.raises(LogError, match=r"outside \[100, 100\)"):
            index.find(offset)


def test_find_agrees_with_a_plain_list() -> None:
    counts = [1, 3, 1, 7, 2**20, 1]
    index = index_of(counts)
    owner = [slot for slot, count in enumerate(counts) for _ in range(min(count, 20))]
    starts = [slot.base_offset for slot in index.slots_from(0)]
    for slot in sorted(set(owner)):
        for delta in {0, counts[slot] // 2, counts[slot] - 1}:
            assert index.find(starts[slot] + delta) == slot
    assert index.next_offset == 100 + sum(counts)
    for offset in (-1, 99, index.next_offset, 2**62):
        with pytest.raises(LogError, match="outside"):
            index.find(offset)


def test_slots_carry_all_and_go_on_with_what_is_appended() -> None:
    index = index_of([2, 3])
    slots = index.slots_from(index.find(102))
    assert next(slots) == Slot(102, 3, Location(2**40 + 1000, 501))
    index.append(105, 4, Location(2**41, 2**32 - 1))
    last = next(slots)
    assert (last, last.end_offset) == (Slot(105, 4, Location(2**41, 2**32 - 1)), 109)
    assert next(slots, None) is None


@pytest.mark.parametrize(("base_offset", "count"), [(104, 1), (106, 1), (105, 0), (0, 1)])
def test_gaps_overlaps_and_empty_batches_are_refused(base_offset: int, count: int) -> None:
    index = index_of([2, 3])
    with pytest.raises(LogError, match="expected at least 1 record at offset 105"):
        index.append(base_offset, count, Location(0, 40))
    assert len(index) == 2
