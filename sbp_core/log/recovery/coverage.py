"""Which records of each range are there, and which are not.

A batch that was staged is there if its entry is, and the end of its transaction: it was met before.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator

from sbp_core.log.entry import Entry, EntryKind, Location
from sbp_core.log.states.range_states import RangeKey
from sbp_core.log.states.staged_entries import decode_end
from sbp_core.log.states.staged_states import StagedStates


class Coverage:
    """The offsets of every range that were found, as intervals [base_offset, end_offset)."""

    def __init__(self) -> None:
        self._found: dict[RangeKey, list[tuple[int, int]]] = {}
        self._staged = array("q")
        """Where intact batches were written first that were staged, in order."""

    def add(self, entry: Entry, location: Location) -> None:
        """Take note of an intact entry, in the order of the log. Raises LogCorruptionError."""
        key = (entry.stream_id, entry.range_index)
        if entry.kind is EntryKind.BATCH:
            self._cover(key, entry.base_offset, entry.base_offset + entry.count)
        elif entry.kind is EntryKind.STAGED:
            self._staged.append(location.position if entry.base_offset < 0 else entry.base_offset)
        elif entry.kind is EntryKind.TXN_END:
            offset, batches = entry.base_offset, decode_end(entry).batches
            for position, count in zip(batches.positions, batches.record_counts, strict=True):
                if self._has_staged(position):
                    self._cover(key, offset, offset + count)
                offset += count

    def whole(self, staged: StagedStates) -> StagedStates:
        """Return what is staged without those transactions of which a batch is not there."""
        whole = StagedStates()
        for staging in staged.stagings():
            if all(map(self._has_staged, staging.batches.positions)):
                whole.restore(staging)
        for stream_id in staged.stream_ids():
            for end in staged.ends(stream_id):
                whole.restore_end(stream_id, end)
        return whole

    def _has_staged(self, position: int) -> bool:
        at = bisect_left(self._staged, position)
        return at < len(self._staged) and self._staged[at] == position

    def _cover(self, key: RangeKey, base_offset: int, end_offset: int) -> None:
        """Take note of records. Those that follow each other take no more room than one."""
        found = self._found.setdefault(key, [])
        if found and found[-1][1] == base_offset:
            base_offset, _ = found.pop()
        found.append((base_offset, end_offset))

    def missing(self, key: RangeKey, start_offset: int, end_offset: int) -> Iterator[range]:
        """Yield what was not found of [start_offset, end_offset), in order."""
        at = start_offset
        for found_start, found_end in sorted(self._found.get(key, [])):
            if found_start >= end_offset:
                break
            if found_start > at:
                yield range(at, found_start)
            at = max(at, found_end)
        if at < end_offset:
            yield range(at, end_offset)
