"""Writing a segment anew: the same positions, with the entries that are worth keeping."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from sbp_core.errors import LogError, LogWriteError
from sbp_core.limits import LOG_SCAN_BYTES
from sbp_core.log.disk import TEMPORARY_SUFFIX, Disk, DiskFile, translate_os_error
from sbp_core.log.entry import Commit, Entry, encode_entry
from sbp_core.log.range_states import LoggedRange, RangeStates, encode_snapshot
from sbp_core.log.segment import SegmentHeader, encode_segment_header, segment_path
from sbp_core.wire.checksum import Octets

TimedEntry = tuple[Entry, int]
"""An entry, and the time of its group in milliseconds since the epoch."""


def rewrite_segment(
    disk: Disk,
    directory: Path,
    header: SegmentHeader,
    ranges: Iterable[LoggedRange],
    entries: Iterable[TimedEntry],
    *,
    now_ms: int,
) -> None:
    """Put a segment with a snapshot of `ranges`, and `entries`, in place of the one at its base.

    Durable when this returns; after a crash in here either of the two is there, whole. Raises
    LogError if the entries take more room than there is before `header.end`.
    """
    path = segment_path(directory, header.base)
    fresh = path.with_name(f"{path.name}{TEMPORARY_SUFFIX}")
    with translate_os_error(LogWriteError, "writing", path):
        with suppress(FileNotFoundError):
            disk.remove(fresh)
        file = disk.create(fresh)
        try:
            writer = _Writer(file, header)
            for entry in encode_snapshot(RangeStates(ranges)):
                writer.add(entry, now_ms)
            for entry, time_ms in entries:
                writer.add(entry, time_ms)
            writer.flush()
            file.fsync()
        finally:
            file.close()
        disk.replace(fresh, path)
        disk.fsync_dir(directory)


class _Writer:
    """Appends entries to a new file, with a COMMIT wherever their time changes."""

    def __init__(self, file: DiskFile, header: SegmentHeader) -> None:
        self._file = file
        self._header = header
        self._buffers: list[Octets] = [encode_segment_header(header)]
        self._buffered_bytes = len(self._buffers[0])
        self._written_bytes = 0
        self._time_ms: int | None = None

    def add(self, entry: Entry, time_ms: int) -> None:
        if time_ms != self._time_ms:
            self._put(Commit(self._header.base, time_ms).to_entry())
            self._time_ms = time_ms
        self._put(entry)

    def flush(self) -> None:
        self._file.pwritev(self._buffers, self._written_bytes)
        self._written_bytes += self._buffered_bytes
        self._buffers, self._buffered_bytes = [], 0

    def _put(self, entry: Entry) -> None:
        position = self._header.base + self._written_bytes + self._buffered_bytes
        if self._header.end and position + entry.length > self._header.end:
            raise LogError(
                f"the entries of the segment at position {self._header.base} do not fit before"
                f" {self._header.end}"
            )
        self._buffers += encode_entry(entry, position)
        self._buffered_bytes += entry.length
        if self._buffered_bytes >= LOG_SCAN_BYTES:
            self.flush()
