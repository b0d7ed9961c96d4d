"""Writing a segment anew without what is dead: the same positions, fewer entries.

The new file begins with the snapshot of the old one, then come the batches that live on, in their
order, each at a new position. All that else was in the segment is history, which the snapshots of
the later ones sum up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from sbp_core.log.damage import corruption
from sbp_core.log.disk import Disk
from sbp_core.log.entry import Entry, EntryKind
from sbp_core.log.rows import SegmentRows
from sbp_core.log.scan import Damage, SegmentScanner
from sbp_core.log.segment import Segment, SegmentHeader, SegmentView
from sbp_core.log.segment_writer import TimedEntry, write_segment


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A segment that was written anew, and its batches."""

    segment: Segment
    rows: SegmentRows


def rewrite_segment(
    disk: Disk, view: SegmentView, path: Path, is_live: Callable[[Entry], bool]
) -> Rewritten:
    """Write the segment of `view` to `path`, durably, with those batches only that are live.

    Raises LogCorruptionError if one of them, or how many there are, is lost; LogError and
    LogWriteError when the disk fails. Then there is no file at `path`.
    """
    old = view.segment
    header = SegmentHeader(old.base, old.generation + 1, old.end)
    written = write_segment(disk, path, header, _kept(view, is_live))
    segment = Segment(old.base, old.end, written.size, header.generation)
    return Rewritten(segment, written.rows)


def _kept(view: SegmentView, is_live: Callable[[Entry], bool]) -> Iterator[TimedEntry]:
    """Yield the snapshot and the live batches, each with its time. Raises LogError."""
    scanner = SegmentScanner(view.file, view.segment.base, view.segment.size)
    for item in scanner.entries():
        found = item.maybe_batch() if isinstance(item, Damage) else item
        is_kept = found is None or _is_kept(found[0], is_live)
        if isinstance(item, Damage):
            if is_kept:
                raise corruption(view.file.path, item.position, item.reason)
        elif is_kept:
            yield item[0], scanner.time_ms


def _is_kept(entry: Entry, is_live: Callable[[Entry], bool]) -> bool:
    if entry.kind is EntryKind.BATCH:
        return is_live(entry)
    return entry.kind in (EntryKind.SNAPSHOT, EntryKind.SNAPSHOT_WRITERS)
