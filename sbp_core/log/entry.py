"""One entry of the log: its octets, and how damage to them is told from the real thing.

Layout (big-endian):

    octets  field        type  meaning
    0-3     length       u32   octets after the crc field: 25 + body
    4-7     crc          u32   CRC-32C of position (u64), length, and all that follows this field
    8       kind         u8    EntryKind
    9-16    stream_id    i64
    17-20   range_index  i32
    21-28   base_offset  i64
    29-32   count        u32   records
    33-     body               opaque

`position` is where the entry starts in the log. It is not stored but mixed into the checksum, so
stale octets of another place never parse as an entry here.

A COMMIT entry starts every group commit. Its body:

    0-15    marker             fixed octets, to find it behind a damaged entry
    16-23   durable_upto u64   every octet of the log below it was durable before this group
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass
from typing import Final

from sbp_core.errors import LogCorruptionError, LogError
from sbp_core.limits import ENTRY_BYTES_MAX
from sbp_core.wire.checksum import Octets, crc32c

_PREFIX: Final = struct.Struct(">II")
_FIELDS: Final = struct.Struct(">BqiqI")
_CRC_SEED: Final = struct.Struct(">QI")
_COMMIT_BODY: Final = struct.Struct(">16sQ")

ENTRY_PREFIX_BYTES: Final = _PREFIX.size
ENTRY_HEADER_BYTES: Final = _PREFIX.size + _FIELDS.size
COMMIT_BYTES: Final = ENTRY_HEADER_BYTES + _COMMIT_BODY.size
COMMIT_MARKER: Final = bytes.fromhex("9d4be1f603c85a17b27ec40f6891d5aa")


class EntryKind(enum.IntEnum):
    """What an entry says. The log itself reads and writes COMMIT only."""

    COMMIT = 0
    BATCH = 1
    STAGED = 2
    TXN_END = 3
    SEAL = 4
    TRIM = 5
    RANGE_CREATED = 6
    STREAM_DELETED = 7


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry. `base_offset` and `count` are in records, `body` is opaque octets."""

    kind: EntryKind
    stream_id: int
    range_index: int
    base_offset: int
    count: int
    body: Octets = b""

    @property
    def length(self) -> int:
        """Octets that the entry takes in the log."""
        return ENTRY_HEADER_BYTES + len(self.body)


@dataclass(frozen=True, slots=True)
class Location:
    """Where an entry is: octets counted from the start of the log, over all segments."""

    position: int
    length: int

    @property
    def end(self) -> int:
        """Position after the entry."""
        return self.position + self.length

    @property
    def body_position(self) -> int:
        """Position of the body."""
        return self.position + ENTRY_HEADER_BYTES

    @property
    def body_length(self) -> int:
        """Octets of the body."""
        return self.length - ENTRY_HEADER_BYTES


def encode_entry(entry: Entry, position: int) -> list[Octets]:
    """Return the buffers of `entry` at `position`; the body is passed on, not copied."""
    length = _FIELDS.size + len(entry.body)
    fields = _FIELDS.pack(
        entry.kind, entry.stream_id, entry.range_index, entry.base_offset, entry.count
    )
    crc = crc32c((_CRC_SEED.pack(position, length), fields, entry.body))
    header = _PREFIX.pack(length, crc) + fields
    return [header, entry.body] if entry.body else [header]


def decode_entry_length(data: Octets) -> int:
    """Return the octets of the entry that starts with `data`, checked against the bounds.

    Raises LogCorruptionError.
    """
    if len(data) < ENTRY_PREFIX_BYTES:
        raise LogCorruptionError(
            f"{len(data)} octets are left, an entry takes at least {ENTRY_HEADER_BYTES}"
        )
    length = ENTRY_PREFIX_BYTES + int(_PREFIX.unpack_from(data)[0])
    if not ENTRY_HEADER_BYTES <= length <= ENTRY_BYTES_MAX:
        raise LogCorruptionError(
            f"an entry of {length} octets is announced, expected {ENTRY_HEADER_BYTES} to "
            f"{ENTRY_BYTES_MAX}"
        )
    return length


def decode_entry(data: memoryview, position: int) -> Entry:
    """Return the entry at the start of `data`, which was read at `position`.

    The body is a view into `data`. Raises LogCorruptionError for damaged octets, and LogError for
    an intact entry of a kind that this version does not know.
    """
    length = decode_entry_length(data)
    if length > len(data):
        raise LogCorruptionError(f"an entry of {length} octets is cut off after {len(data)}")
    stored_crc = _PREFIX.unpack_from(data)[1]
    seed = _CRC_SEED.pack(position, length - ENTRY_PREFIX_BYTES)
    crc = crc32c((seed, data[ENTRY_PREFIX_BYTES:length]))
    if crc != stored_crc:
        raise LogCorruptionError(
            f"an entry of {length} octets has the checksum {crc:08x}, expected {stored_crc:08x}"
        )
    kind, stream_id, range_index, base_offset, count = _FIELDS.unpack_from(data, ENTRY_PREFIX_BYTES)
    try:
        known_kind = EntryKind(kind)
    except ValueError:
        raise LogError(
            f"the entry at position {position} is of kind {kind}, which this version does not "
            f"know; a newer version wrote it: use that one"
        ) from None
    body = data[ENTRY_HEADER_BYTES:length]
    return Entry(known_kind, stream_id, range_index, base_offset, count, body)


def commit_entry(durable_upto: int) -> Entry:
    """Return the COMMIT entry that says that all below `durable_upto` was durable before it."""
    return Entry(EntryKind.COMMIT, 0, 0, 0, 0, _COMMIT_BODY.pack(COMMIT_MARKER, durable_upto))


def decode_durable_upto(entry: Entry, position: int) -> int:
    """Return what the COMMIT `entry` at `position` proves. Raises LogCorruptionError."""
    if len(entry.body) != _COMMIT_BODY.size:
        raise LogCorruptionError(
            f"a COMMIT entry has a body of {len(entry.body)} octets, expected {_COMMIT_BODY.size}"
        )
    marker, durable_upto = _COMMIT_BODY.unpack(entry.body)
    if marker != COMMIT_MARKER or durable_upto > position:
        raise LogCorruptionError(
            f"a COMMIT entry at position {position} says durable_upto {durable_upto}, marker "
            f"{marker.hex()}"
        )
    return int(durable_upto)
