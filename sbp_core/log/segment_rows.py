"""The rows of a segment in memory: its batches, their positions and times, 33 bytes for each.

A batch that was appended with its offsets is in the segment itself. A staged batch got its offsets
from a TXN_END entry of the segment. Its position is the position of its first write, in this
segment or an earlier one, which may have been rewritten since.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from sbp_core.log.entry import Entry, Location
from sbp_core.log.segment import SegmentView
from sbp_core.log.states.range_states import RangeKey
from sbp_core.log.states.staged_entries import EndedBatches, StagedRows, decode_end
from sbp_core.segment_format import ENTRY_HEADER_BYTES, EntryKind

SLOT_COLUMNS: Final = ("base_offset", "count", "position", "length", "time_ms", "prefix_bytes")
_SLOTS_PER_STEP: Final = 32


class Slot(Struct, frozen=True):
    """A batch: records [base_offset, base_offset + count), found at `location` of `view`.

    `time_ms` is the time when it was written or published, since the epoch, UTC. A staged batch has
    `prefix_bytes` in front of it in its entry, and its bytes do not have its base offset;
    `base_offset` is -1 until it is published. `birth_position` is the position of its first write
    if a rewrite moved it, else -1.
    """

    base_offset: int
    count: int
    location: Location
    view: SegmentView
    time_ms: int
    prefix_bytes: int = 0
    birth_position: int = -1

    @property
    def body_length(self) -> int:
        """Length of the batch, in bytes."""
        return self.location.length - ENTRY_HEADER_BYTES - self.prefix_bytes

    @property
    def end_offset(self) -> int:
        """Offset after the last record."""
        return self.base_offset + self.count


@dataclass(frozen=True, slots=True)
class DatedOffset:
    """The offset of a record, and the time of its batch, in ms since the epoch, UTC."""

    offset: int
    time_ms: int


_Column = TypeVar("_Column", "array[int]", "npt.NDArray[Any]")


class BatchRows(Generic[_Column]):
    """The batches of one range in one segment, as columns, by offset.

    Times are in order, too, unless the clock was set back. Rows may be added while others are read:
    `base_offset` grows last, so its length is the number of complete rows.
    """

    __slots__ = (*SLOT_COLUMNS, "is_time_ordered")

    def __init__(self, columns: Mapping[str, _Column], *, is_time_ordered: bool = True) -> None:
        self.base_offset: _Column = columns["base_offset"]
        self.count: _Column = columns["count"]
        self.position: _Column = columns["position"]
        self.length: _Column = columns["length"]
        self.time_ms: _Column = columns["time_ms"]
        self.prefix_bytes: _Column = columns["prefix_bytes"]
        self.is_time_ordered = is_time_ordered

    def slots_from(self, offset: int, view: SegmentView) -> Iterator[Slot]:
        """Yield the batches that reach beyond `offset`, also batches that are added during it.

        `view` is the segment itself; a staged batch may be in another segment.
        """
        row, step = self._row_beyond(offset), 2  # most readers take a single batch, the rest many
        while row < (row_count := len(self.base_offset)):
            rows = slice(row, min(row + step, row_count))
            step = _SLOTS_PER_STEP
            columns = [getattr(self, name)[rows].tolist() for name in SLOT_COLUMNS]
            for base_offset, count, position, length, time_ms, prefix_bytes in zip(
                *columns, strict=True
            ):
                location = Location(position, length)
                yield Slot(base_offset, count, location, view, time_ms, prefix_bytes)
            row = rows.stop

    def bytes_from(self, offset: int, end_offset: int) -> int:
        """Return the bytes of the batches beyond `offset` that begin before `end_offset`."""
        end = bisect_left(self.base_offset, end_offset)
        return int(np.asarray(self.length[self._row_beyond(offset) : end]).sum(dtype=np.int64))

    def maybe_since(self, offset: int, time_ms: int) -> DatedOffset | None:
        """Return the first record from `offset` on that was written at `time_ms` or later."""
        row, row_count = self._row_beyond(offset), len(self.base_offset)
        if self.is_time_ordered:
            row = bisect_left(self.time_ms, time_ms, row, row_count)
        else:
            is_late = np.asarray(self.time_ms[row:row_count]) >= time_ms
            row = row + int(is_late.argmax()) if is_late.any() else row_count
        if row == row_count:
            return None
        return DatedOffset(max(int(self.base_offset[row]), offset), int(self.time_ms[row]))

    def _row_beyond(self, offset: int) -> int:
        """Return the first row that reaches beyond `offset`."""
        row = max(bisect_right(self.base_offset, offset) - 1, 0)
        return row + bool(self.base_offset[row] + self.count[row] <= offset)


class RangeRows(BatchRows["array[int]"]):
    """The rows of a range in the active segment: one thread appends, others read."""

    __slots__ = ("own_from",)

    def __init__(self) -> None:
        codes = zip(SLOT_COLUMNS, "qIqIQB", strict=True)
        super().__init__({name: array(code) for name, code in codes})
        self.own_from = 0
        """Offset from which on all batches are in the segment itself."""

    @property
    def first_offset(self) -> int:
        """Offset of the first record."""
        return int(self.base_offset[0])

    def append(self, base_offset: int, count: int, location: Location, time_ms: int) -> None:
        """Add the next batch, which was appended with its offset."""
        self.count.append(count)
        self.position.append(location.position)
        self.length.append(location.length)
        if self.time_ms and time_ms < self.time_ms[-1]:
            self.is_time_ordered = False
        self.time_ms.append(time_ms)
        self.prefix_bytes.append(0)
        self.base_offset.append(base_offset)

    def publish(
        self, base_offset: int, ended: EndedBatches, segment_base: int, time_ms: int
    ) -> None:
        """Add the next batches, at least one, which were staged."""
        batches = ended.batches
        end_offsets = np.cumsum(np.array(batches.record_counts, np.int64)) + base_offset
        (elsewhere,) = np.nonzero(np.array(batches.positions) < segment_base)
        if len(elsewhere):
            self.own_from = int(end_offsets[elsewhere[-1]])
        self.count += batches.record_counts
        self.position += batches.positions
        self.length += batches.lengths
        if self.time_ms and time_ms < self.time_ms[-1]:
            self.is_time_ordered = False
        self.time_ms += array("Q", [time_ms]) * len(batches)
        self.prefix_bytes += ended.prefix_lengths()
        self.base_offset += array("q", [base_offset, *end_offsets[:-1].tolist()])

    def published(self, start_offset: int) -> StagedRows:
        """Return the batches that were staged and reach beyond an offset."""
        row_count = len(self.base_offset)
        columns = (self.position, self.length, self.count, self.prefix_bytes, self.base_offset)
        position, length, count, prefix_bytes, base_offset = (
            np.frombuffer(column.tobytes(), column.typecode)[:row_count] for column in columns
        )
        is_live = (prefix_bytes > 0) & (base_offset + count > start_offset)
        return StagedRows(position[is_live], length[is_live])


class SegmentRows:
    """The batches that the segment at `base` lists, by range.

    `staged_bytes` counts the entries of batches staged in the segment. `moved` maps the position of
    their first write to the present one, if they were moved. Without `is_whole`, damage may hide
    rows.
    """

    def __init__(self, base: int) -> None:
        self.base = base
        self.is_whole = True
        self.staged_bytes = 0
        self.moved: dict[int, int] = {}
        self._ranges: dict[RangeKey, RangeRows] = {}

    @property
    def stream_ids(self) -> set[int]:
        """The streams with batches in the segment."""
        return {stream_id for stream_id, _ in self._ranges}

    def add(self, entry: Entry, location: Location, time_ms: int) -> None:
        """Add the batches of the next entry. Raises LogCorruptionError for an invalid entry.

        A damaged entry may lack its body, unless it is a TXN_END.
        """
        key = (entry.stream_id, entry.range_index)
        if entry.kind is EntryKind.BATCH:
            rows = self._ranges.get(key) or RangeRows()
            rows.append(entry.base_offset, entry.count, location, time_ms)
            self._ranges[key] = (
                rows  # after the first row, because other threads read at the same time
            )
        elif entry.kind is EntryKind.TXN_END and entry.count:
            rows = self._ranges.get(key) or RangeRows()
            rows.publish(entry.base_offset, decode_end(entry), self.base, time_ms)
            self._ranges[key] = rows
        elif entry.kind is EntryKind.STAGED:
            self.staged_bytes += location.length
            if entry.base_offset >= 0:
                self.moved[entry.base_offset] = location.position

    def published_rows(self, live_from: Callable[[RangeKey], int]) -> StagedRows:
        """Return the live batches that were staged; `live_from` returns where a range begins.

        May run in any thread while another thread adds rows.
        """
        found = [rows.published(live_from(key)) for key, rows in list(self._ranges.items())]
        return StagedRows.together(found)

    def maybe_rows(self, key: RangeKey) -> RangeRows | None:
        """Return the rows of a range, at least one, or None."""
        return self._ranges.get(key)
