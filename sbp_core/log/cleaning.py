"""Freeing the space of dead batches: those of deleted streams, trimmed ones, and dropped ones.

Small batches that stay are merged (merging.py).

Only full segments are cleaned, one at a time. The first segments of the log are removed once no
batch in them is live (liveness.py). A later segment with few live batches is rewritten without the
dead ones: it covers the same positions, with fewer entries. The new file begins with the snapshot
of the old one. The live batches follow in their order, each at a new position, and the ends of
transactions that published some. Everything else is history, which the snapshots of later segments
sum up.

A segment in which most batches are small neighbours is rewritten once to merge them, as soon as it
is full. A few are tried before: where none can be merged, as with columns, it stays. So does one
that has entries of replicated ranges: their history would be lost early.

No append or read waits for the cleaner. It runs on a thread of its own, and its result becomes
visible by one assignment between two groups. Batches that were live when it looked may be dead by
then, never the other way round. A reader of a segment that is removed or replaced goes on in the
old file.

A crash at any moment leaves the log as it was or as it was to become: segments are removed only
when a durable `start` lies behind them, and a rewritten one is durable before it takes the name. So
is its index, which has the ranges at its end as well as the snapshot behind it: should that be
damaged, the rewritten segment lacks the history to find them out.

To free space the log goes on in a new segment, which takes some itself. On a full disk that would
be impossible, so the log has a reserve (full_disk.py).
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
    """Batches that are part of others now."""

    def __add__(self, other: Cleaned) -> Cleaned:
        return Cleaned(
            self.removed_count + other.removed_count,
            self.rewritten_count + other.rewritten_count,
            self.freed_bytes + other.freed_bytes,
            self.merged_count + other.merged_count,
        )


class _Stopped(BaseException):
    """Ends the work on a segment. No mistake of a merge, which are caught."""


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
        """Let `clean` end soon, now and later: a segment that it is rewriting stays as it was."""
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
        """Return what merges these runs of a segment. Raises LogError."""
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
            kept = self._until_stopped(found.kept(view, has_unsettled=has_unsettled))
            merger = None
            if self._merge is not None:
                merger = self._merger(view, extent, at, found.runs(extent, at), self._merge)
                kept = merger.merged(kept)
            rewritten, rows = write_segment(log.disk, fresh, header, kept)
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
