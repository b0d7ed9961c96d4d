"""Writing a segment anew without what is dead: the same positions, fewer entries.

The new file begins with the snapshot of the old one, then come the batches that live on, in their
order, each at a new position. All that else was in the segment is history, which the snapshots of
the later ones sum up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sbp_core.errors import LogWriteError
from sbp_core.limits import LOG_SCAN_BYTES
from sbp_core.log.damage import corruption
from sbp_core.log.disk import Disk, DiskFile, translate_os_error
from sbp_core.log.entry import Commit, Entry, EntryKind, Location, encode_entry
from sbp_core.log.rows import SegmentRows
from sbp_core.log.scan import Damage, SegmentScanner
from sbp_core.log.segment import Segment, SegmentHeader, SegmentView, encode_segment_header


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
    try:
        with translate_os_error(LogWriteError, "writing", path):
            with suppress(FileNotFoundError):
                disk.remove(path)
            file = disk.create(path)
            try:
                return _write(file, view, is_live)
            finally:
                file.close()
    except BaseException:
        with suppress(OSError):
            disk.remove(path)
        raise


def _write(file: DiskFile, view: SegmentView, is_live: Callable[[Entry], bool]) -> Rewritten:
    old = view.segment
    generation = old.generation + 1
    writer = _Writer(file, old.base)
    writer.write(encode_segment_header(SegmentHeader(old.base, generation, old.end)))
    rows = SegmentRows()
    group_time_ms = None
    for entry, time_ms in _kept(view, is_live):
        if time_ms != group_time_ms:
            writer.write_entry(Commit(writer.position, time_ms).to_entry())
            group_time_ms = time_ms
        location = writer.write_entry(entry)
        if entry.kind is EntryKind.BATCH:
            rows.append(entry, location, time_ms)
    writer.flush()
    file.fsync()
    return Rewritten(Segment(old.base, old.end, writer.position - old.base, generation), rows)


def _kept(view: SegmentView, is_live: Callable[[Entry], bool]) -> Iterator[tuple[Entry, int]]:
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
    return entry.kind is EntryKind.SNAPSHOT


class _Writer:
    """Writes a file from its start in large pieces; `position` is that in the log."""

    def __init__(self, file: DiskFile, base: int) -> None:
        self.position = base
        self._file = file
        self._written = 0
        self._pending = bytearray()

    def write(self, octets: bytes) -> None:
        self._pending += octets
        self.position += len(octets)
        if len(self._pending) >= LOG_SCAN_BYTES:
            self.flush()

    def write_entry(self, entry: Entry) -> Location:
        location = Location(self.position, entry.length)
        self.write(b"".join(encode_entry(entry, location.position)))
        return location

    def flush(self) -> None:
        self._file.pwritev([self._pending], self._written)
        self._written += len(self._pending)
        self._pending = bytearray()
