"""Reading the numbered entries of a replicated range again, and undoing the last ones.

The snapshot at the start of each segment has the prefix of every range, so a scan begins at the
last segment in front of the entry that is wanted, or where an earlier one ended (`Places`). Each
segment has to go on where the snapshot says. A rewritten one is read to its end before anything of
it is returned: entries of a settled range may have been dropped from it.

If a replica has more than the decided end of its range, the last entries do not count. The
states in front of them follow from the snapshot and the entries before.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from threading import Lock
from typing import Final

from sbp_core import limits
from sbp_core.errors import LogError
from sbp_core.log.batch_lookup import BatchLookup, Extent
from sbp_core.log.entry import Entry, Location
from sbp_core.log.segment import Segment, SegmentView, corruption, file_size
from sbp_core.log.segment_scan import Damage, SegmentScanner, read_snapshot
from sbp_core.log.states.range_states import LoggedRange, RangeKey
from sbp_core.log.states.replicated_entries import (
    NUMBERED_KINDS,
    Cut,
    cut_entry,
    settled_entry,
    summary,
)
from sbp_core.log.states.staged_states import StagedStates, Staging
from sbp_core.log.states.state_snapshot import SnapshotReader
from sbp_core.log.states.writer_states import MarkReader, WriterStates, encode_writers
from sbp_core.replication import Prefix
from sbp_core.segment_format import EntryHeader, EntryKind

_NO_ENTRIES: Final = Prefix()
_PLACES_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class Numbered:
    """A numbered entry as it is in a segment of this log, and `prefix` up to it."""

    entry: Entry
    location: Location
    time_ms: int
    prefix: Prefix
    segment: Segment

    @property
    def place_behind(self) -> Place:
        """Where the entries behind it are."""
        segment = self.segment
        return Place(segment.base, segment.generation, self.location.end, self.prefix)


@dataclass(frozen=True, slots=True)
class Place:
    """The position in a segment at which the entries of a range go on behind `prefix`."""

    base: int
    generation: int
    position: int
    prefix: Prefix


class Places:
    """The places where readers stopped last, the oldest forgotten first. Threads may share it.

    A copy is read in many requests, each of which goes on behind the one before. Without its place
    each of them would read the segment from the start.
    """

    def __init__(self) -> None:
        self._places: OrderedDict[tuple[RangeKey, int], Place] = OrderedDict()
        self._lock = Lock()

    def note(self, key: RangeKey, place: Place) -> None:
        """Remember a place."""
        with self._lock:
            self._places[key, place.prefix.seq] = place
            if len(self._places) > _PLACES_MAX:
                self._places.popitem(last=False)

    def maybe_place(self, key: RangeKey, seq: int) -> Place | None:
        """Return the place behind the first `seq` entries of a range."""
        with self._lock:
            return self._places.get((key, seq))


class ReplicaReader:
    """Reads the entries of one replicated range, as it is now, in `extent`.

    It belongs to one thread.
    """

    def __init__(
        self, lookup: BatchLookup, extent: Extent, logged: LoggedRange, places: Places | None = None
    ) -> None:
        self._lookup = lookup
        self._places = Places() if places is None else places
        self._extent = extent
        self._key = logged.key
        self._end = logged.prefix or _NO_ENTRIES

    def read(self, after_seq: int, upto_seq: int) -> Iterator[Numbered]:
        """Yield the entries after one number, up to another. Raises LogError if any is missing."""
        place = self._maybe_place(after_seq)
        at = self.segment_before(after_seq) if place is None else self._index_of(place)
        noted: deque[Place] = deque(maxlen=2)  # the last entry may be one too many for the caller
        try:
            for each in self.read_from(at, upto_seq, place):
                if each.prefix.seq > after_seq:
                    noted.append(each.place_behind)
                    yield each
        finally:
            for place in noted:
                self._places.note(self._key, place)

    def prefix_at(self, seq: int) -> Prefix:
        """Return the prefix of `seq` entries. Raises LogError if any of them is missing."""
        place = self._maybe_place(seq)
        if place is not None:
            return place.prefix
        at = self.segment_before(seq)
        prefix = self._prefix_in(self.snapshot(at))
        for each in self.read_from(at, seq):
            prefix = each.prefix
            place = each.place_behind
        if place is not None:
            self._places.note(self._key, place)
        return prefix

    def segment_before(self, seq: int) -> int:
        """Return the last segment that begins behind at most `seq` entries of the range, all here.

        Raises LogError if that is not in the log any more.
        """
        first, last = -1, len(self._extent.sealed)
        while first < last:
            middle = (first + last + 1) // 2
            logged = self.range_in(self.snapshot(middle))
            is_numbered = logged is not None and logged.prefix is not None and logged.is_whole
            if logged is None or (is_numbered and logged.seq <= seq):
                first = middle
            else:
                last = middle - 1
        if first < 0:
            raise self._missing(self._view(0), seq + 1)
        return first

    def snapshot(self, at: int) -> SnapshotReader:
        """Return the states at the base of a segment. Raises LogError."""
        return read_snapshot(self._view(at))

    def read_from(self, at: int, upto_seq: int, place: Place | None = None) -> Iterator[Numbered]:
        """Yield the entries from the start of a segment, or a place in it, on.

        Raises LogError if any is missing.
        """
        prefix = self._prefix_in(self.snapshot(at)) if place is None else place.prefix
        while prefix.seq < upto_seq:
            view = self._view(at)
            if view.segment.generation and place is None:
                self._check_whole(at, prefix)
            for each in self._read_segment(view, prefix, place):
                prefix = each.prefix
                yield each
                if prefix.seq >= upto_seq:
                    return
            place = None
            at += 1
            is_last = at > len(self._extent.sealed)
            after = None if is_last else self.range_in(self.snapshot(at))
            is_known = after is None or after.is_whole  # else entries were damaged, and mended
            if is_last or (is_known and self._prefix_in(self.snapshot(at)) != prefix):
                raise self._missing(view, prefix.seq + 1)

    def _read_segment(
        self, view: SegmentView, prefix: Prefix, place: Place | None = None
    ) -> Iterator[Numbered]:
        size = view.segment.size or file_size(view.file)
        scanner = SegmentScanner(view.file, view.segment.base, size)
        if place is not None:
            scanner.position = place.position
        for item in scanner.entries():
            if isinstance(item, Damage):
                if item.header is None or self._is_own(item.header):
                    raise corruption(view.file.path, item.position, item.reason)
                continue
            entry, location = item
            is_copied = entry.kind is EntryKind.COPY_BEGUN
            if is_copied and (entry.stream_id, entry.range_index) == self._key:
                raise self._missing(view, prefix.seq + 1)
            if self._is_own(entry):
                prefix = prefix.extended(summary(entry))
                yield Numbered(entry, location, scanner.time_ms, prefix, view.segment)

    def _check_whole(self, at: int, prefix: Prefix) -> None:
        """Raise LogError unless a rewritten segment still has all entries of the range.

        After a repair these are the ones up to its present end.
        """
        view = self._view(at)
        end = self._prefix_in(self.snapshot(at + 1))
        if end.seq > self._end.seq:
            end = self._end
        for each in self._read_segment(view, prefix):
            if prefix.seq >= end.seq:
                break
            prefix = each.prefix
        if prefix != end:
            raise self._missing(view, end.seq)

    def _maybe_place(self, seq: int) -> Place | None:
        """Return a place that was noted, if its segment is still here as it was."""
        place = self._places.maybe_place(self._key, seq)
        return place if place is not None and self._maybe_index(place) is not None else None

    def _index_of(self, place: Place) -> int:
        at = self._maybe_index(place)
        assert at is not None
        return at

    def _maybe_index(self, place: Place) -> int | None:
        segments = (*self._extent.sealed, self._extent.active.segment)
        at = bisect_left(segments, place.base, key=lambda each: each.base)
        is_here = at < len(segments) and segments[at].base == place.base
        return at if is_here and segments[at].generation == place.generation else None

    def _is_own(self, entry: Entry | EntryHeader) -> bool:
        is_of_range = (entry.stream_id, entry.range_index) == self._key
        return is_of_range and entry.kind in NUMBERED_KINDS

    def _view(self, at: int) -> SegmentView:
        sealed = self._extent.sealed
        return self._lookup.views.view(sealed[at]) if at < len(sealed) else self._extent.active

    def _prefix_in(self, snapshot: SnapshotReader) -> Prefix:
        found = self.range_in(snapshot)
        return (None if found is None else found.prefix) or _NO_ENTRIES

    def range_in(self, snapshot: SnapshotReader) -> LoggedRange | None:
        """Return the range as a snapshot has it, None if it was created behind that."""
        return next((each for each in snapshot.ranges if each.key == self._key), None)

    def _missing(self, view: SegmentView, seq: int) -> LogError:
        stream_id, range_index = self._key
        return LogError(
            f"entry {seq} of range {range_index} of stream {stream_id}, or one before it, is not in"
            f" {view.file.path}: another replica may have it"
        )


@dataclass(frozen=True, slots=True)
class ReplicaStates:
    """The states now of a replicated range that nothing is appended to any more.

    `is_last` says whether it is the last range of its stream here.
    """

    logged: LoggedRange
    staged: StagedStates
    writers: WriterStates
    is_last: bool


def cut_after(reader: ReplicaReader, now: ReplicaStates, end_offset: int, end: Prefix) -> Entry:
    """Return the SETTLED entry that lets a range end at an offset and after a prefix.

    Raises LogError if this prefix is not one of the range here, or cannot be read.
    """
    logged = now.logged
    if logged.is_whole and logged.prefix == end and logged.next_offset == end_offset:
        return settled_entry(logged.key, end_offset, end)
    at = reader.segment_before(end.seq)
    snapshot = reader.snapshot(at)
    before = reader.range_in(snapshot)
    found = (None if before is None else before.prefix) or _NO_ENTRIES
    next_offset = None if before is None else before.next_offset
    marks = MarkReader()
    for each in reader.read_from(at, end.seq):
        entry, found = each.entry, each.prefix
        marks.add(entry, each.location, each.time_ms, snapshot.writers)
        snapshot.staged.apply(entry, each.location, each.time_ms)
        if entry.kind is EntryKind.BATCH or (entry.kind is EntryKind.TXN_END and entry.count):
            next_offset = entry.base_offset + entry.count
    if found != end or next_offset not in {None, end_offset} or end_offset > logged.next_offset:
        raise LogError(
            f"range {logged.range_index} of stream {logged.stream_id} has other entries up to"
            f" {end.seq}, with offset {next_offset} behind them, than were decided for it, with"
            f" {end_offset}: it was changed from outside, or is another stream's"
        )
    cut = Cut(_writers_at_end(snapshot.writers, now), _staged_at_end(snapshot.staged, now).encode())
    entry = cut_entry(logged.key, end_offset, end, cut, is_mended=not logged.is_whole)
    if entry.length > limits.ENTRY_BYTES_MAX:
        raise LogError(
            f"what is staged in range {logged.range_index} of stream {logged.stream_id} takes"
            f" {entry.length} bytes, over the limit of {limits.ENTRY_BYTES_MAX}"
        )
    return entry


def _writers_at_end(at_end: WriterStates, now: ReplicaStates) -> bytes:
    """Return the writers of the stream at the end of the range, nothing if they are not known.

    They are not if a later range is here: its batches count. Nor if entries that do not count made
    them known.
    """
    stream_id = now.logged.stream_id
    if not now.is_last or at_end.known_from(stream_id) != now.writers.known_from(stream_id):
        return b""
    return encode_writers(at_end.writers_of(stream_id))


def _staged_at_end(at_end: StagedStates, now: ReplicaStates) -> StagedStates:
    """Return what differs of a range now from what was staged and ended in it at its end."""
    stream_id, range_index = now.logged.key
    cut = StagedStates()
    left = {
        each.txn_id: each
        for each in at_end.stagings_of(stream_id)
        if each.range_index == range_index
    }
    for staging in now.staged.stagings_of(stream_id):
        known = left.get(staging.txn_id)
        if staging.range_index != range_index:
            continue
        if known is None:
            cut.restore(Staging(*now.logged.key, staging.txn_id, staging.staged_at_ms))
        elif known.batches.positions == staging.batches.positions:
            del left[staging.txn_id]
    for staging in left.values():
        cut.restore(staging)
    own = [each for each in now.staged.ends(stream_id) if each.range_index == range_index]
    for end in (Counter(own) - Counter(at_end.ends(stream_id))).elements():
        cut.restore_end(stream_id, end)
    return cut
