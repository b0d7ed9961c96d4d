"""One entry of the log: its bytes, and how damage to them is told from the real thing.

Layout (big-endian):

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

`position` is where the entry starts in the log. It is not stored but mixed into the checksums, so
stale bytes of another place never parse as an entry here. The header has a checksum of its own,
so that damage to a body does not hide whose it is, nor where the next entry starts.

A COMMIT entry starts every group commit. Its body:

    0-15    marker             fixed bytes, to find it behind a damaged entry
    16-23   durable_upto u64   every byte of the log below it was durable before this group
    24-31   time_ms      u64   when the group was written, ms since the epoch, UTC

A WRITER_MARK says which writer numbered the BATCH right behind it, and how (see writer_states.py);
all fields but kind are that batch's. Without its batch it means nothing.

STAGED entries hold batches of transactions, TXN_END says what becomes of these (staged_entries.py).
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from sbp_core.errors import LogCorruptionError, LogError
from sbp_core.limits import ENTRY_BYTES_MAX
from sbp_core.wire.checksum import Octets, crc32c

_PREFIX: Final = struct.Struct(">III")
_FIELDS: Final = struct.Struct(">BqiqI")
_HEADER: Final = struct.Struct(">IIIBqiqI")
_CRC_SEED: Final = struct.Struct(">QI")
_COMMIT_BODY: Final = struct.Struct(">16sQQ")

ENTRY_PREFIX_BYTES: Final = _PREFIX.size
ENTRY_HEADER_BYTES: Final = _HEADER.size
COMMIT_BYTES: Final = ENTRY_HEADER_BYTES + _COMMIT_BODY.size
COMMIT_MARKER: Final = bytes.fromhex("9d4be1f603c85a17b27ec40f6891d5aa")


class EntryKind(enum.IntEnum):
    """The kinds of entries. COMMIT and the snapshots are the log's own."""

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


APPENDED_KINDS: Final = frozenset({EntryKind.BATCH, EntryKind.WRITER_MARK, EntryKind.STAGED})
"""Written by APPEND. All others are decisions, on which later ones build."""
BATCH_KINDS: Final = frozenset({EntryKind.BATCH, EntryKind.STAGED})
"""Those that hold records."""
SNAPSHOT_KINDS: Final = frozenset(
    {EntryKind.SNAPSHOT, EntryKind.SNAPSHOT_WRITERS, EntryKind.SNAPSHOT_STAGED}
)
"""Those at the start of a segment."""
_KINDS: Final = {int(kind): kind for kind in EntryKind}


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry. `base_offset` and `count` are in records, `body` is opaque bytes.

    `prefix` is written in front of the body, as a part of it: of an entry that was read, the body
    begins with it.
    """

    kind: EntryKind
    stream_id: int
    range_index: int
    base_offset: int
    count: int
    body: Octets = b""
    prefix: Octets = b""

    @property
    def length(self) -> int:
        """Bytes that the entry takes in the log."""
        return ENTRY_HEADER_BYTES + len(self.prefix) + len(self.body)

    @property
    def front(self) -> Octets:
        """The first bytes of the body in the log: all of the prefix at least, if there is one."""
        return self.prefix or self.body


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

    def check_body(self, *body: Octets) -> None:
        """Raise LogCorruptionError unless these are, one behind the other, the body as written."""
        crc = crc32c(body, self.header_crc)
        if crc != self.crc:
            raise LogCorruptionError(
                f"an entry of {self.length} bytes has the checksum {crc:08x}, expected"
                f" {self.crc:08x}"
            )

    def with_body(self, body: Octets = b"") -> Entry:
        """Return the entry."""
        return Entry(
            self.kind, self.stream_id, self.range_index, self.base_offset, self.record_count, body
        )


@dataclass(frozen=True, slots=True)
class Location:
    """Where an entry is: bytes counted from the start of the log, over all segments."""

    position: int
    length: int

    @property
    def end(self) -> int:
        """Position after the entry."""
        return self.position + self.length

    @property
    def body_length(self) -> int:
        """Bytes of the body."""
        return self.length - ENTRY_HEADER_BYTES


def encode_entry(entry: Entry, position: int) -> list[Octets]:
    """Return the buffers of `entry` at `position`; the body is passed on, not copied."""
    parts = [each for each in (entry.prefix, entry.body) if each]
    length = entry.length - ENTRY_PREFIX_BYTES
    fields = _FIELDS.pack(
        entry.kind, entry.stream_id, entry.range_index, entry.base_offset, entry.count
    )
    header_crc = crc32c((_CRC_SEED.pack(position, length), fields))
    header = _PREFIX.pack(length, header_crc, crc32c(parts, header_crc)) + fields
    return [header, *parts]


def decode_entry_header(data: Octets, position: int) -> EntryHeader:
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
    if not ENTRY_HEADER_BYTES <= entry_length <= ENTRY_BYTES_MAX:
        raise LogCorruptionError(
            f"an entry of {entry_length} bytes is announced, expected {ENTRY_HEADER_BYTES} to"
            f" {ENTRY_BYTES_MAX}"
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


def decode_entry(data: memoryview, position: int) -> Entry:
    """Return the entry at the start of `data`, which was read at `position`.

    The body is a view into `data`. Raises LogCorruptionError for damaged bytes, and LogError for
    an intact header of a kind that this version does not know.
    """
    header = decode_entry_header(data, position)
    if header.length > len(data):
        raise LogCorruptionError(f"an entry of {header.length} bytes is cut off after {len(data)}")
    body = data[ENTRY_HEADER_BYTES : header.length]
    header.check_body(body)
    return header.with_body(body)


def unpack_at(form: struct.Struct, body: Octets, position: int) -> tuple[Any, ...]:
    """Return the fields at `position` of a body. Raises LogCorruptionError if it is cut off."""
    if position + form.size > len(body):
        raise LogCorruptionError(
            f"a body of {len(body)} bytes is cut off: {form.size} are expected from {position} on"
        )
    return form.unpack_from(body, position)


@dataclass(frozen=True, slots=True)
class Commit:
    """The content of a COMMIT entry: what was durable before its group, and the group's time."""

    durable_upto: int
    time_ms: int

    def to_entry(self) -> Entry:
        """Return the entry."""
        body = _COMMIT_BODY.pack(COMMIT_MARKER, self.durable_upto, self.time_ms)
        return Entry(EntryKind.COMMIT, 0, 0, 0, 0, body)


def decode_commit(entry: Entry, position: int) -> Commit:
    """Return what the COMMIT `entry` at `position` says. Raises LogCorruptionError."""
    if len(entry.body) != _COMMIT_BODY.size:
        raise LogCorruptionError(
            f"a COMMIT entry has a body of {len(entry.body)} bytes, expected {_COMMIT_BODY.size}"
        )
    marker, durable_upto, time_ms = _COMMIT_BODY.unpack(entry.body)
    if marker != COMMIT_MARKER or durable_upto > position:
        raise LogCorruptionError(
            f"a COMMIT entry at position {position} says durable_upto {durable_upto}, marker "
            f"{marker.hex()}"
        )
    return Commit(durable_upto, time_ms)
