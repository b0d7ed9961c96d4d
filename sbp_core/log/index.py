"""Where the batches of one range are: 24 octets of memory for each."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from sbp_core.errors import LogError
from sbp_core.log.entry import Location


@dataclass(frozen=True, slots=True)
class Slot:
    """One batch: records [base_offset, base_offset + count), found at `location`."""

    base_offset: int
    count: int
    location: Location

    @property
    def end_offset(self) -> int:
        """Offset after the last record."""
        return self.base_offset + self.count


class RangeIndex:
    """The batches of one (stream, range) in the order of their offsets, without gaps.

    One thread may append while others read: `find` sees a batch only when it is complete.
    """

    def __init__(self, start_offset: int) -> None:
        self._start_offset = start_offset
        self._counts = array("I")
        self._positions = array("q")
        self._lengths = array("I")
        self._base_offsets = array("q")  # written last: its length is that of the index

    @property
    def start_offset(self) -> int:
        """Offset of the first record, present or to come, that was not trimmed."""
        return self._start_offset

    @property
    def next_offset(self) -> int:
        """Offset after the last record."""
        last = len(self._base_offsets) - 1
        return self._base_offsets[last] + self._counts[last] if last >= 0 else self._start_offset

    def append(self, base_offset: int, count: int, location: Location) -> None:
        """Add the next batch. Raises LogError if it is empty or does not start at next_offset."""
        if count < 1 or base_offset != self.next_offset:
            raise LogError(
                f"a batch of {count} records at offset {base_offset} (log position "
                f"{location.position}) cannot follow: expected at least 1 record at offset "
                f"{self.next_offset}"
            )
        self._counts.append(count)
        self._positions.append(location.position)
        self._lengths.append(location.length)
        self._base_offsets.append(base_offset)

    def trim(self, offset: int) -> None:
        """Let the range begin at `offset`: not beyond its end, and never back.

        The batch that holds the offset stays whole.
        """
        self._start_offset = max(self._start_offset, min(offset, self.next_offset))

    def find(self, offset: int) -> int:
        """Return the number of the slot that holds record `offset`; LogError if none does."""
        slot_index = bisect_right(self._base_offsets, offset) - 1
        if slot_index < 0 or offset < self._start_offset or offset >= self[slot_index].end_offset:
            raise LogError(f"offset {offset} is outside [{self._start_offset}, {self.next_offset})")
        return slot_index

    def slots_from(self, slot_index: int) -> Iterator[Slot]:
        """Iterate over the slots from `slot_index` on, also those appended meanwhile."""
        while slot_index < len(self):
            yield self[slot_index]
            slot_index += 1

    def __len__(self) -> int:
        return len(self._base_offsets)

    def __getitem__(self, slot_index: int) -> Slot:
        return Slot(
            self._base_offsets[slot_index],
            self._counts[slot_index],
            Location(self._positions[slot_index], self._lengths[slot_index]),
        )
