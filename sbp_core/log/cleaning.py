"""The cleaner: free the space of dead batches, and merge small ones (merging.py).

Batches are dead if their stream was deleted, they were trimmed, or their transaction was dropped
(liveness.py). Only full segments are cleaned, one at a time. The first segments of the log are
removed when no batch in them is live. A later segment with few live batches is rewritten: the new
file covers the same positions with fewer entries. The new file begins with the snapshot of the old
file. The live batches follow in their order, each at a new position, with the ends of transactions
that published some. Other entries are history, which the snapshots of later segments sum up.

A segment in which most batches are small neighbours is rewritten once to merge them. A few are
tried first: where none can be merged, as with columns, the segment stays. A segment with entries of
replicated ranges stays as well, because their history would be lost early.

No append or read waits for the cleaner, which has a thread of its own: the result becomes visible
by one assignment between two groups. A batch may die while the cleaner works, but a dead batch
never becomes live. A reader of a segment that is removed or replaced goes on in the old file.

A crash leaves the log as it was before or after a step: segments are removed only when a durable
`start` lies behind them, and a rewritten segment and its index are durable before the segment takes
its name. The index has the ranges at the end of the segment. These ranges could not be found in
another way if the snapshot of the next segment is damaged, because a rewritten segment lacks their
history.

To free space the log must begin a new segment, which takes space itself. The log has a reserve for
that (full_disk.py).
"""

from __future__ import annotations

import logging
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from sbp_core.errors import LogCorruptionError, LogWriteError
from sbp_core.failpoints import failpoint
from sbp_core.limits import CLEAN_LIVE_SHARE_MAX, LOG_LEFT_BYTES_MIN
from sbp_core.log.batch_lookup import Extent
from sbp_core.log.boundaries import write_start
from sbp_core.log.disk import TEMPORARY_SUFFIX, translate_os_error
from sbp_core.log.durable_log import Log
from sbp_core.log.index_file import SegmentUse, index_path
from sbp_core.log.liveness import Liveness, LivenessSeeker
from sbp_core.log.merging import Merge, Merger, Runs
from sbp_core.log.segment import Segment, SegmentView
from sbp_core.log.segment_writer import TimedEntry, write_segment
from sbp_core.segment_format import SegmentHeader, segment_path

_LOG: Final = logging.getLogger(__name__)
_PAUSE_SECONDS: Final = 0.0001
"""Pause for appends, in a merge."""


@dataclass(frozen=True, slots=True)
class Cleaned:
    """The result of a round of cleaning."""

    removed_count: int = 0
    rewritten_count: int = 0
    freed_bytes: int = 0
    merged_count: int = 0
    """Batches that became parts of larger ones."""

    def __add__(self, other: Cleaned) -> Cleaned:
        return Cleaned(
            self.removed_count + other.removed_count,
            self.rewritten_count + other.rewritten_count,
            self.freed_bytes + other.freed_bytes,
            self.merged_count + other.merged_count,
        )


class _Stopped(BaseException):
    """Ends the work on a segment. A BaseException, because errors of a merge are caught."""


class Cleaner:
    """Cleans one log, on one thread; `stop` may be called from any thread.

    Small batches are merged if `merge` is given.
    """

    def __init__(self, log: Log, merge: Merge | None = None) -> None:
        self._log = log
        self._merge = merge
        self._unmerged: set[Segment] = set()
        """Full segments that are known not to be worth a rewrite for merging."""
        self._liveness = LivenessSeeker(log)
        self._is_stopping = threading.Event()
        self._doomed: deque[Segment] = deque()
        self._reported: set[Segment] = set()

    def stop(self) -> None:
        """Let `clean` end soon, now and later. An unfinished rewrite is given up."""
        self._is_stopping.set()

    def weigh_active(self) -> SegmentUse:
        """Return the use of the active segment. Raises LogError."""
        return self._liveness.find().weigh_active()

    def clean(
        self, live_share_max: float = CLEAN_LIVE_SHARE_MAX, room_bytes: int = sys.maxsize
    ) -> Cleaned:
        """Free what can be freed. Raises LogError when the disk fails; call again then.

        A segment is rewritten if its live share is below `live_share_max`, or to merge its batches,
        provided that its live bytes fit `room_bytes`. A damaged segment stays, and is logged once.
        """
        found = self._liveness.find()
        cleaned = self._remove_front(found)
        # Look again after `_remove_front`. Segments that became full since then are left for later.
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
            try:
                if not has_room or not (is_dead_enough or self._is_mergeable(found, extent, at)):
                    held |= weighed.stream_ids
                    continue
                cleaned += self._rewrite(found, extent, at, has_unsettled=weighed.has_unsettled)
                held |= weighed.live_stream_ids
            except LogCorruptionError as error:
                self._report(extent.sealed[at], error)
                self._unmerged.add(extent.sealed[at])
                held |= weighed.stream_ids
            except _Stopped:
                return cleaned
            extent = self._log.extent
        if is_all_known:
            self._log.note_streams(first, held)
        return cleaned

    def _maybe_weigh(self, found: Liveness, extent: Extent, at: int) -> SegmentUse | None:
        """Return the use of a segment, None if damage hides it."""
        try:
            return found.weigh(extent, at)
        except LogCorruptionError as error:
            self._report(extent.sealed[at], error)
            return None

    def _is_mergeable(self, found: Liveness, extent: Extent, at: int) -> bool:
        """Whether a segment is worth a rewrite for its small batches. Raises LogError."""
        segment = extent.sealed[at]
        if self._merge is None or segment.generation or segment in self._unmerged:
            return False
        runs = found.runs(extent, at)
        if runs.is_worth_it:
            with self._log.lookup.views.pinned(segment) as view:
                if self._merger(view, extent, at, runs, self._merge).joins_any():
                    return True
        self._unmerged &= set(extent.sealed)
        self._unmerged.add(segment)
        return False

    def _merger(
        self, view: SegmentView, extent: Extent, at: int, runs: Runs, merge: Merge
    ) -> Merger:
        """Return a merger for runs of a segment. Raises LogError."""
        return Merger(view, self._log.lookup.index(extent, at), runs, merge, self._pause)

    def _pause(self) -> None:
        if self._is_stopping.wait(_PAUSE_SECONDS):
            raise _Stopped

    def _until_stopped(self, kept: Iterator[TimedEntry]) -> Iterator[TimedEntry]:
        for each in kept:
            if self._is_stopping.is_set():
                raise _Stopped
            yield each

    def _remove_front(self, found: Liveness) -> Cleaned:
        """Remove the first segments, up to the first segment with a live batch."""
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
        """Remove the files of segments that left the log, now or in an earlier round."""
        disk, directory = self._log.disk, self._log.directory
        cleaned = Cleaned()
        while self._doomed:
            segment = self._doomed[0]  # it stays in the queue if the disk fails
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
        """Replace a segment by one without dead entries. Raises LogError."""
        log, segment = self._log, extent.sealed[at]
        path = segment_path(log.directory, segment.base)
        fresh = path.with_name(f"{path.name}{TEMPORARY_SUFFIX}")
        ranges = log.lookup.ranges_after(extent, at)
        with log.lookup.views.pinned(segment) as view:
            header = SegmentHeader(segment.base, segment.generation + 1, segment.end)
            kept = self._until_stopped(found.kept(view, has_unsettled=has_unsettled))
            merger = None
            if self._merge is not None:
                merger = self._merger(view, extent, at, found.runs(extent, at), self._merge)
                kept = merger.merged(kept)
            rewritten, rows = write_segment(log.disk, fresh, header, kept)
            # Before the rename: afterwards nothing but the index has the ranges at the end, unless
            # the snapshot behind the segment is intact.
            log.lookup.write_index(rewritten, ranges, rows)
            with translate_os_error(LogWriteError, "replacing", path):
                failpoint("cleaner.before_replace")
                log.disk.replace(fresh, path)
            failpoint("cleaner.after_replace")
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
