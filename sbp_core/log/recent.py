"""The bodies of the batches that were appended last, for those who follow the tail.

They are what was received and written, so they need neither the disk nor a checksum again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from sbp_core import limits
from sbp_core.log.entry import Entry, EntryKind, Location
from sbp_core.log.rows import Slot
from sbp_core.log.staged_entries import decode_prefix, prefix_length

_BATCH_COST_BYTES: Final = 512
"""What a batch takes besides its body, roughly."""


class RecentBodies:
    """At most RECENT_BODIES_BYTES_MAX octets of bodies; the oldest go first.

    With the buffers around them they take twice that at most. They are found by the positions at
    which they were written, those that were staged too. One thread may keep while others look.
    """

    def __init__(self) -> None:
        self._bytes_max = limits.RECENT_BODIES_BYTES_MAX
        self._bytes = 0
        self._bodies: dict[int, memoryview] = {}
        self._order: deque[int] = deque()

    def keep(self, entry: Entry, location: Location) -> None:
        """Keep the batch of a BATCH or STAGED entry that was written; nobody changes it now."""
        body = memoryview(entry.body)
        if entry.kind is EntryKind.STAGED:
            body = body[prefix_length(decode_prefix(body)[0]) :]
        self._bodies[location.position] = _standing_alone(body)
        self._order.append(location.position)
        self._bytes += len(body) + _BATCH_COST_BYTES
        while self._bytes > self._bytes_max:
            oldest = self._bodies.pop(self._order.popleft())
            self._bytes -= len(oldest) + _BATCH_COST_BYTES

    def maybe_bodies(self, slots: Sequence[Slot]) -> tuple[memoryview, ...] | None:
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


def _standing_alone(body: memoryview) -> memoryview:
    """Return the body without the buffer that it came in, if that is much larger."""
    buffer_bytes = memoryview(body.obj).nbytes
    return body if buffer_bytes <= 2 * len(body) else memoryview(bytes(body))
