"""Read the payload of a FETCH answer.

Bodies come from memory if the log has them there, else verified from the disk (log/bodies.py), or
only some of their columns (selected_reads.py). Small bodies are joined into one buffer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from sbp_core import limits
from sbp_core.errors import LogCorruptionError, LogError
from sbp_core.log.bodies import RecentBody, read_bodies
from sbp_core.log.durable_log import Log
from sbp_core.log.segment_rows import Slot
from sbp_core.log.states.range_states import RangeKey
from sbp_core.rangeserver.fetching.selected_reads import are_worth_parts, as_sent, read_selected
from sbp_core.records import NO_SELECTION, Selection
from sbp_core.wire.checksum import Buffer, crc32_joined


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
    may_wait: bool = True,
) -> SlotBodies:
    """Return the bodies of `slots` as they are sent, up to the first that cannot be read.

    Without `may_wait` a body that is not in memory cannot be read. Columns outside of `selection`
    are not sent, and not read from large batches on the disk.
    """
    recent: Sequence[RecentBody] = ()
    if (
        selection != NO_SELECTION
        and are_worth_parts(slots)
        and log.recent.maybe_bodies(slots) is None
    ):
        parts, error = read_selected(key, slots, selection, may_wait=may_wait)
    else:
        bodies = read_bodies(key, slots, log.recent, may_wait=may_wait)
        stored = zip(slots, bodies.data, strict=False)  # fewer if one cannot be read
        parts = [as_sent(slot, body, selection) for slot, body in stored]
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
