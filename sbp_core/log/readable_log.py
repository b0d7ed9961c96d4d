"""Read an open log: batches, staged batches, and the entries of replicas.

Any number of threads may read, beside the threads that append. All threads share the readable
extent, an immutable value that every new segment replaces; the rows, which only grow; and the
states.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TypeVar

from sbp_core import limits
from sbp_core.errors import LogError
from sbp_core.log.batch_lookup import BatchLookup, Extent
from sbp_core.log.bodies import RecentBodies
from sbp_core.log.disk import Disk
from sbp_core.log.entry import Entry, Location
from sbp_core.log.replica_index import ReplicaIndexes
from sbp_core.log.replica_reading import ReplicaReader
from sbp_core.log.segment import SegmentView
from sbp_core.log.segment_rows import DatedOffset, Slot
from sbp_core.log.states.range_states import OFFSET_MAX, LoggedRange, RangeKey, RangeStates
from sbp_core.log.states.replicated_entries import portable
from sbp_core.log.states.staged_states import StagedStates, Staging
from sbp_core.log.states.writer_states import WriterStates
from sbp_core.replication import Prefix

_T = TypeVar("_T")


class LogState(enum.Enum):
    """OPEN accepts appends. FAILED and CLOSED never do again; FAILED can still be read."""

    OPEN = "open"
    FAILED = "failed"
    CLOSED = "closed"


class ReadableLog:
    """The files of a log up to `extent`, its part that can be read at this moment."""

    def __init__(self, directory: Path, disk: Disk, states: RangeStates, extent: Extent) -> None:
        self.directory = directory
        self.disk = disk
        self.state = LogState.OPEN
        self.lookup = BatchLookup(disk, directory)
        self.extent = extent
        self.recent = RecentBodies(limits.RECENT_BODIES_BYTES_MAX)
        self.suspects: set[int] = set()
        """The bases of segments in which a reader found damage. Any thread adds to it."""
        self._states = states
        self._replica_indexes = ReplicaIndexes()

    @property
    def writers(self) -> WriterStates:
        """The writers, including those of a group that is being synced."""
        return self._states.writers

    @property
    def staged(self) -> StagedStates:
        """The staged batches and the last ends, including those of a group that is being synced.

        A published batch is found in its range before it leaves the staged batches.
        """
        return self._states.staged

    def batches_from(self, key: RangeKey, offset: int) -> Iterator[Slot]:
        """Yield the batches of a range from the one that holds `offset` to the last.

        Nothing is yielded for an offset behind the last batch. The iterator may end early, where
        the cleaner merged the next batch with one that was yielded. Raises LogCorruptionError where
        the next batch is lost, LogError when the log is closed or cannot be read.
        """
        end_offset, first_offset = self._end_offset(key), offset
        while offset < end_offset:
            self._check_readable()
            extent = self.extent
            try:
                for slot in self.lookup.slots_from(extent, key, offset):
                    if slot.base_offset < offset > first_offset:
                        return  # its first records were yielded already
                    yield slot
                    offset = slot.end_offset
                    if offset >= end_offset:
                        return
                return
            except LogError:
                if not self._is_replaced(extent):
                    raise

    def staged_from(self, staging: Staging, sequence: int) -> Iterator[Slot]:
        """Yield the batches of a staging from number `sequence` on; they have no offsets.

        Raises LogError when the log is closed or cannot be read, or the batches were dropped.
        """
        batches = staging.batches
        for at in range(sequence, len(batches)):
            location = Location(batches.positions[at], batches.lengths[at])
            count, view = batches.record_counts[at], self.extent.active
            slot = Slot(-1, count, location, view, staging.staged_at_ms, staging.prefix_bytes)
            yield self._looked_up(partial(self.lookup.placed, slot=slot))

    def bytes_from(self, key: RangeKey, offset: int) -> int:
        """Return the bytes in the log of a range's batches from `offset` on. Raises LogError."""
        return self._looked_up(
            lambda extent: self.lookup.bytes_from(extent, key, offset, self._end_offset(key))
        )

    def maybe_since(self, key: RangeKey, offset: int, time_ms: int) -> DatedOffset | None:
        """Return a range's first record from `offset` on that was written at `time_ms` or later.

        The order is that of offsets, also where the clock was set back. A damaged batch counts if
        its header is intact. Raises LogError when the log is closed or cannot be read.
        """
        found = self._looked_up(
            lambda extent: self.lookup.maybe_since(extent, key, offset, time_ms)
        )
        return None if found is None or found.offset >= self._end_offset(key) else found

    def is_recent(self, key: RangeKey, offset: int) -> bool:
        """Whether `batches_from` finds the batch of `offset` without the disk."""
        rows = self.extent.rows.maybe_rows(key)
        return rows is not None and offset >= max(rows.first_offset, rows.own_from)

    def maybe_range(self, key: RangeKey) -> LoggedRange | None:
        """Return a range with all groups that were written. Its trims and deletions are final."""
        return self._states.maybe_range(key)

    def numbered_entries(self, key: RangeKey, after_seq: int, upto_seq: int) -> Iterator[Entry]:
        """Yield the numbered entries (after_seq, upto_seq] of a replicated range, portable.

        Raises LogError if any of them is not here, LogCorruptionError where one is damaged.
        """
        while after_seq < upto_seq:
            self._check_readable()
            logged = self._replica_range(key, upto_seq)
            extent = self.extent
            try:
                for each in self._reader(extent, logged).read(after_seq, upto_seq):
                    yield portable(each.entry)
                    after_seq = each.prefix.seq
            except LogError:
                if not self._is_replaced(extent):
                    raise

    def prefix_at(self, key: RangeKey, seq: int) -> Prefix:
        """Return the prefix of `seq` entries of a replicated range. Raises as the entries do."""
        logged = self._replica_range(key, seq)
        if logged.prefix is not None and logged.seq == seq:
            return logged.prefix
        return self._looked_up(lambda extent: self._reader(extent, logged).prefix_at(seq))

    def segment_before(self, key: RangeKey, seq: int) -> int:
        """Return the base of the last segment that begins before entry `seq` + 1 of a range.

        Raises LogError if the entries behind `seq` are not all here.
        """
        logged = self._replica_range(key, seq)
        extent = self.extent
        at = self._reader(extent, logged).segment_before(seq)
        return (*extent.sealed, extent.active.segment)[at].base

    def segment_view(self, base: int) -> SegmentView | None:
        """Return the segment at `base`, None if it was removed. Raises LogError."""
        extent = self.extent
        if base == extent.active.segment.base:
            return extent.active
        found = next((each for each in extent.sealed if each.base == base), None)
        return None if found is None else self.lookup.views.view(found)

    def _reader(self, extent: Extent, logged: LoggedRange) -> ReplicaReader:
        return ReplicaReader(self.lookup, self._replica_indexes, extent, logged)

    def _end_offset(self, key: RangeKey) -> int:
        """Return the end of a settled range. Batches behind it were truncated and do not count."""
        logged = self.maybe_range(key)
        is_settled = logged is not None and logged.prefix is not None and not logged.is_unsettled
        return logged.next_offset if logged is not None and is_settled else OFFSET_MAX

    def _replica_range(self, key: RangeKey, seq: int, *, is_mended: bool = False) -> LoggedRange:
        """Return a replicated range. Raises LogError unless its first `seq` entries are here.

        With `is_mended` damaged entries count, because they may have been mended.
        """
        logged = self.maybe_range(key)
        known_seq = -1 if logged is None else logged.highest_seq if is_mended else logged.seq
        if logged is None or logged.prefix is None or known_seq < seq:
            what = "is not here" if logged is None else "is not replicated"
            if logged is not None and logged.prefix is not None:
                what = f"has {logged.prefix.seq} entries without a gap, not {seq}"
            raise LogError(f"range {key[1]} of stream {key[0]} {what}")
        return logged

    def _looked_up(self, look: Callable[[Extent], _T]) -> _T:
        """Return the result of `look`, which is called again if a segment was removed or replaced.

        Raises LogError when the log is closed or cannot be read.
        """
        while True:
            self._check_readable()
            extent = self.extent
            try:
                return look(extent)
            except LogError:
                if not self._is_replaced(extent):
                    raise

    def _is_replaced(self, extent: Extent) -> bool:
        """Whether a look that failed in `extent` may succeed now.

        The cleaner replaces the extent when it removes or rewrites a segment. A reader of the old
        extent may then fail to open a file that is gone.
        """
        return self.state is not LogState.CLOSED and extent is not self.extent

    def _check_readable(self) -> None:
        if self.state is LogState.CLOSED:
            raise LogError("the log is closed")
