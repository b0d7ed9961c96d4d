"""One entry of the log: its fields, and the COMMIT entries of the log itself.

segment_format.py has the layout of the header. A COMMIT entry starts every group commit. Its body:

    0-15    marker             fixed bytes, to find it behind a damaged entry
    16-23   durable_upto u64   every byte of the log below it was durable before this group
    24-31   time_ms      u64   when the group was written, ms since the epoch, UTC

A WRITER_MARK has the writer and the sequence of the BATCH right behind it (writer_states.py), and
the fields of that batch. Without its batch a mark means nothing.

STAGED entries hold batches of transactions, TXN_END publishes or drops them (staged_entries.py).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from msgspec import Struct

from sbp_core.errors import LogCorruptionError
from sbp_core.replication import Prefix
from sbp_core.segment_format import (
    ENTRY_CHECKED,
    ENTRY_HEADER_BYTES,
    ENTRY_PREFIX,
    ENTRY_PREFIX_BYTES,
    EntryHeader,
    EntryKind,
    decode_entry_header,
)
from sbp_core.wire.checksum import Buffer, crc32c

_FIELDS_BYTES: Final = ENTRY_HEADER_BYTES - ENTRY_PREFIX_BYTES
_COMMIT_BODY: Final = struct.Struct(">16sQQ")

COMMIT_BYTES: Final = ENTRY_HEADER_BYTES + _COMMIT_BODY.size
COMMIT_MARKER: Final = bytes.fromhex("9d4be1f603c85a17b27ec40f6891d5aa")


APPENDED_KINDS: Final = frozenset({EntryKind.BATCH, EntryKind.WRITER_MARK, EntryKind.STAGED})
"""Kinds that APPEND writes. All other kinds are decisions, on which later entries build."""
BATCH_KINDS: Final = frozenset({EntryKind.BATCH, EntryKind.STAGED})
"""Kinds that hold records."""
SNAPSHOT_KINDS: Final = frozenset(
    {EntryKind.SNAPSHOT, EntryKind.SNAPSHOT_WRITERS, EntryKind.SNAPSHOT_STAGED}
)
"""Kinds of the snapshot at the start of a segment."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry. `base_offset` and `count` are in records, `body` is opaque bytes.

    `prefix` is written in front of the body, so that the batch need not be copied. In an entry that
    was read the prefix is part of the body.
    """

    kind: EntryKind
    stream_id: int
    range_index: int
    base_offset: int
    count: int
    body: Buffer = b""
    prefix: Buffer = b""
    numbering: tuple[Prefix, Prefix] = field(init=False, repr=False, compare=False)
    """A cache of `number_after`: the prefix of the range before the entry, and with it."""

    @property
    def length(self) -> int:
        """Length of the entry in the log, in bytes."""
        return ENTRY_HEADER_BYTES + len(self.prefix) + len(self.body)

    @property
    def front(self) -> Buffer:
        """The first bytes of the body in the log, with the whole prefix if there is one."""
        return self.prefix or self.body


class Location(Struct, frozen=True):
    """Position and length of an entry. Positions count bytes over all segments of the log."""

    position: int
    length: int

    @property
    def end(self) -> int:
        """Position after the entry."""
        return self.position + self.length


HeaderFields = tuple[EntryKind, int, int, int, int]
"""Kind, stream, range, base offset and count of an entry."""


def encode_entry(entry: Entry, position: int) -> list[Buffer]:
    """Return the buffers of `entry` at `position`. The body is not copied."""
    parts = [entry.body] if entry.body else []
    if entry.prefix:
        parts.insert(0, entry.prefix)
    fields = entry.kind, entry.stream_id, entry.range_index, entry.base_offset, entry.count
    return [encode_header(fields, parts, position), *parts]


def encode_header(fields: HeaderFields, parts: Sequence[Buffer], position: int) -> bytes:
    """Return the header of the entry at `position` with these fields; its body is in parts."""
    length = _FIELDS_BYTES + sum(map(len, parts))
    checked = ENTRY_CHECKED.pack(position, length, *fields)
    header_crc = crc32c((checked,))
    prefix = ENTRY_PREFIX.pack(length, header_crc, crc32c(parts, header_crc))
    return prefix + checked[-_FIELDS_BYTES:]


def entry_of(header: EntryHeader, body: Buffer = b"") -> Entry:
    """Return the entry of a header and its verified body."""
    return Entry(*header[3:], body)


def decode_entry(data: memoryview, position: int) -> Entry:
    """Return the entry at the start of `data`, which was read at `position`.

    The body is a view into `data`. Raises LogCorruptionError for damaged bytes, LogError for a kind
    that this version does not know.
    """
    header = decode_entry_header(data, position)
    if header.length > len(data):
        raise LogCorruptionError(f"an entry of {header.length} bytes is cut off after {len(data)}")
    body = data[ENTRY_HEADER_BYTES : header.length]
    header.check_body(body)
    return entry_of(header, body)


def unpack_at(form: struct.Struct, body: Buffer, position: int) -> tuple[Any, ...]:
    """Unpack the fields at `position` of a body. Raises LogCorruptionError if it is too short."""
    if position + form.size > len(body):
        raise LogCorruptionError(
            f"a body of {len(body)} bytes is cut off: {form.size} are expected from {position} on"
        )
    return form.unpack_from(body, position)


@dataclass(frozen=True, slots=True)
class Commit:
    """The content of a COMMIT entry: how far the log was synced before, and the group's time."""

    durable_upto: int
    time_ms: int

    def to_entry(self) -> Entry:
        """Return the COMMIT entry."""
        body = _COMMIT_BODY.pack(COMMIT_MARKER, self.durable_upto, self.time_ms)
        return Entry(EntryKind.COMMIT, 0, 0, 0, 0, body)


def decode_commit(entry: Entry, position: int) -> Commit:
    """Return the content of a COMMIT entry at `position`. Raises LogCorruptionError."""
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
