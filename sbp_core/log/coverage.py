"""Which records of each range are there, and which are not."""

from __future__ import annotations

from collections.abc import Iterator

from sbp_core.log.range_states import RangeKey


class Coverage:
    """The offsets of every range that were found, as intervals [base_offset, end_offset)."""

    def __init__(self) -> None:
        self._found: dict[RangeKey, list[tuple[int, int]]] = {}

    def add(self, key: RangeKey, base_offset: int, end_offset: int) -> None:
        """Take note of a batch. Batches that follow each other take no more room than one."""
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
