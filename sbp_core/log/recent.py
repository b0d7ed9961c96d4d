"""The bodies of the batches that were appended last, for those who follow the tail.

They are what was received and written, so they need neither the disk nor a checksum again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from sbp_core import limits
from sbp_core.log.entry import Entry
from sbp_core.log.range_states import RangeKey
from sbp_core.log.rows import Slot

_BATCH_COST_BYTES: Final = 512
"""What a batch takes besides its body, roughly."""


class RecentBodies:
    """At most RECENT_BODIES_BYTES_MAX octets of bodies; the oldest go first.

    With the buffers around them they take twice that at most. One thread may keep while others
    look.
    """

    def __init__(self) -> None:
        self._bytes_max = limits.RECENT_BODIES_BYTES_MAX
        self._bytes = 0
        self._bodies: dict[tuple[RangeKey, int], memoryview] = {}
        self._order: deque[tuple[RangeKey, int]] = deque()

    def keep(self, entry: Entry) -> None:
        """Keep the body of a BATCH entry that was written; nobody changes it any more."""
        place = ((entry.stream_id, entry.range_index), entry.base_offset)
        self._bodies[place] = _standing_alone(memoryview(entry.body))
        self._order.append(place)
        self._bytes += len(entry.body) + _BATCH_COST_BYTES
        while self._bytes > self._bytes_max:
            oldest = self._bodies.pop(self._order.popleft())
            self._bytes -= len(oldest) + _BATCH_COST_BYTES

    def maybe_bodies(self, key: RangeKey, slots: Sequence[Slot]) -> tuple[memoryview, ...] | None:
        """Return the bodies of `slots`, batches of one range; None unless all are here."""
        bodies = []
        for slot in slots:
            body = self._bodies.get((key, slot.base_offset))
            if body is None:
                return None
            bodies.append(body)
        return tuple(bodies)


def _standing_alone(body: memoryview) -> memoryview:
    """Return the body without the buffer that it came in, if that is much larger."""
    buffer_bytes = memoryview(body.obj).nbytes
    return body if buffer_bytes <= 2 * len(body) else memoryview(bytes(body))
