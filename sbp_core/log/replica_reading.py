"""Read the numbered entries of a replicated range again, and truncate a range to its end.

The index file of a segment has the prefix of every range at the end of the segment. So a reader
begins in the last segment before the wanted entry, and finds entries by `replica_index.py`. At the
end of each segment the prefix must equal the prefix in the index. A rewritten segment is read to
its end before any entry is returned, because it may lack entries of a settled range.

If a replica has entries behind the decided end of its range, these do not count. The states at the
end follow from a snapshot and the entries behind it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from sbp_core import limits
from sbp_core.errors import LogError
from sbp_core.log.batch_lookup import BatchLookup, Extent
from sbp_core.log.entry import Entry, Location, decode_entry
from sbp_core.log.replica_index import ReplicaIndexes
from sbp_core.log.segment import SegmentView, naming_damage
from sbp_core.log.segment_scan import read_snapshot
from sbp_core.log.states.range_states import LoggedRange, prefix_of
from sbp_core.log.states.replicated_entries import (
    Truncation,
    settled_entry,
    summary,
    truncation_entry,
)
from sbp_core.log.states.staged_states import StagedStates, Staging
from sbp_core.log.states.state_snapshot import SnapshotReader
from sbp_core.log.states.writer_states import MarkReader, WriterStates, encode_writers
from sbp_core.replication import Prefix
from sbp_core.segment_format import EntryKind


@dataclass(frozen=True, slots=True)
class Numbered:
    """A numbered entry of this log; `prefix` ends with it."""

    entry: Entry
    location: Location
    time_ms: int
    prefix: Prefix


class ReplicaReader:
    """Reads the entries of one replicated range in `extent`, on one thread."""

    def __init__(
        self, lookup: BatchLookup, indexes: ReplicaIndexes, extent: Extent, logged: LoggedRange
    ) -> None:
        self._lookup = lookup
        self._indexes = indexes
        self._extent = extent
        self._key = logged.key
        self._end = prefix_of(logged)

    def read(self, after_seq: int, upto_seq: int) -> Iterator[Numbered]:
        """Yield entries (after_seq, upto_seq]. Raises LogError if one is missing."""
        for each in self.read_from(self.segment_before(after_seq), upto_seq, after_seq):
            if each.prefix.seq > after_seq:
                yield each

    def prefix_at(self, seq: int) -> Prefix:
        """Return the prefix of `seq` entries. Raises LogError if one is missing."""
        at = self.segment_before(seq)
        prefix = self._known_prefix(at, seq) or self._prefix_before(at)
        for each in self.read_from(at, seq, seq):
            prefix = each.prefix
        return prefix

    def segment_before(self, seq: int) -> int:
        """Return the last segment that begins behind at most `seq` entries of the range.

        Raises LogError if that segment was removed, or entries before it are damaged.
        """
        first, last = -1, len(self._extent.sealed)
        while first < last:
            middle = (first + last + 1) // 2
            logged = self._range_before(middle)
            is_numbered = logged is not None and logged.prefix is not None and logged.is_whole
            if logged is None or (is_numbered and logged.seq <= seq):
                first = middle
            else:
                last = middle - 1
        if first < 0:
            raise self._missing(0, seq + 1)
        return first

    def snapshot(self, at: int) -> SnapshotReader:
        """Return the states at the base of a segment. Raises LogError."""
        return read_snapshot(self._view(at))

    def read_from(self, at: int, upto_seq: int, after_seq: int = 0) -> Iterator[Numbered]:
        """Yield entries from segment `at` on, up to `upto_seq`. Raises LogError if one is missing.

        Entries up to `after_seq` may be left out.
        """
        prefix = self._prefix_before(at)
        while prefix.seq < upto_seq:
            base = prefix
            if self._view(at).segment.generation:
                self._check_whole(at, base)
            prefix = self._known_prefix(at, after_seq) or base
            left = max(upto_seq - prefix.seq, 0)
            for each in islice(self._read_segment(at, base, prefix), left):
                prefix = each.prefix
                yield each
            at += 1
            if prefix.seq < upto_seq and not self._may_follow(prefix, at):
                raise self._missing(at - 1, prefix.seq + 1)

    def _may_follow(self, prefix: Prefix, at: int) -> bool:
        """Whether the entries of segment `at` follow a prefix.

        If entries were damaged and mended, only the entries behind them can tell.
        """
        if at > len(self._extent.sealed):
            return False
        logged = self._range_before(at)
        if logged is None:
            return not prefix.seq
        return logged.prefix is not None and (not logged.is_whole or logged.prefix == prefix)

    def _read_segment(self, at: int, base: Prefix, prefix: Prefix) -> Iterator[Numbered]:
        """Yield the entries of a segment behind `prefix`; `base` is the prefix at its base."""
        view = self._view(at)
        index = self._indexes.index(view.segment)
        last: deque[Prefix] = deque(maxlen=2)  # the caller may have no room for the last entry
        try:
            while found := index.maybe_find(view, self._key, prefix.seq - base.seq):
                location, time_ms = found
                data = memoryview(view.read(location.position, location.length))
                with naming_damage(view.file.path, location.position):
                    entry = decode_entry(data, location.position)
                    prefix = prefix.extended(summary(entry))
                last.append(prefix)
                yield Numbered(entry, location, time_ms, prefix)
        finally:
            index.note(self._key, *last)

    def _check_whole(self, at: int, base: Prefix) -> None:
        """Raise LogError unless a rewritten segment still has all entries of the range.

        After a repair these are the entries up to the present end of the range.
        """
        end = self._prefix_before(at + 1)
        if end.seq > self._end.seq:
            end = self._end
        prefix = self._known_prefix(at, end.seq) or base
        left = max(end.seq - prefix.seq, 0)
        for each in islice(self._read_segment(at, base, prefix), left):
            prefix = each.prefix
        if prefix != end:
            raise self._missing(at, end.seq)

    def _known_prefix(self, at: int, seq_max: int) -> Prefix | None:
        """Return the longest prefix of at most `seq_max` entries at which a reader stopped."""
        index = self._indexes.index(self._view(at).segment)
        return index.prefix_before(self._key, seq_max)

    def _view(self, at: int) -> SegmentView:
        sealed = self._extent.sealed
        return self._lookup.views.view(sealed[at]) if at < len(sealed) else self._extent.active

    def _prefix_before(self, at: int) -> Prefix:
        return prefix_of(self._range_before(at))

    def _range_before(self, at: int) -> LoggedRange | None:
        """Return the range at the base of a segment, None if it was created later."""
        if at:
            return self._lookup.index(self._extent, at - 1).maybe_range(self._key)
        return self._indexes.first_ranges(self._view(0)).get(self._key)

    def _missing(self, at: int, seq: int) -> LogError:
        stream_id, range_index = self._key
        return LogError(
            f"entry {seq} of range {range_index} of stream {stream_id}, or one before it, is not in"
            f" {self._view(at).file.path}: another replica may have it"
        )


@dataclass(frozen=True, slots=True)
class ReplicaStates:
    """The present states of a replicated range to which nothing is appended any more.

    `is_last`: the range is the last range of its stream here.
    """

    logged: LoggedRange
    staged: StagedStates
    writers: WriterStates
    is_last: bool


def truncate_after(
    reader: ReplicaReader, now: ReplicaStates, end_offset: int, end: Prefix
) -> Entry:
    """Return the SETTLED entry with which a range ends at `end_offset`, after `end`.

    Raises LogError if `end` is not a prefix of the range here, or cannot be read.
    """
    logged = now.logged
    if logged.is_whole and logged.prefix == end and logged.next_offset == end_offset:
        return settled_entry(logged.key, end_offset, end)
    at = reader.segment_before(end.seq)
    snapshot = reader.snapshot(at)
    before = next((each for each in snapshot.ranges if each.key == logged.key), None)
    found = prefix_of(before)
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
            f"the first {end.seq} entries of range {logged.range_index} of stream"
            f" {logged.stream_id} end at offset {next_offset} and differ from the decided ones,"
            f" which end at {end_offset}: the log was changed from outside, or is another stream's"
        )
    truncation = Truncation(
        _writers_at_end(snapshot.writers, now), _staged_at_end(snapshot.staged, now).encode()
    )
    entry = truncation_entry(logged.key, end_offset, end, truncation, is_mended=not logged.is_whole)
    if entry.length > limits.ENTRY_BYTES_MAX:
        raise LogError(
            f"the batches staged in range {logged.range_index} of stream {logged.stream_id} take"
            f" {entry.length} bytes, over the limit of {limits.ENTRY_BYTES_MAX}"
        )
    return entry


def _writers_at_end(at_end: WriterStates, now: ReplicaStates) -> bytes:
    """Return the writers of the stream at the end of the range, nothing if unknown.

    They are unknown if a later range is here, whose batches count, or if the entries that made them
    known are truncated.
    """
    stream_id = now.logged.stream_id
    if not now.is_last or at_end.known_from(stream_id) != now.writers.known_from(stream_id):
        return b""
    return encode_writers(at_end.writers_of(stream_id))


def _staged_at_end(at_end: StagedStates, now: ReplicaStates) -> StagedStates:
    """Return how staged batches and ends at the end of a range differ from the present ones."""
    stream_id, range_index = now.logged.key
    truncated = StagedStates()
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
            truncated.restore(Staging(*now.logged.key, staging.txn_id, staging.staged_at_ms))
        elif known.batches.positions == staging.batches.positions:
            del left[staging.txn_id]
    for staging in left.values():
        truncated.restore(staging)
    own = [each for each in now.staged.ends(stream_id) if each.range_index == range_index]
    for end in (Counter(own) - Counter(at_end.ends(stream_id))).elements():
        truncated.restore_end(stream_id, end)
    return truncated
