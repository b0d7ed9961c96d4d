"""Liveness: which entries must stay when the full segments of a log are cleaned.

A batch is live if its stream was not deleted and it reaches beyond the start of its range. A staged
batch is live until its transaction ends. A published one is then live as its offsets are, a dropped
one is dead. Only the segment that published a batch knows its offsets, so the indexes of all such
segments are read before any segment is removed.

All entries of a replicated range are live until it is settled, including dropped and trimmed
batches, because another replica may need them. Indexes have the number of entries of each range, so
it is known which segments have any.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator
from dataclasses import dataclass, replace
from functools import partial

from sbp_core.errors import LogCorruptionError
from sbp_core.log.batch_lookup import Extent
from sbp_core.log.durable_log import Log
from sbp_core.log.entry import SNAPSHOT_KINDS, Entry, Location
from sbp_core.log.index_file import SegmentIndex, SegmentUse
from sbp_core.log.merging import Runs, find_runs
from sbp_core.log.segment import Segment, SegmentView, corruption
from sbp_core.log.segment_scan import Damage, SegmentScanner
from sbp_core.log.segment_writer import TimedEntry
from sbp_core.log.states.range_states import OFFSET_MAX, RangeKey, RangeState
from sbp_core.log.states.replicated_entries import is_numbered_in
from sbp_core.log.states.staged_entries import StagedRows, maybe_kept
from sbp_core.segment_format import EntryKind, segment_path


def live_from(log: Log, unsettled: Container[RangeKey], key: RangeKey) -> int:
    """Return the offset from which on the records of a range are live."""
    if key in unsettled:
        return -1
    logged = log.maybe_range(key)
    if logged is None or logged.state is RangeState.DELETED:
        return OFFSET_MAX
    is_all_trimmed = logged.state is RangeState.SEALED and logged.start_offset == logged.next_offset
    # A settled range may have batches behind its end, which die with the rest.
    return OFFSET_MAX if is_all_trimmed else logged.start_offset


@dataclass(frozen=True, slots=True)
class Liveness:
    """The live batches of the full segments at `extent`; some may have died since.

    A dead batch never becomes live. `staged` are the live batches that were staged, by the position
    of their first write. All staged batches count as live if damage hides that (`is_known` is
    False), and in a segment with entries of an `unsettled` range.
    """

    log: Log
    extent: Extent
    staged: StagedRows
    is_known: bool
    unsettled: frozenset[RangeKey] = frozenset()

    def live_from(self, key: RangeKey) -> int:
        """Return the offset from which on the records of a range are live."""
        return live_from(self.log, self.unsettled, key)

    def is_unsettled(self, entry: Entry) -> bool:
        """Whether other replicas may need an entry."""
        return is_numbered_in(entry, self.unsettled)

    def is_live(self, entry: Entry, location: Location) -> bool:
        """Whether an entry of a full segment must stay: a batch, or the end of transactions."""
        if self.is_unsettled(entry):
            return True
        if entry.kind is not EntryKind.STAGED:
            end_offset = entry.base_offset + entry.count
            return end_offset > self.live_from((entry.stream_id, entry.range_index))
        birth_position = location.position if entry.base_offset < 0 else entry.base_offset
        return not self.is_known or self.staged.holds(birth_position)

    def weigh(self, extent: Extent, at: int) -> SegmentUse:
        """Return the use of a full segment. Raises LogCorruptionError if damage hides it."""
        segment, index = extent.sealed[at], self.log.lookup.index(extent, at)
        if index.may_hide(self.live_from):
            path = segment_path(self.log.directory, segment.base)
            raise corruption(path, segment.base, "it may have published batches that are unknown")
        return self._weigh(segment, index, extent, at)

    def weigh_active(self) -> SegmentUse:
        """Return the use of the active segment."""
        segment, index = self.log.active_index()
        extent = self.log.extent
        return self._weigh(segment, index, extent, len(extent.sealed))

    def _weigh(self, segment: Segment, index: SegmentIndex, extent: Extent, at: int) -> SegmentUse:
        has_unsettled = self._has_entries_of(self.unsettled, index, extent, at)
        live_bytes = index.staged_bytes
        if self.is_known and not has_unsettled:
            live_bytes = self.staged.bytes_between(segment.base, segment.end)
        return replace(index.held(self.live_from, live_bytes), has_unsettled=has_unsettled)

    def _has_entries_of(
        self, keys: Collection[RangeKey], index: SegmentIndex, extent: Extent, at: int
    ) -> bool:
        """Whether any of these replicated ranges has numbered entries in a segment."""
        if not keys:
            return False
        before = self.log.lookup.index(extent, at - 1) if at else None
        return any(index.seq(key) > (0 if before is None else before.seq(key)) for key in keys)

    def runs(self, extent: Extent, at: int) -> Runs:
        """Return the small batches of a full segment that may be merged. Raises LogError.

        A segment is worth only one rewrite for merging.
        """
        index = self.log.lookup.index(extent, at)
        found = find_runs(index.listed(self.live_from))
        if not found.is_worth_it:
            return found
        replicated = index.replicated_ranges()
        has_history = self._has_entries_of(replicated, index, extent, at)
        return replace(found, is_worth_it=not extent.sealed[at].generation and not has_history)

    def kept(self, view: SegmentView, *, has_unsettled: bool) -> Iterator[TimedEntry]:
        """Yield the snapshot and the live entries of a segment, each with its time.

        Raises LogCorruptionError if damage hides a live batch, or may hide one.
        """
        own = replace(self, is_known=False) if has_unsettled else self
        scanner = SegmentScanner(view.file, view.segment.base, view.segment.size)
        for item in scanner.entries():
            found = item.maybe_batch() if isinstance(item, Damage) else item
            kept = None if found is None else own.maybe_live(*found)
            if isinstance(item, Damage):
                if found is None or kept is not None:
                    raise corruption(view.file.path, item.position, item.reason)
            elif kept is not None:
                yield kept, scanner.time_ms

    def maybe_live(self, entry: Entry, location: Location) -> Entry | None:
        """Return an entry as a rewrite of its segment writes it, None if it is dropped."""
        if entry.kind in SNAPSHOT_KINDS:
            return entry
        kept = maybe_kept(entry, location, is_unsettled=self.is_unsettled(entry))
        return kept if kept is not None and self.is_live(entry, location) else None


class LivenessSeeker:
    """Finds the live entries of one log, in round after round, on one thread."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._has_published: dict[Segment, bool] = {}
        """Whether a full segment published staged batches."""

    def find(self) -> Liveness:
        """Return the liveness of the whole log. Raises LogError when the disk fails.

        Undecided batches are read before published ones: the log adds rows before a batch stops
        being staged, so each batch is found in one of both. Batches that are staged from now on are
        not in the full segments of `extent`, which is read first.
        """
        log, extent = self._log, self._log.extent
        unsettled = log.unsettled()
        starts = partial(live_from, log, unsettled)
        found = [log.staged.rows()]
        is_known = True
        later = log.extent
        for at, segment in enumerate(later.sealed):
            if self._has_published.get(segment, True):
                try:
                    index = log.lookup.index(later, at)
                except LogCorruptionError:
                    is_known = False
                    continue
                is_known = is_known and not index.may_hide(starts)
                self._has_published[segment] = index.has_published or not index.is_whole
                if index.has_published:
                    found.append(index.published_rows(starts))
        found.append(later.rows.published_rows(starts))
        self._has_published = {
            segment: known
            for segment in later.sealed
            if (known := self._has_published.get(segment)) is not None
        }
        return Liveness(log, extent, StagedRows.together(found), is_known, unsettled)
