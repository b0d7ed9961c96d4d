"""From the slots of batches to the payload of a FETCH answer."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sbp_core import limits
from sbp_core.errors import LogError
from sbp_core.log.bodies import Bodies, RecentBody, maybe_cached_bodies, read_bodies
from sbp_core.log.durable_log import Log
from sbp_core.log.segment_rows import Slot
from sbp_core.log.states.range_states import RangeKey
from sbp_core.records import with_base_offset
from sbp_core.wire.checksum import Octets, crc32_joined

_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SlotBodies:
    """The bytes of the first `slot_count` slots, in buffers worth sending one by one.

    `error` says why the next slot could not be read. `crc32` is that of all buffers, None where it
    takes a look at the bytes.
    """

    buffers: tuple[Octets, ...]
    slot_count: int
    error: LogError | None
    crc32: int | None


class PayloadParts:
    """The buffers of a payload in their order, and its CRC-32 for as long as it is known."""

    def __init__(self) -> None:
        self.buffers: list[Octets] = []
        self.crc32: int | None = 0

    def add(self, bodies: SlotBodies) -> None:
        """Put the bytes of more slots behind."""
        self.buffers += bodies.buffers
        if self.crc32 is not None and bodies.crc32 is not None:
            body_bytes = sum(map(len, bodies.buffers))
            self.crc32 = crc32_joined(self.crc32, bodies.crc32, body_bytes)
        else:
            self.crc32 = None


def read_slots(log: Log, key: RangeKey, slots: Sequence[Slot]) -> SlotBodies:
    """Return the bodies of `slots`, in their order, up to the first that cannot be read.

    Those that come from the disk are verified.
    """
    recent = log.recent.maybe_bodies(slots)
    if recent is not None:
        return _served_recent(slots, recent)
    bodies = read_bodies(key, slots)
    if bodies.error is not None:
        _LOG.error("%s", bodies.error)
    return _served(slots, bodies)


def maybe_cached_slots(log: Log, key: RangeKey, slots: Sequence[Slot]) -> SlotBodies | None:
    """Return what `read_slots` would, if that needs no wait for the disk and nothing fails."""
    recent = log.recent.maybe_bodies(slots)
    if recent is not None:
        return _served_recent(slots, recent)
    bodies = maybe_cached_bodies(key, slots)
    return None if bodies is None else _served(slots, bodies)


def _served_recent(slots: Sequence[Slot], recent: Sequence[RecentBody]) -> SlotBodies:
    bodies = Bodies(tuple([body.octets for body in recent]))
    return _served(slots, bodies, recent)


def _served(slots: Sequence[Slot], bodies: Bodies, kept: Sequence[RecentBody] = ()) -> SlotBodies:
    """Return bodies as they are sent: those that were staged say their base offsets now."""
    buffers: list[Octets] = []
    for slot, body in zip(slots, bodies.octets, strict=False):  # fewer if one cannot be read
        if slot.prefix_bytes and slot.base_offset >= 0:
            buffers += with_base_offset(body, slot.base_offset)
            kept = ()
        else:
            buffers.append(body)
    slot_count = len(bodies.octets)
    if sum(map(len, bodies.octets)) < slot_count * limits.FETCH_JOIN_BYTES:
        buffers = [b"".join(buffers)]
        kept = ()
    return SlotBodies(tuple(buffers), slot_count, bodies.error, _joined_crc32(kept))


def _joined_crc32(kept: Sequence[RecentBody]) -> int | None:
    if not kept:
        return None
    joined = 0
    for body in kept:
        joined = crc32_joined(joined, body.crc32, len(body.octets))
    return joined
