r"""One file of the log: `<position of its first octet, 20 digits>.log`, a header, then entries.

Positions run on over all segments: the octet at `offset` of a file has position base + offset,
headers included, so each file starts where the one before it ends.

Header (big-endian):

    octets  field    type  meaning
    0-7     magic          "SBPLOG\r\n"
    8-11    version  u32   1
    12-19   base     u64   position of this header, equal to the file's name
    20-23   crc      u32   CRC-32C of the 20 octets before
"""

from __future__ import annotations

import re
import struct
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Final

from sbp_core.errors import LogCorruptionError, LogError
from sbp_core.failpoints import failpoint
from sbp_core.limits import SEGMENT_FILES_OPEN_MAX
from sbp_core.log.disk import Disk, DiskFile
from sbp_core.wire.checksum import Octets, crc32c

SEGMENT_MAGIC: Final = b"SBPLOG\r\n"
SEGMENT_VERSION: Final = 1

_FIELDS: Final = struct.Struct(">8sIQ")
_CRC: Final = struct.Struct(">I")
_NAME: Final = re.compile(r"([0-9]{20})\.log", re.ASCII)

SEGMENT_HEADER_BYTES: Final = _FIELDS.size + _CRC.size


def segment_path(directory: Path, base: int) -> Path:
    """Return the path of the segment that starts at position `base`."""
    return directory / f"{base:020d}.log"


def maybe_segment_base(name: str) -> int | None:
    """Return the base position that a file's name stands for, None if it is no segment."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


def encode_segment_header(base: int) -> bytes:
    """Return the header of the segment that starts at position `base`."""
    fields = _FIELDS.pack(SEGMENT_MAGIC, SEGMENT_VERSION, base)
    return fields + _CRC.pack(crc32c((fields,)))


def check_segment_header(data: Octets, base: int) -> None:
    """Check the first octets of the segment named after `base`.

    Raises LogCorruptionError for a damaged or misplaced header, and LogError for an intact one of
    another version.
    """
    if len(data) < SEGMENT_HEADER_BYTES:
        raise LogCorruptionError(
            f"the segment header is cut off after {len(data)} of {SEGMENT_HEADER_BYTES} octets"
        )
    magic, version, stored_base = _FIELDS.unpack_from(data)
    (crc,) = _CRC.unpack_from(data, _FIELDS.size)
    if magic != SEGMENT_MAGIC or crc != crc32c((data[: _FIELDS.size],)):
        raise LogCorruptionError("the segment header is damaged, or the file is no segment")
    if version != SEGMENT_VERSION:
        raise LogError(
            f"the segment at position {base} has format version {version}, this version reads "
            f"{SEGMENT_VERSION}: use the version that wrote it"
        )
    if stored_base != base:
        raise LogError(
            f"the segment named after position {base} belongs to {stored_base}: the file was "
            f"renamed; give it its name back"
        )


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
    file.pwritev([encode_segment_header(base)], 0)
    file.fsync()


class SegmentReaders:
    """Open segments for reading: at most SEGMENT_FILES_OPEN_MAX, the least recently used go first.

    Safe in several threads. A file that is let go while another thread still reads it closes when
    that thread is done with it.
    """

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._disk = disk
        self._directory = directory
        self._files: OrderedDict[int, DiskFile] = OrderedDict()
        self._lock = threading.Lock()

    def file(self, base: int) -> DiskFile:
        """Return the segment that starts at `base`. Raises OSError."""
        with self._lock:
            file = self._files.get(base)
            if file is None:
                path = segment_path(self._directory, base)
                file = self._files[base] = self._disk.open(path, is_writable=False)
                if len(self._files) > SEGMENT_FILES_OPEN_MAX:
                    self._files.popitem(last=False)
            else:
                self._files.move_to_end(base)
            return file

    def clear(self) -> None:
        """Let all files go."""
        with self._lock:
            self._files.clear()
