r"""One file of the log: `<position of its first byte, 20 digits>.log`, a header, then entries.

Positions run on over all segments: the byte at `offset` of a file has position base + offset,
headers included, so each file starts where the one before it ends. A compacted segment is a
rewrite of the same positions [base, end) with fewer entries, each at a new position; its file is
shorter than what it stands for. So is one of generation 0 that says its end: it lost what was
behind its last entry, and the log goes on in the next one.

Header (big-endian; the first 24 bytes are those of every version):

    bytes   field       type  meaning
    0-7     magic             "SBPLOG\r\n"
    8-11    version     u32   2
    12-19   base        u64   position of this header, equal to the file's name
    20-23   crc         u32   CRC-32C of the 20 bytes before
    24-27   generation  u32   how often the segment was rewritten
    28-35   end         u64   position after the segment, 0 while the file's length tells it
    36-39   crc         u32   CRC-32C of the 36 bytes before

The first group of every segment is a SNAPSHOT of all ranges as they were at its base, so that no
other segment is needed to make sense of it.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sbp_core.errors import LogCorruptionError, LogError
from sbp_core.wire.checksum import Octets, crc32c

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
INSTANCE_NAME: Final = "instance"
"""The file that says which start of which server a log is open in, and of which cluster."""
INSTANCE_BYTES_MAX: Final = 512


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """The header of a segment; `end` is 0 where the file's length tells it."""

    base: int
    generation: int = 0
    end: int = 0


def encode_instance(instance: str, cluster_id: str) -> bytes:
    """Return what the file INSTANCE_NAME holds; earlier versions wrote the instance alone."""
    return f"{instance} {cluster_id}\n".encode()


def segment_name(base: int) -> str:
    """Return the file name of the segment that starts at position `base`."""
    return f"{base:020d}.log"


def segment_path(directory: Path, base: int) -> Path:
    """Return the path of the segment that starts at position `base`."""
    return directory / segment_name(base)


def maybe_segment_base(name: str) -> int | None:
    """Return the base position that a file's name stands for, None if it is no segment.

    A position is a u64, so not every number of 20 digits is one.
    """
    match = _NAME.fullmatch(name)
    return int(match[1]) if match and int(match[1]) <= _POSITION_MAX else None


def encode_segment_header(header: SegmentHeader) -> bytes:
    """Return the first bytes of a segment."""
    common = with_checksum(_COMMON.pack(SEGMENT_MAGIC, SEGMENT_VERSION, header.base))
    return with_checksum(common + _OWN.pack(header.generation, header.end))


def decode_segment_header(data: Octets, base: int) -> SegmentHeader:
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


def _cut_off(data: Octets) -> LogCorruptionError:
    return LogCorruptionError(
        f"the segment header is cut off after {len(data)} of {SEGMENT_HEADER_BYTES} bytes"
    )


def with_checksum(fields: bytes) -> bytes:
    """Return the header of a file: its fields, and their CRC-32C behind them."""
    return fields + _CRC.pack(crc32c((fields,)))


def is_intact(data: Octets, length: int) -> bool:
    """Whether the first `length` bytes of a file have the checksum that is behind them."""
    (crc,) = _CRC.unpack_from(data, length)
    return bool(crc == crc32c((data[:length],)))
