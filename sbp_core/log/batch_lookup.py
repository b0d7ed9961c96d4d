"""Find batches by range and offset, or by time, over all segments.

The active segment has its rows in memory, full segments have index files. A staged batch is listed
by the segment that published it. Its bytes are in the segment that staged it, where a rewrite of
that segment may have moved them.

A lookup by time considers only full segments whose latest batch is not earlier. The header of each
index file has that time; headers are read once, and kept. A missing or stale index file is rebuilt
from its segment by the first lookup that needs it. If damage may hide rows of the segment, the
index is kept in memory only, because a file would count as complete.

Every lookup may run in any thread. Lookups share with the writer an immutable `Extent`, which the
writer replaces as a whole, and rows that only grow.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from sbp_core.errors import LogCorruptionError, LogError
from sbp_core.failpoints import failpoint
from sbp_core.limits import INDEX_CACHE_BYTES_MAX, SEGMENT_FILES_OPEN_MAX
from sbp_core.log.disk import Disk, write_file
from sbp_core.log.entry import Location
from sbp_core.log.index_file import (
    SegmentIndex,
    encode_index,
    index_path,
    open_index,
    read_index_header,
)
from sbp_core.log.segment import Segment, SegmentView, SegmentViews, corruption
from sbp_core.log.segment_replay import replay_states
from sbp_core.log.segment_rows import DatedOffset, SegmentRows, Slot
from sbp_core.log.segment_scan import Damage, SegmentScanner, read_snapshot
from sbp_core.log.states.range_states import LoggedRange, RangeKey
from sbp_core.segment_format import EntryKind

_LOG: Final = logging.getLogger(__name__)

_Times = npt.NDArray[np.uint64]

_PLACE_BYTES: Final = 4096
"""Memory of an index besides its columns, roughly."""


@dataclass(frozen=True, slots=True)
class Extent:
    """The readable part of the log: the full segments, and the durable `rows` of the active one."""

    sealed: tuple[Segment, ...]
    active: SegmentView
    rows: SegmentRows


@dataclass(slots=True)
class _OpenIndex:
    """An entry of the cache; the thread that holds its lock loads the index."""

    index: SegmentIndex | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def size_bytes(self) -> int:
        """Memory in bytes, also while the index is being read."""
        index = self.index
        return _PLACE_BYTES + (0 if index is None else index.size_bytes)


class BatchLookup:
    """Finds batches; caches the indexes used last, at most `index_bytes_max` bytes of them."""

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        *,
        files_open_max: int = SEGMENT_FILES_OPEN_MAX,
        index_bytes_max: int = INDEX_CACHE_BYTES_MAX,
    ) -> None:
        self._index_bytes_max = index_bytes_max
        self._disk = disk
        self._directory = directory
        self.views = SegmentViews(disk, directory, files_open_max)
        self._indexes: OrderedDict[Segment, _OpenIndex] = OrderedDict()
        self._latest: tuple[tuple[Segment, ...], _Times] = ((), np.empty(0, np.uint64))
        """Full segments, and the time of the latest batch in each, in ms since the epoch."""
        self._lock = threading.Lock()

    def slots_from(self, extent: Extent, key: RangeKey, offset: int) -> Iterator[Slot]:
        """Yield the batches of a range from the one that holds `offset` to the last.

        Raises LogCorruptionError where the next batch is lost, LogError when the disk fails.
        """
        first = 0
        while True:
            rows = extent.rows.maybe_rows(key)
            if rows is not None and offset >= rows.first_offset:
                for slot in rows.slots_from(offset, extent.active):
                    yield self.placed(extent, slot) if slot.prefix_bytes else slot
                return
            # The first segment at whose end the range goes on behind `offset`. The search starts
            # at `first`, so that a rewrite in between cannot send it back.
            at = bisect_right(
                range(len(extent.sealed)),
                offset,
                lo=first,
                key=lambda at: self.index(extent, at).next_offset(key),
            )
            if at == len(extent.sealed):
                return
            index, view = self.index(extent, at), self.views.view(extent.sealed[at])
            listed = index.maybe_rows(key)
            slots = () if listed is None else listed.slots_from(offset, view)
            for slot in _contiguous(slots, key, offset, view):
                yield self.placed(extent, slot) if slot.prefix_bytes else slot
                offset = slot.end_offset
            if offset < index.next_offset(key):
                raise _lost(view, key, offset, index.next_offset(key))
            first = at + 1

    def placed(self, extent: Extent, slot: Slot) -> Slot:
        """Return a batch with its present location: a staged batch may be in another segment.

        Raises LogError when the disk fails, or the segment was removed.
        """
        segment, position = slot.view.segment, slot.location.position
        if not slot.prefix_bytes or (position >= segment.base and not segment.generation):
            return slot
        if position >= extent.active.segment.base:
            return replace(slot, view=extent.active)
        at = bisect_right(extent.sealed, position, key=lambda each: each.base) - 1
        if at < 0:
            raise LogError(f"the segment of log position {position} was removed")
        view = self.views.view(extent.sealed[at])
        if not view.segment.generation:
            return replace(slot, view=view)
        moved = self.index(extent, at).maybe_moved(position)
        if moved is None:
            reason = f"the batch staged at log position {position} cannot be found in it"
            raise corruption(view.file.path, view.segment.base, reason)
        location = Location(moved, slot.location.length)
        return replace(slot, view=view, location=location, birth_position=position)

    def write_index(
        self, segment: Segment, ranges: Sequence[LoggedRange], rows: SegmentRows
    ) -> None:
        """Write the index of a full segment. A failure is logged: a lookup rebuilds the index.

        The index of a rewritten segment is synced, because such a segment lacks the history of its
        ranges, and the index could not be rebuilt if the snapshot behind it is damaged.
        """
        path = index_path(self._directory, segment.base)
        try:
            failpoint("index.before_write")
            encoded = encode_index(segment, ranges, rows)
            write_file(self._disk, path, encoded, is_durable=segment.generation > 0)
        except OSError as error:
            _LOG.warning("index not written path=%s: %s; it will be built again", path, error)

    def ranges_after(self, extent: Extent, at: int) -> list[LoggedRange]:
        """Return the ranges at the end of a full segment. Raises LogError.

        They are the snapshot of the next segment. If that is damaged the segment is replayed.
        """
        is_last = at + 1 == len(extent.sealed)
        try:
            following = extent.active if is_last else self.views.view(extent.sealed[at + 1])
            return read_snapshot(following).ranges
        except LogCorruptionError:
            segment = extent.sealed[at]
            return list(replay_states(self.views.view(segment).file, segment))

    def bytes_from(self, extent: Extent, key: RangeKey, offset: int, end_offset: int) -> int:
        """Return the bytes of a range's batches in [offset, end_offset). Raises LogError."""
        rows = extent.rows.maybe_rows(key)
        total = 0 if rows is None else rows.bytes_from(offset, end_offset)
        for at in reversed(range(len(extent.sealed))):
            index = self.index(extent, at)
            if index.next_offset(key) <= offset:
                break
            listed = index.maybe_rows(key)
            total += 0 if listed is None else listed.bytes_from(offset, end_offset)
        return total

    def maybe_since(
        self, extent: Extent, key: RangeKey, offset: int, time_ms: int
    ) -> DatedOffset | None:
        """Return the first record from `offset` on of `time_ms` or later. Raises LogError."""
        is_late = self._latest_times(extent) >= np.uint64(time_ms)
        candidates: list[int] = np.flatnonzero(is_late).tolist()
        at = 0
        while at < len(candidates):
            index = self.index(extent, candidates[at])
            listed = index.maybe_rows(key)
            found = None if listed is None else listed.maybe_since(offset, time_ms)
            if found is not None:
                return found
            offset = max(offset, index.next_offset(key))
            at = bisect_right(
                candidates,
                offset,
                lo=at + 1,
                key=lambda later: self.index(extent, later).next_offset(key),
            )
        rows = extent.rows.maybe_rows(key)
        return None if rows is None else rows.maybe_since(offset, time_ms)

    def drop(self, segment: Segment) -> None:
        """Close the files of a removed segment, so that the disk frees their space."""
        with self._lock:
            self._indexes.pop(segment, None)
        self.views.drop(segment)

    def clear(self) -> None:
        """Close all files."""
        with self._lock:
            self._indexes.clear()
        self.views.clear()

    def index(self, extent: Extent, at: int) -> SegmentIndex:
        """Return the index of the full segment at `at`. Raises LogError if it cannot be made."""
        segment = extent.sealed[at]
        with self._lock:
            place = self._indexes.setdefault(segment, _OpenIndex())
            self._indexes.move_to_end(segment)
        # Only threads that need this index wait for its load: `_lock` is not held.
        with place.lock:
            if place.index is not None:
                return place.index
            place.index = index = self._maybe_load(segment) or self._rebuild(extent, at)
        self._evict()
        return index

    def _evict(self) -> None:
        """Evict the least recently used indexes over the limit, but never the latest."""
        with self._lock:
            held_bytes = sum(each.size_bytes for each in self._indexes.values())
            while held_bytes > self._index_bytes_max and len(self._indexes) > 1:
                held_bytes -= self._indexes.popitem(last=False)[1].size_bytes

    def _latest_times(self, extent: Extent) -> _Times:
        """Return the time of the latest batch in each full segment; reads only new segments."""
        known = self._latest
        if known[0] is not extent.sealed:
            times = dict(zip(known[0], known[1].tolist(), strict=True))
            latest_ms = [
                times[segment] if segment in times else self._latest_time(extent, at)
                for at, segment in enumerate(extent.sealed)
            ]
            known = self._latest = (extent.sealed, np.array(latest_ms, np.uint64))
        return known[1]

    def _latest_time(self, extent: Extent, at: int) -> int:
        segment = extent.sealed[at]
        path = index_path(self._directory, segment.base)
        try:
            with closing(self._disk.open(path, is_writable=False)) as file:
                return read_index_header(file, segment).latest_ms
        except (OSError, LogCorruptionError):
            return self.index(extent, at).latest_ms

    def _maybe_load(self, segment: Segment) -> SegmentIndex | None:
        try:
            return open_index(self._disk, self._directory, segment)
        except (OSError, LogCorruptionError) as error:
            path = index_path(self._directory, segment.base)
            _LOG.warning("index not usable path=%s: %s; it is built again", path, error)
            return None

    def _rebuild(self, extent: Extent, at: int) -> SegmentIndex:
        segment = extent.sealed[at]
        ranges = self.ranges_after(extent, at)
        rows = _read_rows(self.views.view(segment))
        if rows.is_whole:
            self.write_index(segment, ranges, rows)
            index = self._maybe_load(segment)
            if index is not None:
                return index
        encoded = b"".join(encode_index(segment, ranges, rows))
        return SegmentIndex(encoded, is_whole=rows.is_whole)


def _read_rows(view: SegmentView) -> SegmentRows:
    """Return the batches of a full segment, including damaged ones with an intact header.

    The rows are not whole if a damaged entry may have published batches, or the file lost its end.
    """
    segment = view.segment
    scanner = SegmentScanner(view.file, segment.base, segment.size)
    rows = SegmentRows(segment.base)
    rows.is_whole = not segment.is_cut
    for item in scanner.entries():
        if isinstance(item, Damage):
            _LOG.error(
                "batch not readable: %s", corruption(view.file.path, item.position, item.reason)
            )
            found = item.maybe_batch()
            may_publish = item.header is None or item.header.kind is EntryKind.TXN_END
            rows.is_whole = rows.is_whole and not may_publish
        else:
            found = item
        if found is not None and found[1].end <= segment.base + segment.size:
            rows.add(*found, scanner.time_ms)
    return rows


def _contiguous(
    slots: Iterable[Slot], key: RangeKey, offset: int, view: SegmentView
) -> Iterator[Slot]:
    """Yield the slots from `offset` on. Raises LogCorruptionError at a gap between them."""
    for slot in slots:
        if slot.end_offset <= offset:
            continue
        if slot.base_offset > offset:
            raise _lost(view, key, offset, slot.base_offset)
        yield slot
        offset = slot.end_offset


def _lost(view: SegmentView, key: RangeKey, start: int, end: int) -> LogCorruptionError:
    return corruption(
        view.file.path,
        view.segment.base,
        f"the batches of offsets [{start}, {end}) of range {key[1]} of stream {key[0]} cannot be"
        f" found in it",
    )
