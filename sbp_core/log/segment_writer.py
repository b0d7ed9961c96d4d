"""Writing a whole segment file: a header, then entries, in groups of one time each."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sbp_core.errors import LogError, LogWriteError
from sbp_core.limits import LOG_SCAN_BYTES
from sbp_core.log.disk import Disk, DiskFile, translate_os_error
from sbp_core.log.entry import Commit, Entry, Location, encode_entry
from sbp_core.log.segment_file import SegmentHeader, encode_segment_header
from sbp_core.log.segment_rows import SegmentRows
from sbp_core.wire.checksum import Octets

TimedEntry = tuple[Entry, int]
"""An entry, and the time of its group in milliseconds since the epoch."""


@dataclass(frozen=True, slots=True)
class Written:
    """The octets of a segment that was written, and its batches."""

    size: int
    rows: SegmentRows


def write_segment(
    disk: Disk, path: Path, header: SegmentHeader, entries: Iterable[TimedEntry]
) -> Written:
    """Write a segment to `path`, whose octets are durable then; its name is not yet.

    Raises LogError if the entries take more room than there is before `header.end`, LogWriteError
    when the disk fails, and what `entries` raises. Then there is no file at `path`.
    """
    try:
        with translate_os_error(LogWriteError, "writing", path):
            with suppress(FileNotFoundError):
                disk.remove(path)
            file = disk.create(path)
            try:
                writer = _Writer(file, header)
                for entry, time_ms in entries:
                    writer.add(entry, time_ms)
                return writer.finish()
            finally:
                file.close()
    except BaseException:
        with suppress(OSError):
            disk.remove(path)
        raise


class _Writer:
    """Appends entries in large pieces, with a COMMIT wherever their time changes."""

    def __init__(self, file: DiskFile, header: SegmentHeader) -> None:
        self._file = file
        self._header = header
        self._buffers: list[Octets] = [encode_segment_header(header)]
        self._buffered_bytes = len(self._buffers[0])
        self._written_bytes = 0
        self._time_ms: int | None = None
        self._rows = SegmentRows(header.base)

    def add(self, entry: Entry, time_ms: int) -> None:
        if time_ms != self._time_ms:
            self._put(Commit(self._position, time_ms).to_entry())
            self._time_ms = time_ms
        self._rows.take(entry, self._put(entry), time_ms)

    def finish(self) -> Written:
        self._flush()
        self._file.fsync()
        return Written(self._written_bytes, self._rows)

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
