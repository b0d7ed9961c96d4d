"""Making a damaged log usable: all that is intact stays, what is lost stays lost, and known.

A damaged segment is rewritten with its intact batches. Writers of whom damage may hide a batch
are forgotten: what they append next is refused, unless it is their first batch. The file that it
was keeps its bytes under another name, `<segment>.log.damaged-N`. Offsets that are lost are not
given away again where anything behind them is known: a reader is told that they are lost, and
the rest is served.

Each step leaves a log that can be inspected and repaired again, so a crash in between does no harm.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, count
from pathlib import Path

from sbp_core.errors import LogError, LogWriteError
from sbp_core.log.boundaries import START_NAME, write_start
from sbp_core.log.disk import Disk, translate_os_error
from sbp_core.log.index_file import index_path
from sbp_core.log.recovery.inspection import LogInspection
from sbp_core.log.segment import Segment, open_segment
from sbp_core.log.segment_scan import Damage, SegmentScanner
from sbp_core.log.segment_writer import TimedEntry, replace_segment
from sbp_core.log.states.range_states import RangeStates
from sbp_core.log.states.staged_entries import maybe_kept
from sbp_core.log.states.state_snapshot import encode_snapshot
from sbp_core.segment_format import SegmentHeader, segment_path


def repair_log(disk: Disk, directory: Path, found: LogInspection, now_ms: int) -> tuple[Path, ...]:
    """Repair what `found` says; return the files that were kept as they were.

    No process may have the log open. `now_ms` is the wall clock. A log without faults is not
    touched. Raises LogError when nothing is left to go on with, or the disk fails.
    """
    if not found.faults:
        return ()
    if not found.segment_count:
        raise LogError(f"no segment is left in {directory}: restore the log from a backup")
    repair = _Repair(disk, directory, now_ms)
    repair.run(found)
    return tuple(repair.kept)


class _Repair:
    def __init__(self, disk: Disk, directory: Path, now_ms: int) -> None:
        self.kept: list[Path] = []
        self._disk = disk
        self._directory = directory
        self._now_ms = now_ms

    def run(self, found: LogInspection) -> None:
        remedy = found.remedy
        if remedy.start is not None:
            self._keep(self._directory / START_NAME)
            write_start(self._disk, self._directory, remedy.start)
        if remedy.end is not None:  # before the segment in front of it, which may be the last one
            self._set_aside(remedy.end)
            segment = Segment(remedy.end, remedy.end, 0)
            states = RangeStates(found.ranges, found.writers, found.staged)
            self._rewrite(SegmentHeader(remedy.end), segment, states)
        for damaged in remedy.damaged:
            self._set_aside(damaged.segment.base)
            segment = damaged.segment
            header = SegmentHeader(segment.base, segment.generation + 1, segment.end)
            # The last segment's snapshot counts for writers and staged batches.
            self._rewrite(header, segment, RangeStates(damaged.ranges))
        for path in remedy.useless_indexes:
            self._remove(path)

    def _rewrite(self, header: SegmentHeader, damaged: Segment, states: RangeStates) -> None:
        """Put a snapshot of `states` and what is intact in place of a damaged segment, durably."""
        begin = [(entry, self._now_ms) for entry in encode_snapshot(states)]
        entries = chain(begin, self._intact(damaged))
        replace_segment(self._disk, self._directory, header, entries)

    def _intact(self, segment: Segment) -> Iterator[TimedEntry]:
        """Yield what is intact of a segment: batches, and ends of transactions."""
        if not segment.size:
            return
        with open_segment(self._disk, self._directory, segment.base) as file:
            scanner = SegmentScanner(file, segment.base, segment.size)
            for item in scanner.entries():
                kept = None if isinstance(item, Damage) else maybe_kept(*item)
                if kept is not None:
                    yield kept, scanner.time_ms

    def _set_aside(self, base: int) -> None:
        """Keep a segment's file under another name as well, and drop its index."""
        self._keep(segment_path(self._directory, base))
        self._remove(index_path(self._directory, base))

    def _keep(self, path: Path) -> None:
        with translate_os_error(LogWriteError, "keeping a copy of", path):
            names = set(self._disk.list_names(path.parent))
            if path.name not in names:
                return
            copy = next(
                copy
                for number in count(1)
                if (copy := path.with_name(f"{path.name}.damaged-{number}")).name not in names
            )
            self._disk.link(path, copy)
            self._disk.fsync_dir(path.parent)
        self.kept.append(copy)

    def _remove(self, path: Path) -> None:
        with translate_os_error(LogWriteError, "removing", path):
            if path.name in self._disk.list_names(path.parent):
                self._disk.remove(path)
