"""An index in memory of the numbered entries of replicated ranges, for each segment.

Index files list batches only. Entries between them (marks of writers, ends of transactions) are
found by a scan of headers. Each header is read once, although another replica asks for one range
after the other, in many requests. Bodies are neither read nor verified.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Mapping
from threading import Lock
from typing import Final

from sbp_core.limits import KIB, MIB
from sbp_core.log.entry import Location
from sbp_core.log.segment import Segment, SegmentView, corruption, file_size
from sbp_core.log.segment_scan import Damage, SegmentScanner, read_snapshot
from sbp_core.log.states.range_states import LoggedRange, RangeKey
from sbp_core.log.states.replicated_entries import NUMBERED_KINDS
from sbp_core.replication import Prefix
from sbp_core.segment_format import SEGMENT_HEADER_BYTES, EntryHeader, EntryKind

_WINDOW_BYTES: Final = 64 * KIB
"""Bytes of one read. The bodies of larger entries are skipped."""
_BYTES_MAX: Final = 32 * MIB
_INDEX_COST_BYTES: Final = 4 * KIB
_ENTRY_BYTES: Final = 12
"""Memory of an entry: position and length."""
_PREFIXES_KEPT: Final = 8
"""For each range: several replicas may copy it at the same time, and each takes two prefixes."""


class _RangeEntries:
    """The numbered entries of one range in a segment, and the prefixes at which readers stopped."""

    __slots__ = ("is_copied", "lengths", "positions", "prefixes")

    def __init__(self) -> None:
        self.positions = array("q")
        self.lengths = array("I")
        self.is_copied = False
        """Whether a COPY_BEGUN was found. Entries behind it are not numbered."""
        self.prefixes: tuple[Prefix, ...] = ()


class ReplicaIndex:
    """The numbered entries of a segment, up to the last header read. Safe in any thread."""

    def __init__(self, base: int) -> None:
        self._position = base + SEGMENT_HEADER_BYTES
        self._entry_count = 0
        self._ranges: dict[RangeKey, _RangeEntries] = {}
        self._times_from = array("q")
        self._times_ms = array("Q")
        """The times of entries; each holds from the position in `_times_from` on."""
        self._lock = Lock()

    @property
    def size_bytes(self) -> int:
        """Memory of the index in bytes, roughly."""
        return _INDEX_COST_BYTES * (1 + len(self._ranges) // 8) + self._entry_count * _ENTRY_BYTES

    def maybe_find(self, view: SegmentView, key: RangeKey, at: int) -> tuple[Location, int] | None:
        """Return the location and the time of entry `at` of a range in the segment, from 0.

        Returns None if the segment has fewer entries. Raises LogError if it cannot be read so far.
        """
        with self._lock:
            own = self._ranges.setdefault(key, _RangeEntries())
            if at >= len(own.positions):
                self._read_on(view, own, at)
            if at >= len(own.positions):
                return None
            location = Location(own.positions[at], own.lengths[at])
            time_at = bisect_right(self._times_from, location.position) - 1
            return location, self._times_ms[time_at]

    def prefix_before(self, key: RangeKey, seq: int) -> Prefix | None:
        """Return the longest noted prefix of a range with at most `seq` entries."""
        with self._lock:
            own = self._ranges.get(key)
            known = [each for each in (own.prefixes if own else ()) if each.seq <= seq]
            return max(known, key=lambda each: each.seq, default=None)

    def note(self, key: RangeKey, *prefixes: Prefix) -> None:
        """Remember where a reader stopped, so that the next reader goes on there."""
        with self._lock:
            own = self._ranges.setdefault(key, _RangeEntries())
            own.prefixes = (*own.prefixes, *prefixes)[-_PREFIXES_KEPT:]

    def _read_on(self, view: SegmentView, own: _RangeEntries, at: int) -> None:
        """Read headers until entry `at` of a range is known, or to the end."""
        base, size = view.segment.base, view.segment.size or file_size(view.file)
        scanner = SegmentScanner(view.file, base, size, window_bytes=_WINDOW_BYTES)
        scanner.position = self._position
        scanner.time_ms = self._times_ms[-1] if self._times_ms else 0
        window_end = self._position + _WINDOW_BYTES
        for item in scanner.headers():
            # Finish the window: its bytes were read, and other requests will need its entries.
            is_found = at < len(own.positions)
            if is_found and self._position >= window_end:
                return
            if not isinstance(item, Damage):
                self._add(*item, scanner.time_ms)
                self._position = item[1].end
            elif item.header is None or item.header.kind is not EntryKind.COMMIT:
                if is_found:  # a group may be on its way to the disk behind the entry
                    return
                raise corruption(view.file.path, item.position, item.reason)

    def _add(self, header: EntryHeader, location: Location, time_ms: int) -> None:
        if not self._times_ms or self._times_ms[-1] != time_ms:
            self._times_from.append(location.position)
            self._times_ms.append(time_ms)
        if header.kind not in NUMBERED_KINDS and header.kind is not EntryKind.COPY_BEGUN:
            return
        key = (header.stream_id, header.range_index)
        own = self._ranges.setdefault(key, _RangeEntries())
        if header.kind is EntryKind.COPY_BEGUN:
            own.is_copied = True
        elif not own.is_copied:
            own.positions.append(location.position)
            own.lengths.append(location.length)
            self._entry_count += 1


class ReplicaIndexes:
    """A cache of the indexes used last, about 32 MiB of them. Safe in any thread."""

    def __init__(self) -> None:
        self._indexes: OrderedDict[tuple[int, int], ReplicaIndex] = OrderedDict()
        self._first: tuple[Segment, dict[RangeKey, LoggedRange]] | None = None
        self._lock = Lock()

    def first_ranges(self, view: SegmentView) -> Mapping[RangeKey, LoggedRange]:
        """Return the ranges at the base of the first segment of the log. Raises LogError.

        The index of the segment before would have them, but that segment was removed.
        """
        first = self._first
        if first is None or first[0] != view.segment:
            ranges = {each.key: each for each in read_snapshot(view).ranges}
            self._first = first = (view.segment, ranges)
        return first[1]

    def index(self, segment: Segment) -> ReplicaIndex:
        """Return the index of a segment, which stays the same when the segment becomes full."""
        place = (segment.base, segment.generation)
        with self._lock:
            found = self._indexes.setdefault(place, ReplicaIndex(segment.base))
            self._indexes.move_to_end(place)
            held_bytes = sum(each.size_bytes for each in self._indexes.values())
            while held_bytes > _BYTES_MAX and len(self._indexes) > 1:
                held_bytes -= self._indexes.popitem(last=False)[1].size_bytes
            return found
