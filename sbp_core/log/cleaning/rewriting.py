"""Writing a segment anew without what is dead: the same positions, fewer entries.

The new file begins with the snapshot of the old one, then come the batches that live on, in their
order, each at a new position, and the ends of transactions that published some. All that else was
in the segment is history, which the snapshots of the later ones sum up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from sbp_core.log.damage import corruption
from sbp_core.log.disk import Disk
from sbp_core.log.entry import SNAPSHOT_KINDS, Entry, Location
from sbp_core.log.segment import Segment, SegmentView
from sbp_core.log.segment_file import SegmentHeader
from sbp_core.log.segment_rows import SegmentRows
from sbp_core.log.segment_scan import Damage, SegmentScanner
from sbp_core.log.segment_writer import TimedEntry, write_segment
from sbp_core.log.states.staged_entries import maybe_kept


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A segment that was written anew, and its batches."""

    segment: Segment
    rows: SegmentRows


def rewrite_segment(
    disk: Disk, view: SegmentView, path: Path, is_live: Callable[[Entry, Location], bool]
) -> Rewritten:
    """Write the segment of `view` to `path`, durably, with what is live only.

    Raises LogCorruptionError if one of them, or how many there are, is lost; LogError and
    LogWriteError when the disk fails. Then there is no file at `path`.
    """
    old = view.segment
    header = SegmentHeader(old.base, old.generation + 1, old.end)
    written = write_segment(disk, path, header, _kept(view, is_live))
    segment = Segment(old.base, old.end, written.size, header.generation)
    return Rewritten(segment, written.rows)


def _kept(view: SegmentView, is_live: Callable[[Entry, Location], bool]) -> Iterator[TimedEntry]:
    """Yield the snapshot and what is live, each with its time. Raises LogError."""
    scanner = SegmentScanner(view.file, view.segment.base, view.segment.size)
    for item in scanner.entries():
        found = item.maybe_batch() if isinstance(item, Damage) else item
        kept = None if found is None else _maybe_kept(*found, is_live)
        if isinstance(item, Damage):
            if found is None or kept is not None:
                raise corruption(view.file.path, item.position, item.reason)
        elif kept is not None:
            yield kept, scanner.time_ms


def _maybe_kept(
    entry: Entry, location: Location, is_live: Callable[[Entry, Location], bool]
) -> Entry | None:
    if entry.kind in SNAPSHOT_KINDS:
        return entry
    kept = maybe_kept(entry, location)
    return kept if kept is not None and is_live(entry, location) else None
