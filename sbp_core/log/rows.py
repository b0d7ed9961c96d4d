"""Where the batches of one segment are, and of when, in memory: 32 octets for each."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from sbp_core.log.entry import Entry, Location
from sbp_core.log.range_states import RangeKey
from sbp_core.log.segment import SegmentView


@dataclass(frozen=True, slots=True)
class Slot:
    """One batch: records [base_offset, base_offset + count), found at `location` of `view`.

    `time_ms` is when it was written, since the epoch, UTC.
    """

    base_offset: int
    count: int
    location: Location
    view: SegmentView
    time_ms: int

    @property
    def end_offset(self) -> int:
        """Offset after the last record."""
        return self.base_offset + self.count


@dataclass(frozen=True, slots=True)
class DatedOffset:
    """A record, and when its batch was written, in ms since the epoch, UTC."""

    offset: int
    time_ms: int


class RangeRows:
    """The batches of one range in one segment, in the order of their offsets.

    One thread may append while others read: they see a batch only when it is complete. Times are in
    order too, unless the clock was set back meanwhile.
    """

    __slots__ = ("base_offset", "count", "is_time_ordered", "length", "position", "time_ms")

    def __init__(self) -> None:
        self.count = array("I")
        self.position = array("q")
        self.length = array("I")
        self.time_ms = array("Q")
        self.is_time_ordered = True
        self.base_offset = array("q")  # written last: its length is that of the rows

    @property
    def first_offset(self) -> int:
        """Offset of the first record."""
        return self.base_offset[0]

    def append(self, base_offset: int, count: int, location: Location, time_ms: int) -> None:
        """Add the next batch."""
        self.count.append(count)
        self.position.append(location.position)
        self.length.append(location.length)
        if self.time_ms and time_ms < self.time_ms[-1]:
            self.is_time_ordered = False
        self.time_ms.append(time_ms)
        self.base_offset.append(base_offset)

    def slots_from(self, offset: int, view: SegmentView) -> Iterator[Slot]:
        """Yield the batches from the one that holds `offset` on, also those appended meanwhile.

        `offset` is not below the first one.
        """
        row = self._row_beyond(offset)
        while row < len(self.base_offset):
            location = Location(self.position[row], self.length[row])
            yield Slot(self.base_offset[row], self.count[row], location, view, self.time_ms[row])
            row += 1

    def bytes_from(self, offset: int) -> int:
        """Return the octets of the batches that reach beyond `offset`."""
        return sum(self.length[self._row_beyond(offset) : len(self.base_offset)])

    def maybe_since(self, offset: int, time_ms: int) -> DatedOffset | None:
        """Return the first record from `offset` on that was written at `time_ms` or later."""
        row, row_count = self._row_beyond(offset), len(self.base_offset)
        if self.is_time_ordered:
            row = bisect_left(self.time_ms, time_ms, row, row_count)
        else:
            while row < row_count and self.time_ms[row] < time_ms:
                row += 1
        if row == row_count:
            return None
        return DatedOffset(max(self.base_offset[row], offset), self.time_ms[row])

    def _row_beyond(self, offset: int) -> int:
        """Return the first batch that reaches beyond `offset`."""
        row = max(bisect_right(self.base_offset, offset) - 1, 0)
        return row + (self.base_offset[row] + self.count[row] <= offset)


class SegmentRows:
    """The batches of one segment, by range."""

    def __init__(self) -> None:
        self._ranges: dict[RangeKey, RangeRows] = {}

    @property
    def stream_ids(self) -> set[int]:
        """The streams that have batches here."""
        return {stream_id for stream_id, _ in self._ranges}

    def append(self, entry: Entry, location: Location, time_ms: int) -> None:
        """Add the next BATCH entry."""
        key = (entry.stream_id, entry.range_index)
        rows = self._ranges.get(key)
        if rows is None:
            rows = RangeRows()
            rows.append(entry.base_offset, entry.count, location, time_ms)
            self._ranges[key] = rows  # with its first row, for who reads meanwhile
        else:
            rows.append(entry.base_offset, entry.count, location, time_ms)

    def maybe_rows(self, key: RangeKey) -> RangeRows | None:
        """Return the rows of a range, at least one, or None."""
        return self._ranges.get(key)
