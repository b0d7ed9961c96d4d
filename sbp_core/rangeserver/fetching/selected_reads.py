"""Read batches for a client that wants some of their columns, or some rows.

Only the wanted columns of a large batch are read from the disk, so that two columns of twenty cost
a tenth; and only its front if no row is wanted. The checksum of the whole batch cannot be verified
then. The statistics have a checksum of their own, and the front is compared with the index. Other
damage is found by reads of whole batches and by the scrub (guarantees, "Failures that are not
covered").
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from sbp_core import limits
from sbp_core.errors import LogError, RecordBatchError
from sbp_core.log.bodies import open_body, read_bodies
from sbp_core.log.segment_rows import Slot
from sbp_core.log.states.range_states import RangeKey
from sbp_core.records import (
    FRONT_BYTES,
    NO_SELECTION,
    BatchExtent,
    Cut,
    Selection,
    known_front,
    with_base_offset,
)
from sbp_core.wire.checksum import Buffer

_RUN_BYTES_MIN: Final = 4 * limits.KIB
"""If the runs of a batch are smaller on average, a read of the whole batch is faster."""


class SelectedParts(NamedTuple):
    """The parts of batches as they are sent; `error` says why the next batch is unreadable."""

    parts: list[Sequence[Buffer]]
    error: LogError | None


def are_worth_parts(slots: Sequence[Slot]) -> bool:
    """Whether batches are large enough to read only parts of them."""
    stored_bytes = sum([slot.body_length for slot in slots])
    return stored_bytes >= len(slots) * limits.CUT_BATCH_BYTES_MIN


def read_selected(
    key: RangeKey, slots: Sequence[Slot], selection: Selection, *, may_wait: bool
) -> SelectedParts:
    """Read the selected parts of `slots` from the disk, up to the first that cannot be read.

    Without `may_wait` a batch that is not in the page cache cannot be read.
    """
    parts: list[Sequence[Buffer]] = []
    for slot in slots:
        try:
            part = _read_parts(key, slot, selection, may_wait=may_wait)
        except LogError as error:
            return SelectedParts(parts, error)
        parts.append(part)
    return SelectedParts(parts, None)


def as_sent(slot: Slot, body: memoryview, selection: Selection) -> Sequence[Buffer]:
    """Return the parts to send of a batch in memory: only `body` if it is sent unchanged."""
    cut = _maybe_cut(slot, body, selection)
    if cut is not None:
        return [cut.head, *(body[start:end] for start, end in cut.runs)]
    if slot.prefix_bytes and slot.base_offset >= 0:
        return with_base_offset(body, slot.base_offset)
    return [body]


def _read_parts(
    key: RangeKey, slot: Slot, selection: Selection, *, may_wait: bool
) -> Sequence[Buffer]:
    """Read the parts to send of a batch; a whole batch is verified. Raises LogError."""
    opened = open_body(key, slot, FRONT_BYTES, may_wait=may_wait)
    front = known_front(opened.front, slot.body_length, opened.read)
    cut = _maybe_cut(slot, front, selection)
    if cut is not None and cut.size_bytes >= len(cut.runs) * _RUN_BYTES_MIN:
        return [cut.head, *(opened.read(start, end) for start, end in cut.runs)]
    whole = read_bodies(key, [slot], may_wait=may_wait)
    if whole.error is not None:
        raise whole.error
    return as_sent(slot, whole.data[0], selection)


def _maybe_cut(slot: Slot, front: memoryview, selection: Selection) -> Cut | None:
    """Return the selected part of a batch; None if it is sent whole."""
    if selection == NO_SELECTION or slot.base_offset < 0:
        return None
    try:
        extent = BatchExtent(slot.base_offset, slot.count, slot.body_length)
        return selection.maybe_cut(front, extent)
    except RecordBatchError:  # send an invalid batch as it was appended: its reader names the error
        return None
