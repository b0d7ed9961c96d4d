"""The bodies of the batches that were appended last, for those who follow the tail.

They are what was received and written, so they need neither the disk nor a check again; and the
checksum that frames need of them is made once, however often they are sent.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from typing import Final

from sbp_core import limits
from sbp_core.log.entry import Entry, EntryKind, Location
from sbp_core.log.segment_rows import Slot
from sbp_core.wire.checksum import crc32

_BATCH_COST_BYTES: Final = 512
"""What a batch takes besides its body, roughly."""


class RecentBody:
    """One body, which nobody changes."""

    __slots__ = ("_crc32", "octets")

    def __init__(self, octets: memoryview) -> None:
        self.octets = octets
        self._crc32: int | None = None

    @property
    def crc32(self) -> int:
        """Its CRC-32."""
        if self._crc32 is None:
            self._crc32 = crc32((self.octets,))
        return self._crc32


class RecentBodies:
    """At most RECENT_BODIES_BYTES_MAX octets of bodies; the oldest go first.

    With the buffers around them they take twice that at most, and a frame more. They are found by
    the positions at which they were written, those that were staged too. One thread may keep while
    others look.
    """

    def __init__(self) -> None:
        self._bytes_max = limits.RECENT_BODIES_BYTES_MAX
        self._bytes = 0
        self._bodies: dict[int, RecentBody] = {}
        self._order: deque[int] = deque()

    def keep(self, entries: Sequence[Entry], locations: Sequence[Location]) -> None:
        """Keep the batches among entries that were written as a group; nobody changes them now.

        Of staged ones those that have their prefix beside the body. A buffer that several came in
        is kept for as long as any of them is.
        """
        kept = {
            location.position: memoryview(entry.body)
            for entry, location in zip(entries, locations, strict=True)
            if entry.kind is EntryKind.BATCH or entry.prefix
        }
        used_bytes: Counter[int] = Counter()
        for body in kept.values():
            used_bytes[id(body.obj)] += len(body)
        for position, body in kept.items():
            is_worth_its_buffer = memoryview(body.obj).nbytes <= 2 * used_bytes[id(body.obj)]
            self._keep(position, body if is_worth_its_buffer else memoryview(bytes(body)))

    def _keep(self, position: int, body: memoryview) -> None:
        self._bodies[position] = RecentBody(body)
        self._order.append(position)
        self._bytes += len(body) + _BATCH_COST_BYTES
        while self._bytes > self._bytes_max:
            oldest = self._bodies.pop(self._order.popleft())
            self._bytes -= len(oldest.octets) + _BATCH_COST_BYTES

    def maybe_bodies(self, slots: Sequence[Slot]) -> tuple[RecentBody, ...] | None:
        """Return the bodies of `slots`; None unless all are here.

        None as well if one stands in a segment that was rewritten: elsewhere than it did.
        """
        bodies = []
        for slot in slots:
            if slot.view.segment.generation:
                return None
            body = self._bodies.get(slot.location.position)
            if body is None:
                return None
            bodies.append(body)
        return tuple(bodies)
