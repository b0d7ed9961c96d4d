"""Batches that are merged by a cleaner: bodies one behind the other, so that each is told apart."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sbp_core.log.bodies import read_bodies
from sbp_core.log.entry import Entry
from sbp_core.log.segment_rows import Slot
from sbp_core.log.states.range_states import RangeKey


def concatenate(bodies: Iterable[memoryview]) -> tuple[int, bytes]:
    """All batches of a run belong together."""
    parts = [bytes(each) for each in bodies]
    return len(parts), b"".join(parts)


def check_batches(key: RangeKey, slots: Sequence[Slot], appended: Sequence[Entry], offset: int):
    """Fail unless these are all batches of a range that reach beyond an offset, some merged."""
    meant = [each for each in appended if each.base_offset + each.count > offset]
    first = slots[0].base_offset if slots else offset
    assert first <= max(offset, 0) or (meant and first == meant[0].base_offset)
    bodies = read_bodies(key, slots)
    if bodies.error is not None:
        raise bodies.error
    left = [each for each in appended if each.base_offset >= first]
    for slot, body in zip(slots, bodies.data, strict=True):
        parts = []
        while left and left[0].base_offset < slot.end_offset:
            parts.append(left.pop(0))
        assert (slot.base_offset, slot.count) == (
            parts[0].base_offset,
            sum(each.count for each in parts),
        )
        assert body == b"".join(each.body for each in parts)
    assert not left, "the last ones are not found"
