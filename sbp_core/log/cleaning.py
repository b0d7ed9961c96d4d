"""Freeing the space of dead batches: those of deleted streams, trimmed ones, and dropped ones.

Small batches that stay are merged (merging.py).

Only full segments are cleaned, one at a time. The first segments of the log are removed once no
batch in them is live. A later segment with few live batches is rewritten without the dead ones: it
covers the same positions, with fewer entries. The new file begins with the snapshot of the old
one. The live batches follow in their order, each at a new position, and the ends of transactions
that published some. Everything else is history, which the snapshots of later segments sum up.

A batch is live if its stream was not deleted and it reaches beyond the start of its range. A staged
batch is live until its transaction ends; once published, it is live as its offsets are; a dropped
one is dead. Only the segments that published batches know that. So all of those
are read before any segment is removed.

A segment in which most batches are small neighbours is rewritten once to merge them, as soon as it
is full. Not one that has entries of replicated ranges: their history would be lost early.

All entries of a replicated range are live until it is settled, dropped and trimmed batches too:
another replica may need them. Snapshots say how many entries each range has, so it is known which
segments have any.

No append or read waits for the cleaner. It runs on a thread of its own, and its result becomes
visible by one assignment between two groups. Batches that were live when it looked may be dead by
then, never the other way round. A reader of a segment that is removed or replaced goes on in the
old file.

A crash at any moment leaves the log as it was or as it was to become: segments are removed only
when a durable `start` lies behind them, and a rewritten one is durable before it takes the name.

To free space the log goes on in a new segment, which takes some itself. On a full disk that would
be impossible, so the log has a reserve (space_reserve.py).
"""

from __future__ import annotations

import logging
import sys
import threading
from collections import deque
from collections.abc import Collection, Container, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from sbp_core.errors import LogCorruptionError, LogWriteError
from sbp_core.failpoints import failpoint
from sbp_core.limits import CLEAN_LIVE_SHARE_MAX, LOG_LEFT_BYTES_MIN
from sbp_core.log.batch_lookup import Extent
from sbp_core.log.boundaries import write_start
from sbp_core.log.disk import TEMPORARY_SUFFIX, translate_os_error
from sbp_core.log.durable_log import Log
from sbp_core.log.entry import SNAPSHOT_KINDS, Entry, Location
from sbp_core.log.index_file import SegmentIndex, SegmentUse, index_path
from sbp_core.log.merging import Merge, Merger, Runs, find_runs
from sbp_core.log.segment import Segment, SegmentView, corruption
from sbp_core.log.segment_scan import Damage, SegmentScanner
from sbp_core.log.segment_writer import TimedEntry, write_segment
from sbp_core.log.states.range_states import OFFSET_MAX, RangeKey, RangeState
from sbp_core.log.states.replicated_entries import is_numbered_in
from sbp_core.log.states.staged_entries import StagedRows, maybe_kept
from sbp_core.segment_format import EntryKind, SegmentHeader, segment_path

_LOG: Final = logging.getLogger(__name__)
_PAUSE_SECONDS: Final = 0.0001
"""Pause for appends, in a merge."""


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


@dataclass(frozen=True, slots=True)
class Cleaned:
    """The result of a round of cleaning."""

    removed_count: int = 0
    rewritten_count: int = 0
    freed_bytes: int = 0
    merged_count: int = 0
    """Batches that are part of others now."""

    def __add__(self, other: Cleaned) -> Cleaned:
        return Cleaned(
            self.removed_count + other.removed_count,
            self.rewritten_count + other.rewritten_count,
            self.freed_bytes + other.freed_bytes,
            self.merged_count + other.merged_count,
        )


class Cleaner:
    """Cleans one log. It belongs to one thread; `stop` may be called from any.

    With `merge` small batches are merged.
    """

    def __init__(self, log: Log, merge: Merge | None = None) -> None:
        self._log = log
        self._merge = merge
        self._unmerged: set[Segment] = set()
        """Full segments of which it is known that they are not worth a rewrite for merging."""
        self._liveness = LivenessSeeker(log)
        self._is_stopping = threading.Event()
        self._doomed: deque[Segment] = deque()
        self._reported: set[Segment] = set()

    def stop(self) -> None:
        """Let `clean` end before the next segment, now and later."""
        self._is_stopping.set()

    def weigh_active(self) -> SegmentUse:
        """Return what the segment holds that groups are appended to. Raises LogError."""
        return self._liveness.find().weigh_active()

    def clean(
        self, live_share_max: float = CLEAN_LIVE_SHARE_MAX, room_bytes: int = sys.maxsize
    ) -> Cleaned:
        """Free what can be freed. Raises LogError when the disk fails; try again then.

        A segment is rewritten if less of it is live than `live_share_max`, or to merge its batches,
        and if what is live takes at most `room_bytes`. One that is damaged stays as it is, and is
        logged once.
        """
        found = self._liveness.find()
        cleaned = self._remove_front(found)
        extent = first = self._log.extent
        held: set[int] = set()
        is_all_known = True
        for at, segment in enumerate(first.sealed):  # others may be appended, nothing else changes
            if self._is_stopping.is_set():
                return cleaned
            is_new = segment.base >= found.extent.active.segment.base
            weighed = None if is_new else self._maybe_weigh(found, extent, at)
            if weighed is None:
                is_all_known = False
                continue
            is_dead_enough = weighed.live_bytes < live_share_max * weighed.held_bytes
            left_bytes = room_bytes + cleaned.freed_bytes - LOG_LEFT_BYTES_MIN
            has_room = not weighed.live_bytes or weighed.live_bytes <= left_bytes
            if not has_room or not (is_dead_enough or self._is_mergeable(found, extent, at)):
                held |= weighed.stream_ids
                continue
            try:
                cleaned += self._rewrite(found, extent, at, has_unsettled=weighed.has_unsettled)
                held |= weighed.live_stream_ids
            except LogCorruptionError as error:
                self._report(extent.sealed[at], error)
                self._unmerged.add(extent.sealed[at])
                held |= weighed.stream_ids
            extent = self._log.extent
        if is_all_known:
            self._log.note_streams(first, held)
        return cleaned

    def _maybe_weigh(self, found: Liveness, extent: Extent, at: int) -> SegmentUse | None:
        """Return what a segment holds, None if damage hides it."""
        try:
            return found.weigh(extent, at)
        except LogCorruptionError as error:
            self._report(extent.sealed[at], error)
            return None

    def _is_mergeable(self, found: Liveness, extent: Extent, at: int) -> bool:
        """Whether a segment is to be rewritten for its small batches. Raises LogError."""
        segment = extent.sealed[at]
        if self._merge is None or segment.generation or segment in self._unmerged:
            return False
        is_worth_it = found.runs(extent, at).is_worth_it
        if not is_worth_it:
            self._unmerged &= set(extent.sealed)
            self._unmerged.add(segment)
        return is_worth_it

    def _remove_front(self, found: Liveness) -> Cleaned:
        """Remove the first segments, up to the first one with a live batch."""
        extent = found.extent
        dead: list[Segment] = []
        for at, segment in enumerate(extent.sealed):
            weighed = None if self._is_stopping.is_set() else self._maybe_weigh(found, extent, at)
            if weighed is None or weighed.live_bytes > 0 or weighed.has_unsettled:
                break
            dead.append(segment)
        if dead:  # durable before a file goes: a gap at or after `start` is taken for damage
            write_start(self._log.disk, self._log.directory, dead[-1].end)
            self._log.replace_sealed(dict.fromkeys(dead))
            self._doomed += dead
        return self._remove_doomed()

    def _remove_doomed(self) -> Cleaned:
        """Remove the files of segments that the log is without, now or in a round before."""
        disk, directory = self._log.disk, self._log.directory
        cleaned = Cleaned()
        while self._doomed:
            segment = self._doomed[0]
            for path in (
                segment_path(directory, segment.base),
                index_path(directory, segment.base),
            ):
                with (
                    translate_os_error(LogWriteError, "removing", path),
                    suppress(FileNotFoundError),
                ):
                    failpoint("cleaner.before_remove")
                    disk.remove(path)
            self._log.lookup.drop(segment)
            self._doomed.popleft()
            cleaned += Cleaned(removed_count=1, freed_bytes=segment.size)
        if cleaned.removed_count:
            self._sync_names()
        return cleaned

    def _rewrite(self, found: Liveness, extent: Extent, at: int, *, has_unsettled: bool) -> Cleaned:
        """Replace a segment by one without what is dead. Raises LogError."""
        log, segment = self._log, extent.sealed[at]
        path = segment_path(log.directory, segment.base)
        fresh = path.with_name(f"{path.name}{TEMPORARY_SUFFIX}")
        ranges = log.lookup.ranges_after(extent, at)
        with log.lookup.views.pinned(segment) as view:
            header = SegmentHeader(segment.base, segment.generation + 1, segment.end)
            kept, merger = found.kept(view, has_unsettled=has_unsettled), None
            if self._merge is not None:
                index = log.lookup.index(extent, at)
                pause = partial(self._is_stopping.wait, _PAUSE_SECONDS)
                merger = Merger(view, index, found.runs(extent, at), self._merge, pause)
                kept = merger.merged(kept)
            rewritten, rows = write_segment(log.disk, fresh, header, kept)
            with translate_os_error(LogWriteError, "replacing", path):
                failpoint("cleaner.before_replace")
                log.disk.replace(fresh, path)
            failpoint("cleaner.after_replace")
            log.lookup.write_index(rewritten, ranges, rows)
            log.replace_sealed({segment: rewritten})
        log.lookup.drop(segment)
        self._sync_names()
        return Cleaned(
            rewritten_count=1,
            freed_bytes=segment.size - rewritten.size,
            merged_count=0 if merger is None else merger.merged_count,
        )

    def _sync_names(self) -> None:
        with translate_os_error(LogWriteError, "syncing", self._log.directory):
            failpoint("cleaner.before_directory_sync")
            self._log.disk.fsync_dir(self._log.directory)

    def _report(self, segment: Segment, error: LogCorruptionError) -> None:
        if segment not in self._reported:
            self._reported.add(segment)
            _LOG.error("segment not cleaned: %s", error)
