r"""One file of the log: `<position of its first octet, 20 digits>.log`, a header, then entries.

Positions run on over all segments: the octet at `offset` of a file has position base + offset,
headers included, so each file starts where the one before it ends. A compacted segment is a
rewrite of the same positions [base, end) with fewer entries, each at a new position; its file is
shorter than what it stands for.

Header (big-endian; the first 24 octets are those of every version):

    octets  field       type  meaning
    0-7     magic             "SBPLOG\r\n"
    8-11    version     u32   2
    12-19   base        u64   position of this header, equal to the file's name
    20-23   crc         u32   CRC-32C of the 20 octets before
    24-27   generation  u32   how often the segment was rewritten
    28-35   end         u64   position after the segment, 0 while the file's length tells it
    36-39   crc         u32   CRC-32C of the 36 octets before

The first group of every segment is a SNAPSHOT of all ranges as they were at its base, so that no
other segment is needed to make sense of it.
"""

from __future__ import annotations

import re
import struct
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sbp_core.errors import LogCorruptionError, LogError
from sbp_core.failpoints import failpoint
from sbp_core.limits import SEGMENT_FILES_OPEN_MAX
from sbp_core.log.damage import corruption, naming_damage
from sbp_core.log.disk import Disk, DiskFile, translate_os_error
from sbp_core.wire.checksum import Octets, crc32c

SEGMENT_MAGIC: Final = b"SBPLOG\r\n"
SEGMENT_VERSION: Final = 2

_COMMON: Final = struct.Struct(">8sIQ")
_OWN: Final = struct.Struct(">IQ")
_CRC: Final = struct.Struct(">I")
_COMMON_END: Final = _COMMON.size + _CRC.size
_OWN_END: Final = _COMMON_END + _OWN.size
_NAME: Final = re.compile(r"([0-9]{20})\.log", re.ASCII)

SEGMENT_HEADER_BYTES: Final = _OWN_END + _CRC.size


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """What a segment says of itself; `end` is 0 where the file's length tells it."""

    base: int
    generation: int = 0
    end: int = 0


@dataclass(frozen=True, slots=True)
class Segment:
    """One file of the log: it stands for the positions [base, end), in `size` octets."""

    base: int
    end: int
    size: int
    generation: int = 0


def segment_path(directory: Path, base: int) -> Path:
    """Return the path of the segment that starts at position `base`."""
    return directory / f"{base:020d}.log"


def maybe_segment_base(name: str) -> int | None:
    """Return the base position that a file's name stands for, None if it is no segment."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


def encode_segment_header(header: SegmentHeader) -> bytes:
    """Return the first octets of a segment."""
    data = _COMMON.pack(SEGMENT_MAGIC, SEGMENT_VERSION, header.base)
    data += _CRC.pack(crc32c((data,)))
    data += _OWN.pack(header.generation, header.end)
    return data + _CRC.pack(crc32c((data,)))


def decode_segment_header(data: Octets, base: int) -> SegmentHeader:
    """Return the header of the segment named after `base`.

    Raises LogCorruptionError for a damaged header, and LogError for an intact one of another
    version or another place.
    """
    if len(data) < _COMMON_END:
        raise _cut_off(data)
    magic, version, stored_base = _COMMON.unpack_from(data)
    if magic != SEGMENT_MAGIC or not _is_intact(data, _COMMON.size):
        raise LogCorruptionError("the segment header is damaged, or the file is no segment")
    if version != SEGMENT_VERSION:
        raise LogError(
            f"the segment at position {base} has format version {version}, this version reads"
            f" {SEGMENT_VERSION}: use the version that wrote it"
        )
    if stored_base != base:
        raise LogError(
            f"the segment named after position {base} belongs to {stored_base}: the file was"
            f" renamed; give it its name back"
        )
    if len(data) < SEGMENT_HEADER_BYTES:
        raise _cut_off(data)
    if not _is_intact(data, _OWN_END):
        raise LogCorruptionError("the segment header is damaged")
    generation, end = _OWN.unpack_from(data, _COMMON_END)
    return SegmentHeader(base, generation, end)


def _cut_off(data: Octets) -> LogCorruptionError:
    return LogCorruptionError(
        f"the segment header is cut off after {len(data)} of {SEGMENT_HEADER_BYTES} octets"
    )


def _is_intact(data: Octets, length: int) -> bool:
    (crc,) = _CRC.unpack_from(data, length)
    return bool(crc == crc32c((data[:length],)))


def read_segment(file: DiskFile, base: int) -> Segment:
    """Return what `file`, named after `base`, holds.

    Raises LogCorruptionError and LogError as `decode_segment_header` does, or for a disk that
    fails.
    """
    with translate_os_error(LogError, "reading", file.path):
        data, size = file.pread(SEGMENT_HEADER_BYTES, 0), file.size()
    with naming_damage(file.path, base):
        header = decode_segment_header(data, base)
        if header.end and header.end < base + size:
            raise LogCorruptionError(f"the file has grown beyond its end at {header.end}")
    return Segment(base, header.end or base + size, size, header.generation)


def create_segment(disk: Disk, directory: Path, base: int) -> DiskFile:
    """Create the segment that starts at `base`; it is durable, name included. Raises OSError."""
    failpoint("log.before_create")
    file = disk.create(segment_path(directory, base))
    failpoint("log.after_create")
    write_segment_header(file, base)
    failpoint("log.before_directory_sync")
    disk.fsync_dir(directory)
    failpoint("log.after_directory_sync")
    return file


def write_segment_header(file: DiskFile, base: int) -> None:
    """Make `file`, which is not longer than a header, an empty segment. Raises OSError."""
    file.pwritev([encode_segment_header(SegmentHeader(base))], 0)
    file.fsync()


@dataclass(frozen=True, slots=True)
class SegmentView:
    """An open segment. It goes on showing the same octets when its file is replaced or removed."""

    segment: Segment
    file: DiskFile

    def read(self, position: int, length: int) -> bytes:
        """Return `length` octets from log position `position`; not verified.

        Raises LogError when the disk fails, LogCorruptionError when the file ends before.
        """
        with translate_os_error(LogError, "reading", self.file.path):
            data = self.file.pread(length, position - self.segment.base)
        if len(data) < length:
            raise corruption(
                self.file.path, position + len(data), "the file is shorter than it was"
            )
        return data

    def maybe_read_cached(self, position: int, length: int) -> Octets | None:
        """Return what `read` would, if that needs no wait for the disk; else None."""
        return self.file.maybe_pread_cached(length, position - self.segment.base)


class SegmentViews:
    """Open segments: at most SEGMENT_FILES_OPEN_MAX, the least recently used go first.

    Safe in several threads. A view that is let go while somebody still reads it is closed when
    that is done.
    """

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._disk = disk
        self._directory = directory
        self._views: OrderedDict[Segment, SegmentView] = OrderedDict()
        self._pinned: dict[Segment, SegmentView] = {}
        self._lock = threading.Lock()

    def view(self, segment: Segment) -> SegmentView:
        """Return `segment`, opened. Raises LogError, also if the file is another one by now."""
        with self._lock:
            if segment in self._pinned:
                return self._pinned[segment]
            view = self._views.get(segment)
            if view is not None:
                self._views.move_to_end(segment)
                return view
            path = segment_path(self._directory, segment.base)
            with translate_os_error(LogError, "opening", path):
                file = self._disk.open(path, is_writable=False)
            found = read_segment(file, segment.base)
            if found != segment:
                raise corruption(path, segment.base, f"this was {segment}, and is {found}")
            view = self._views[segment] = SegmentView(segment, file)
            if len(self._views) > SEGMENT_FILES_OPEN_MAX:
                self._views.popitem(last=False)
            return view

    @contextmanager
    def pinned(self, segment: Segment) -> Iterator[SegmentView]:
        """Keep `segment` open, whatever becomes of its file meanwhile. Raises LogError."""
        view = self.view(segment)
        with self._lock:
            self._pinned[segment] = view
        try:
            yield view
        finally:
            with self._lock:
                del self._pinned[segment]

    def drop(self, segment: Segment) -> None:
        """Let the view of a segment go that is no more."""
        with self._lock:
            self._views.pop(segment, None)

    def clear(self) -> None:
        """Let all views go."""
        with self._lock:
            self._views.clear()
