"""Read the payload of a FETCH answer.

Bodies come from memory if the log has them there, else verified from the disk (log/bodies.py).
Small bodies are joined into one buffer.

Only the wanted columns of a large batch are read from the disk, so that two columns of twenty cost
a tenth; and only its front if no row is wanted. The checksum of the whole batch cannot be verified
then. The statistics have a checksum of their own, and the front is compared with the index. Other
damage is found by reads of whole batches and by the scrub (guarantees, "Failures that are not
covered").
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Final

from sbp_core import limits
from sbp_core.errors import LogCorruptionError, LogError, RecordBatchError
from sbp_core.log.bodies import RecentBody, open_body, read_bodies
from sbp_core.log.durable_log import Log
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
from sbp_core.wire.checksum import Buffer, crc32_joined

_RUN_BYTES_MIN: Final = 4 * limits.KIB
"""If the runs of a batch are smaller on average, a read of the whole batch is faster."""


@dataclass(frozen=True, slots=True)
class SlotBodies:
    """The bytes of the first `slot_count` slots, in buffers worth sending one by one.

    `error` says why the next slot could not be read. `crc32` is the CRC-32 of all buffers, None if
    it is not known yet.
    """

    buffers: tuple[Buffer, ...]
    slot_count: int
    error: LogError | None
    crc32: int | None


def joined(parts: Iterable[SlotBodies]) -> tuple[list[Buffer], int | None]:
    """Return the buffers of a payload in order, and its CRC-32 if known."""
    buffers: list[Buffer] = []
    crc32: int | None = 0
    for part in parts:
        buffers += part.buffers
        if crc32 is not None and part.crc32 is not None:
            crc32 = crc32_joined(crc32, part.crc32, sum(map(len, part.buffers)))
        else:
            crc32 = None
    return buffers, crc32


def read_slots(
    log: Log,
    key: RangeKey,
    slots: Sequence[Slot],
    selection: Selection = NO_SELECTION,
    *,
    bytes_max: int = limits.BATCH_BYTES_MAX,
    may_wait: bool = True,
) -> SlotBodies:
    """Return the bodies of `slots` as they are sent, up to the first that cannot be read.

    Without `may_wait` a body that is not in memory cannot be read. Columns outside of `selection`
    are not sent, and not read from large batches on the disk. No more than `bytes_max` of a
    selection are read, but at least one body.
    """
    recent: Sequence[RecentBody] = ()
    is_selected = selection != NO_SELECTION
    if is_selected and _are_worth_parts(slots) and log.recent.maybe_bodies(slots) is None:
        parts, error = _read_selected(key, slots, selection, bytes_max, may_wait=may_wait)
    else:
        slots = _within(slots, bytes_max) if is_selected else slots
        bodies = read_bodies(key, slots, log.recent, may_wait=may_wait)
        stored = zip(slots, bodies.data, strict=False)  # fewer if one cannot be read
        parts = [_as_sent(slot, body, selection) for slot, body in stored]
        error = bodies.error
        if all(sent[0] is body for sent, body in zip(parts, bodies.data, strict=True)):
            recent = bodies.recent
    slot_count, buffers = len(parts), list(chain.from_iterable(parts))
    if isinstance(error, LogCorruptionError):
        log.suspects.add(slots[slot_count].view.segment.base)
    if sum(map(len, buffers)) < slot_count * limits.FETCH_JOIN_BYTES:
        buffers = [b"".join(buffers)]
        recent = ()
    return SlotBodies(tuple(buffers), slot_count, error, _joined_crc32(recent))


def _joined_crc32(recent: Sequence[RecentBody]) -> int | None:
    if not recent:
        return None
    joined = 0
    for body in recent:
        joined = crc32_joined(joined, body.crc32, len(body.data))
    return joined


def _are_worth_parts(slots: Sequence[Slot]) -> bool:
    """Whether batches are large enough to read only parts of them."""
    stored_bytes = sum([slot.body_length for slot in slots])
    return stored_bytes >= len(slots) * limits.CUT_BATCH_BYTES_MIN


def _within(slots: Sequence[Slot], bytes_max: int) -> Sequence[Slot]:
    """Return the first slots, one at least, that have at most `bytes_max` together."""
    ends = accumulate([slot.body_length for slot in slots])
    return slots[: max(1, sum([end <= bytes_max for end in ends]))]


def _read_selected(
    key: RangeKey,
    slots: Sequence[Slot],
    selection: Selection,
    bytes_max: int,
    *,
    may_wait: bool,
) -> tuple[list[Sequence[Buffer]], LogError | None]:
    """Read the selected parts of `slots` from the disk, up to the first that cannot be read.

    Without `may_wait` a batch that is not in the page cache cannot be read.
    """
    parts: list[Sequence[Buffer]] = []
    left_bytes = bytes_max
    for slot in slots:
        try:
            part = _maybe_read_parts(
                *(key, slot, selection), left_bytes if parts else None, may_wait=may_wait
            )
        except LogError as error:
            return parts, error
        if part is None:
            break
        left_bytes -= sum(map(len, part))
        parts.append(part)
    return parts, None


def _as_sent(slot: Slot, body: memoryview, selection: Selection) -> Sequence[Buffer]:
    """Return the parts to send of a batch in memory: only `body` if it is sent unchanged."""
    cut = _maybe_cut(slot, body, selection)
    if cut is not None:
        return [cut.head, *(body[start:end] for start, end in cut.runs)]
    if slot.prefix_bytes and slot.base_offset >= 0:
        return with_base_offset(body, slot.base_offset)
    return [body]


def _maybe_read_parts(
    key: RangeKey, slot: Slot, selection: Selection, bytes_max: int | None, *, may_wait: bool
) -> Sequence[Buffer] | None:
    """Read the parts to send of a batch, None if these have more than `bytes_max`.

    A whole batch is verified. Raises LogError.
    """
    opened = open_body(key, slot, FRONT_BYTES, may_wait=may_wait)
    front = known_front(opened.front, slot.body_length, opened.read)
    cut = _maybe_cut(slot, front, selection)
    size_bytes = slot.body_length if cut is None else cut.size_bytes
    if bytes_max is not None and size_bytes > bytes_max:
        return None
    if cut is not None and cut.size_bytes >= len(cut.runs) * _RUN_BYTES_MIN:
        return [cut.head, *(opened.read(start, end) for start, end in cut.runs)]
    whole = read_bodies(key, [slot], may_wait=may_wait)
    if whole.error is not None:
        raise whole.error
    sent = _as_sent(slot, whole.data[0], selection)
    return sent if cut is None else [b"".join(sent)]  # views would keep the whole batch


def _maybe_cut(slot: Slot, front: memoryview, selection: Selection) -> Cut | None:
    """Return the selected part of a batch; None if it is sent whole."""
    if selection == NO_SELECTION or slot.base_offset < 0:
        return None
    try:
        extent = BatchExtent(slot.base_offset, slot.count, slot.body_length)
        return selection.maybe_cut(front, extent)
    except RecordBatchError:  # send an invalid batch as it was appended: its reader names the error
        return None
