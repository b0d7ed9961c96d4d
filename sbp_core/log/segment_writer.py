"""Write segments: append groups to the active segment, or write a whole segment.

A group is a COMMIT entry and its entries, in one write. The COMMIT entry says how far the log was
synced before, so each group proves the sync of the group before it (see recovery/opening.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from sbp_core.errors import LogError, LogWriteError
from sbp_core.failpoints import failpoint
from sbp_core.limits import LOG_SCAN_BYTES
from sbp_core.log.disk import TEMPORARY_SUFFIX, Disk, DiskFile, translate_os_error
from sbp_core.log.entry import COMMIT_BYTES, SNAPSHOT_KINDS, Commit, Entry, Location, encode_entry
from sbp_core.log.segment import Segment, SegmentView, create_segment
from sbp_core.log.segment_rows import SegmentRows
from sbp_core.record_sizes import LARGEST
from sbp_core.segment_format import (
    SEGMENT_HEADER_BYTES,
    EntryKind,
    SegmentHeader,
    encode_segment_header,
    segment_path,
)
from sbp_core.wire.checksum import Buffer

_OWN_KINDS: Final = (EntryKind.COMMIT, *SNAPSHOT_KINDS)


class ActiveSegment:
    """The segment that groups are appended to: positions [base, end), synced up to `synced_upto`.

    The bytes on the disk prove the sync up to `proven_upto`. After an OSError the contents of the
    file are unknown, and nothing more may be written.
    """

    def __init__(self, file: DiskFile, base: int, *, end: int, proven_upto: int) -> None:
        self.base = base
        self.end = end
        self.synced_upto = end
        self._proven_upto = proven_upto
        self._file = file

    @classmethod
    def create(cls, disk: Disk, directory: Path, base: int) -> Self:
        """Create the segment at `base` without a group, durably. Raises OSError."""
        file = create_segment(disk, directory, base)
        return cls(file, base, end=base + SEGMENT_HEADER_BYTES, proven_upto=base)

    @classmethod
    def open(cls, disk: Disk, directory: Path, base: int, *, end: int, proven_upto: int) -> Self:
        """Open the segment at `base`, which recovery has synced. Raises OSError."""
        file = disk.open(segment_path(directory, base), is_writable=True)
        return cls(file, base, end=end, proven_upto=proven_upto)

    @property
    def path(self) -> Path:
        """Path of the file."""
        return self._file.path

    @property
    def size(self) -> int:
        """Length in bytes."""
        return self.end - self.base

    @property
    def is_proven(self) -> bool:
        """Whether only an empty group follows the part whose sync is proven."""
        return self._proven_upto >= self.end - COMMIT_BYTES

    def write(self, entries: Sequence[Entry], time_ms: int) -> tuple[Location, ...]:
        """Append a group; return the locations of its entries. Raises OSError."""
        start = self.end
        commit = Commit(self.synced_upto, time_ms)
        buffers: list[Buffer] = encode_entry(commit.to_entry(), start)
        locations = []
        end = start + COMMIT_BYTES
        for entry in entries:
            buffers += encode_entry(entry, end)
            locations.append(Location(end, entry.length))
            end += entry.length
        failpoint("log.before_write")
        self._file.pwritev(buffers, start - self.base)
        self._proven_upto = commit.durable_upto
        self.end = end
        return tuple(locations)

    def sync(self) -> None:
        """Make all groups durable that were written so far. Raises OSError.

        Another thread may `write` at the same time.
        """
        end = self.end  # read first: a group that is written during the sync may miss it
        if self.synced_upto < end:
            failpoint("log.before_sync")
            self._file.fdatasync()
            failpoint("log.after_sync")
            self.synced_upto = end

    def view(self, disk: Disk) -> SegmentView:
        """Open the segment for reading. Raises OSError."""
        file = disk.open(self.path, is_writable=False)
        return SegmentView(Segment(self.base, self.base, 0), file)

    def to_full(self) -> Segment:
        """Return the segment as it is when nothing more is written to it."""
        return Segment(self.base, self.end, self.size)

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._file.close()


def check_group(entries: Sequence[Entry]) -> int:
    """Return the length of a group in bytes. Raises LogError if it is over a limit."""
    total = 0
    for entry in entries:
        assert entry.kind not in _OWN_KINDS, "only the log writes these kinds"
        if entry.length > LARGEST.frame_bytes:
            raise LogError(
                f"an entry of {entry.length} bytes is over the limit of {LARGEST.frame_bytes}"
            )
        total += entry.length
    if total > LARGEST.group_commit_bytes:
        raise LogError(
            f"a group of {total} bytes is over the limit of {LARGEST.group_commit_bytes}: split it"
        )
    return COMMIT_BYTES + total


TimedEntry = tuple[Entry, int]
"""An entry, and the time of its group in milliseconds since the epoch."""


def write_segment(
    disk: Disk, path: Path, header: SegmentHeader, entries: Iterable[TimedEntry]
) -> tuple[Segment, SegmentRows]:
    """Write a segment to `path`; return it, and the rows of its batches.

    The bytes are durable afterwards, the name is not. Raises LogError if the entries do not fit
    before `header.end`, LogWriteError when the disk fails, and errors of `entries`. After an error
    there is no file at `path`.
    """
    try:
        with translate_os_error(LogWriteError, "writing", path):
            with suppress(FileNotFoundError):  # a crash may have left an unfinished file
                disk.remove(path)
            file = disk.create(path)
            try:
                writer = _WholeSegmentWriter(file, header)
                for entry, time_ms in entries:
                    writer.add(entry, time_ms)
                return writer.finish()
            finally:
                file.close()
    except BaseException:
        with suppress(OSError):
            disk.remove(path)
        raise


def replace_segment(
    disk: Disk, directory: Path, header: SegmentHeader, entries: Iterable[TimedEntry]
) -> None:
    """Write a segment durably, in place of the file that may have its name. Raises LogError.

    A crash leaves the old file or the new file, whole.
    """
    path = segment_path(directory, header.base)
    fresh = path.with_name(f"{path.name}{TEMPORARY_SUFFIX}")
    write_segment(disk, fresh, header, entries)
    with translate_os_error(LogWriteError, "replacing", path):
        disk.replace(fresh, path)
        disk.fsync_dir(directory)


class _WholeSegmentWriter:
    """Appends entries in large pieces, with a COMMIT wherever their time changes."""

    def __init__(self, file: DiskFile, header: SegmentHeader) -> None:
        self._file = file
        self._header = header
        self._buffers: list[Buffer] = [encode_segment_header(header)]
        self._buffered_bytes = len(self._buffers[0])
        self._written_bytes = 0
        self._time_ms: int | None = None
        self._rows = SegmentRows(header.base)

    def add(self, entry: Entry, time_ms: int) -> None:
        if time_ms != self._time_ms:  # an entry has the time of the COMMIT entry before it
            self._put(Commit(self._position, time_ms).to_entry())
            self._time_ms = time_ms
        self._rows.add(entry, self._put(entry), time_ms)

    def finish(self) -> tuple[Segment, SegmentRows]:
        self._flush()
        self._file.fsync()
        header, size = self._header, self._written_bytes
        segment = Segment(header.base, header.end or header.base + size, size, header.generation)
        return segment, self._rows

    @property
    def _position(self) -> int:
        return self._header.base + self._written_bytes + self._buffered_bytes

    def _put(self, entry: Entry) -> Location:
        location = Location(self._position, entry.length)
        if self._header.end and location.end > self._header.end:
            raise LogError(
                f"the entries of the segment at position {self._header.base} do not fit before"
                f" {self._header.end}"
            )
        self._buffers += encode_entry(entry, location.position)
        self._buffered_bytes += entry.length
        if self._buffered_bytes >= LOG_SCAN_BYTES:
            self._flush()
        return location

    def _flush(self) -> None:
        self._file.pwritev(self._buffers, self._written_bytes)
        self._written_bytes += self._buffered_bytes
        self._buffers, self._buffered_bytes = [], 0
