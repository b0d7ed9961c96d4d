"""Liveness: which entries of the full segments of a log have to stay when these are cleaned.

A batch is live if its stream was not deleted and it reaches beyond the start of its range. A staged
batch is live until its transaction ends; once published, it is live as its offsets are; a dropped
one is dead. Only the segments that published batches know that. So all of those
are read before any segment is removed.

All entries of a replicated range are live until it is settled, dropped and trimmed batches too:
another replica may need them. Snapshots say how many entries each range has, so it is known which
segments have any.
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
    return OFFSET_MAX if is_all_trimmed else logged.start_offset  # batches behind it were cut


@dataclass(frozen=True, slots=True)
class Liveness:
    """The live batches of a log's full segments at `extent`; some may have died since.

    Never the other way round, though more may be published since. `staged` are the batches that
    were staged and are live, by where they were written first. Where that is not known because of
    damage, all of them count as live; and where a segment has entries of an `unsettled` range.
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
        """Whether an entry of a full segment has to stay: a batch, or the end of transactions."""
        if self.is_unsettled(entry):
            return True
        if entry.kind is not EntryKind.STAGED:
            end_offset = entry.base_offset + entry.count
            return end_offset > self.live_from((entry.stream_id, entry.range_index))
        birth_position = location.position if entry.base_offset < 0 else entry.base_offset
        return not self.is_known or self.staged.holds(birth_position)

    def weigh(self, extent: Extent, at: int) -> SegmentUse:
        """Return what a full segment holds. Raises LogCorruptionError if damage hides it."""
        segment, index = extent.sealed[at], self.log.lookup.index(extent, at)
        if index.may_hide(self.live_from):
            path = segment_path(self.log.directory, segment.base)
            raise corruption(path, segment.base, "it is not known which batches it published")
        return self._weigh(segment, index, extent, at)

    def weigh_active(self) -> SegmentUse:
        """Return what the segment holds that groups are appended to."""
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

        It is not worth a rewrite a second time: what could be merged was.
        """
        index = self.log.lookup.index(extent, at)
        found = find_runs(index.listed(self.live_from))
        if not found.is_worth_it:
            return found
        replicated = index.replicated_ranges()
        has_history = self._has_entries_of(replicated, index, extent, at)
        return replace(found, is_worth_it=not extent.sealed[at].generation and not has_history)

    def kept(self, view: SegmentView, *, has_unsettled: bool) -> Iterator[TimedEntry]:
        """Yield the snapshot of a segment and what is live in it, each with its time.

        Raises LogCorruptionError if a live batch, or how many there are, is lost.
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
        """Return what is written of an entry when its segment is rewritten, None for nothing."""
        if entry.kind in SNAPSHOT_KINDS:
            return entry
        kept = maybe_kept(entry, location, is_unsettled=self.is_unsettled(entry))
        return kept if kept is not None and self.is_live(entry, location) else None


class LivenessSeeker:
    """Finds out what is live in one log, again and again. It belongs to one thread."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._has_published: dict[Segment, bool] = {}
        """Whether a full segment published staged batches."""

    def find(self) -> Liveness:
        """Look at the whole log. Raises LogError when the disk fails.

        Undecided batches are read before published ones: rows are added before a batch
        stops being staged, so it is found in one place or the other. Batches that are staged from
        now on are not in the full segments of the extent that was read before.
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
