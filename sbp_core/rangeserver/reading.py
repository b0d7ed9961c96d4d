"""From the log to the payload of a FETCH answer: which batches, and their octets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from sbp_core.log.index import Slot
from sbp_core.log.log import Log
from sbp_core.rangeserver.ranges import HostedRange

_SPAN_WASTE_MAX: Final = 2
"""Read a run of batches in one go while at most half of the octets belong to other streams."""


def take_slots(
    hosted: HostedRange, offset: int, *, end_offset: int, max_bytes: int
) -> Iterator[Slot]:
    """Yield batches from the one that holds `offset`, up to both bounds, but at least one.

    `end_offset` is negative for no bound; `max_bytes` counts bodies.
    """
    if offset >= hosted.next_offset or 0 <= end_offset <= offset:
        return
    taken_bytes = 0
    for slot in hosted.index.slots_from(hosted.index.find(offset)):
        is_past_end = 0 <= end_offset <= slot.base_offset
        is_too_much = taken_bytes and taken_bytes + slot.location.body_length > max_bytes
        if is_past_end or is_too_much:
            return
        yield slot
        taken_bytes += slot.location.body_length


def read_slots(log: Log, slots: Sequence[Slot]) -> bytes:
    """Return the bodies of `slots`, one after the other. Raises LogError."""
    first, last = slots[0].location, slots[-1].location
    wanted = sum(slot.location.body_length for slot in slots)
    if len(slots) == 1:
        return log.read(first.body_position, first.body_length)
    length = last.end - first.body_position
    if length <= _SPAN_WASTE_MAX * wanted and log.is_one_segment(first.position, last.end):
        span = memoryview(log.read(first.body_position, length))
        return b"".join(
            span[start : start + slot.location.body_length]
            for slot in slots
            for start in (slot.location.body_position - first.body_position,)
        )
    return b"".join(
        log.read(slot.location.body_position, slot.location.body_length) for slot in slots
    )
