r"""The format of the log's files, version 2. The meaning of the entries: see log/entry.py.

A file of the log is `<position of its first byte, 20 digits>.log`, a header, then entries.

Positions run on over all segments: the byte at `offset` of a file has position base + offset,
headers included, so each file starts where the one before it ends. A compacted segment is a
rewrite of the same positions [base, end) with fewer entries, each at a new position; its file is
shorter than these. So is one of generation 0 with an end: it lost the bytes behind its last entry,
and the log goes on in the next one.

Header (big-endian; the first 24 bytes are those of every version):

    bytes   field       type  meaning
    0-7     magic             "SBPLOG\r\n"
    8-11    version     u32   2
    12-19   base        u64   position of this header, equal to the file's name
    20-23   crc         u32   CRC-32C of the 20 bytes before
    24-27   generation  u32   how often the segment was rewritten
    28-35   end         u64   position after the segment, 0 while it is the end of the file
    36-39   crc         u32   CRC-32C of the 36 bytes before

The first group of every segment is a SNAPSHOT of all ranges as they were at its base, so that no
other segment is needed to make sense of it.

Layout of an entry (big-endian):

    bytes   field        type  meaning
    0-3     length       u32   bytes after the checksums: 25 + body
    4-7     header_crc   u32   CRC-32C of position (u64), length, and bytes 12-36
    8-11    crc          u32   CRC-32C of the same, and the body behind it
    12      kind         u8    EntryKind
    13-20   stream_id    i64
    21-24   range_index  i32
    25-32   base_offset  i64
    33-36   count        u32   records
    37-     body               opaque

`position` is where the entry starts in the log. A position is not stored but mixed into the
checksums, so stale bytes of another place never parse as an entry here. The header has a checksum
of its own, so that damage to a body does not hide whose it is, nor where the next entry starts.
"""

from __future__ import annotations

import enum
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from sbp_core.errors import LogCorruptionError, LogError
from sbp_core.record_sizes import LARGEST
from sbp_core.wire.checksum import Buffer, crc32c

SEGMENT_MAGIC: Final = b"SBPLOG\r\n"
SEGMENT_VERSION: Final = 2

_COMMON: Final = struct.Struct(">8sIQ")
_OWN: Final = struct.Struct(">IQ")
_CRC: Final = struct.Struct(">I")
CHECKSUM_BYTES: Final = _CRC.size
_COMMON_END: Final = _COMMON.size + CHECKSUM_BYTES
_OWN_END: Final = _COMMON_END + _OWN.size
_POSITION_MAX: Final = 2**64 - 1
_NAME: Final = re.compile(r"([0-9]{20})\.log", re.ASCII)

SEGMENT_HEADER_BYTES: Final = _OWN_END + CHECKSUM_BYTES

ENTRY_PREFIX: Final = struct.Struct(">III")
ENTRY_CHECKED: Final = struct.Struct(">QIBqiqI")
"""The bytes under the header's checksum: position, length, and the fields from the kind on."""
_HEADER: Final = struct.Struct(">IIIBqiqI")
_CRC_SEED: Final = struct.Struct(">QI")

ENTRY_PREFIX_BYTES: Final = ENTRY_PREFIX.size
ENTRY_HEADER_BYTES: Final = _HEADER.size


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """The header of a segment; `end` is 0 where it is the end of the file."""

    base: int
    generation: int = 0
    end: int = 0


def segment_name(base: int) -> str:
    """Return the file name of the segment that starts at position `base`."""
    return f"{base:020d}.log"


def segment_path(directory: Path, base: int) -> Path:
    """Return the path of the segment that starts at position `base`."""
    return directory / segment_name(base)


def maybe_segment_base(name: str) -> int | None:
    """Return the base position that a file's name gives, None if it is no segment.

    A position is a u64, so not every number of 20 digits is one.
    """
    match = _NAME.fullmatch(name)
    return int(match[1]) if match and int(match[1]) <= _POSITION_MAX else None


def encode_segment_header(header: SegmentHeader) -> bytes:
    """Return the first bytes of a segment."""
    common = with_checksum(_COMMON.pack(SEGMENT_MAGIC, SEGMENT_VERSION, header.base))
    return with_checksum(common + _OWN.pack(header.generation, header.end))


def decode_segment_header(data: Buffer, base: int) -> SegmentHeader:
    """Return the header of the segment named after `base`.

    Raises LogCorruptionError for a damaged header, and LogError for an intact one of another
    version or another place.
    """
    if len(data) < _COMMON_END:
        raise _cut_off(data)
    magic, version, stored_base = _COMMON.unpack_from(data)
    if magic != SEGMENT_MAGIC or not is_intact(data, _COMMON.size):
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
    if not is_intact(data, _OWN_END):
        raise LogCorruptionError("the segment header is damaged")
    generation, end = _OWN.unpack_from(data, _COMMON_END)
    return SegmentHeader(base, generation, end)


def _cut_off(data: Buffer) -> LogCorruptionError:
    return LogCorruptionError(
        f"the segment header is cut off after {len(data)} of {SEGMENT_HEADER_BYTES} bytes"
    )


def with_checksum(fields: bytes) -> bytes:
    """Return the header of a file: its fields, and their CRC-32C behind them."""
    return fields + _CRC.pack(crc32c((fields,)))


def is_intact(data: Buffer, length: int) -> bool:
    """Whether the first `length` bytes of a file have the checksum that is behind them."""
    (crc,) = _CRC.unpack_from(data, length)
    return bool(crc == crc32c((data[:length],)))


class EntryKind(enum.IntEnum):
    """The kinds of entries. COMMIT and the snapshots are written by the log itself."""

    COMMIT = 0
    BATCH = 1
    STAGED = 2
    TXN_END = 3
    SEAL = 4
    TRIM = 5
    RANGE_CREATED = 6
    STREAM_DELETED = 7
    SNAPSHOT = 8
    WRITER_MARK = 9
    RANGE_WRITERS = 10
    SNAPSHOT_WRITERS = 11
    SNAPSHOT_STAGED = 12
    FENCED = 13
    SETTLED = 14
    COPY_BEGUN = 15


_KINDS: Final = {int(kind): kind for kind in EntryKind}


class EntryHeader(NamedTuple):
    """The header of an entry, its checksum verified: all but the body, which `crc` covers too.

    `length` counts the bytes of the whole entry.
    """

    length: int
    header_crc: int
    crc: int
    kind: EntryKind
    stream_id: int
    range_index: int
    base_offset: int
    record_count: int

    def check_body(self, *body: Buffer) -> None:
        """Raise LogCorruptionError unless these are, one behind the other, the body as written."""
        crc = crc32c(body, self.header_crc)
        if crc != self.crc:
            raise LogCorruptionError(
                f"an entry of {self.length} bytes has the checksum {crc:08x}, expected"
                f" {self.crc:08x}"
            )


def decode_entry_header(data: Buffer, position: int) -> EntryHeader:
    """Return the header at the start of `data`, which was read at `position`.

    Raises LogCorruptionError for damaged bytes, and LogError for an intact header of a kind that
    this version does not know.
    """
    if len(data) < ENTRY_HEADER_BYTES:
        raise LogCorruptionError(
            f"{len(data)} bytes are left, an entry takes at least {ENTRY_HEADER_BYTES}"
        )
    length, header_crc, crc, kind, stream_id, range_index, base_offset, count = _HEADER.unpack_from(
        data
    )
    entry_length = length + ENTRY_PREFIX_BYTES
    if not ENTRY_HEADER_BYTES <= entry_length <= LARGEST.frame_bytes:
        raise LogCorruptionError(
            f"an entry of {entry_length} bytes is announced, expected {ENTRY_HEADER_BYTES} to"
            f" {LARGEST.frame_bytes}"
        )
    seed = _CRC_SEED.pack(position, length)
    real_crc = crc32c((seed, data[ENTRY_PREFIX_BYTES:ENTRY_HEADER_BYTES]))
    if real_crc != header_crc:
        raise LogCorruptionError(
            f"the header of an entry has the checksum {real_crc:08x}, expected {header_crc:08x}"
        )
    known_kind = _KINDS.get(kind)
    if known_kind is None:
        raise LogError(
            f"the entry at position {position} is of kind {kind}, which this version does not"
            f" know; a newer version wrote it: use that one"
        )
    return EntryHeader(
        entry_length, header_crc, crc, known_kind, stream_id, range_index, base_offset, count
    )
