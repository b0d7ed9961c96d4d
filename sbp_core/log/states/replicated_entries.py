"""The entries of replicated ranges: their numbers, and the entries with which a range ends.

`sbp_core.replication` has the rules. The numbered entries of a range are the entries of
NUMBERED_KINDS before it is settled. The *content* of a numbered entry is its body without positions
in one log: a TXN_END keeps ids and flags without batches, a STAGED entry has no birth position. So
replicas with the same entries have the same digest, wherever the entries are.

A FENCED entry has no body. Behind a COPY_BEGUN entry follow the records of a range that has ended,
from its base offset on, and the batches staged in it, from another server. Its body has the records
(staged_states.py) of the transactions that ended in the range. The entries of such a range are not
numbered here.

A SETTLED entry has the end of the range as its base offset. Its body, big-endian:

    0      version  u8    1
    1      flags    u8    1 if the range had entries behind its end here: they do not count;
                          2 if entries that were damaged can be read again
    2-9    seq      u64   of the last entry of the range
    10-25  digest         of all entries up to there, zeros if there are none

Behind that, if entries were truncated: the length (u32) and the bytes of the stream's writers at
this end, as in RANGE_WRITERS, empty if unknown; and records (staged_states.py) of the batches that
were staged in the range at its end, where they differ from the present ones (without batches if
nothing was staged), and of the ends of transactions that do not count.
"""

from __future__ import annotations

import struct
from collections.abc import Container
from dataclasses import dataclass, replace
from typing import Final

from sbp_core.errors import LogCorruptionError
from sbp_core.log.entry import Entry, unpack_at
from sbp_core.log.states.staged_entries import portable_end
from sbp_core.replication import DIGEST_BYTES, Prefix
from sbp_core.segment_format import EntryKind
from sbp_core.wire.checksum import Buffer, crc32c

NUMBERED_KINDS: Final = frozenset(
    {
        EntryKind.BATCH,
        EntryKind.WRITER_MARK,
        EntryKind.STAGED,
        EntryKind.TXN_END,
        EntryKind.RANGE_WRITERS,
    }
)

_SUMMARY: Final = struct.Struct(">BqII")
_SETTLED: Final = struct.Struct(f">BBQ{DIGEST_BYTES}s")
_LENGTH: Final = struct.Struct(">I")
_VERSION: Final = 1
_IS_TRUNCATED: Final = 1
_IS_MENDED: Final = 2
NO_DIGEST: Final = bytes(DIGEST_BYTES)
"""The digest of no entries."""


def portable(entry: Entry) -> Entry:
    """Return a numbered entry without positions in this log."""
    if entry.kind is EntryKind.TXN_END:
        return replace(entry, body=portable_end(entry))
    if entry.kind is EntryKind.STAGED and entry.base_offset >= 0:
        return replace(entry, base_offset=-1)
    return entry


def summary(entry: Entry) -> bytes:
    """Return the part of a numbered entry that the digest of its range covers.

    It has kind, base offset and count, and the CRC-32C of the content. Raises LogCorruptionError.
    """
    own = portable(entry)
    content = (own.prefix, own.body) if own.prefix else (own.body,)
    return _SUMMARY.pack(own.kind, own.base_offset, own.count, crc32c(content))


def number_after(before: Prefix, entry: Entry) -> Prefix:
    """Return the prefix that ends with a numbered entry. Raises LogCorruptionError.

    It is needed when the entry is sent or accepted, and again when the log writes it. So it is
    computed once, and kept in the entry.
    """
    known = getattr(entry, "numbering", None)
    if known is not None and (known[0] is before or known[0] == before):
        end: Prefix = known[1]
        return end
    end = before.extended(summary(entry))
    object.__setattr__(entry, "numbering", (before, end))
    return end


def is_numbered_in(entry: Entry, keys: Container[tuple[int, int]]) -> bool:
    """Whether an entry is a numbered entry of one of these ranges."""
    return entry.kind in NUMBERED_KINDS and (entry.stream_id, entry.range_index) in keys


def decoded_prefix(seq: int, digest: bytes) -> Prefix:
    """Return a prefix from its number and digest in a file."""
    return Prefix(seq, digest) if seq else Prefix()


def fenced_entry(key: tuple[int, int]) -> Entry:
    """Return the entry after which a replicated range accepts only the entries that it lacks."""
    return Entry(EntryKind.FENCED, *key, -1, 0)


def copy_begun_entry(key: tuple[int, int], base_offset: int, ends: Buffer = b"") -> Entry:
    """Return the entry that begins a copy of records, not entries, from an offset on.

    The batches staged in the range are dropped, and `ends` are the records of its transactions.
    """
    return Entry(EntryKind.COPY_BEGUN, *key, base_offset, 0, ends)


def settled_entry(key: tuple[int, int], end_offset: int, end: Prefix) -> Entry:
    """Return the entry that ends a replicated range with exactly the entries `end` here.

    `Log.truncation` makes the entry for a range with more entries.
    """
    return Entry(EntryKind.SETTLED, *key, end_offset, 0, _encode_end(end, 0))


@dataclass(frozen=True, slots=True)
class Truncation:
    """The states at the end of a range that truncated entries had changed, as bytes.

    `writers` of the stream at the end of the range, empty if unknown; records of what is `staged`.
    """

    writers: Buffer
    staged: Buffer


def copied_entry(key: tuple[int, int], end_offset: int, end: Prefix) -> Entry:
    """Return the entry that ends a range whose records were copied, without its entries.

    The writers before its end are unknown.
    """
    return truncation_entry(key, end_offset, end, Truncation(b"", b""))


def truncation_entry(
    key: tuple[int, int],
    end_offset: int,
    end: Prefix,
    truncation: Truncation,
    *,
    is_mended: bool = False,
) -> Entry:
    """Return the entry that ends a replicated range before its last entries here."""
    flags = _IS_TRUNCATED | (_IS_MENDED if is_mended else 0)
    head = _encode_end(end, flags) + _LENGTH.pack(len(truncation.writers))
    return Entry(
        EntryKind.SETTLED,
        *key,
        end_offset,
        0,
        b"".join((head, truncation.writers, truncation.staged)),
    )


def _encode_end(end: Prefix, flags: int) -> bytes:
    return _SETTLED.pack(_VERSION, flags, end.seq, end.digest or NO_DIGEST)


@dataclass(frozen=True, slots=True)
class Settled:
    """The content of a SETTLED entry; `truncation` is None if all entries here count.

    `is_mended`: damaged entries were mended, and all entries up to the end could be read.
    """

    end: Prefix
    truncation: Truncation | None
    is_mended: bool = False


def decode_settled(entry: Entry) -> Settled:
    """Return the content of a SETTLED entry. Raises LogCorruptionError."""
    version, flags, seq, digest = unpack_at(_SETTLED, entry.body, 0)
    if version != _VERSION:
        raise LogCorruptionError("the end of a replicated range has an unknown version")
    end = decoded_prefix(seq, digest)
    if not flags & _IS_TRUNCATED:
        return Settled(end, None)
    (writers_length,) = unpack_at(_LENGTH, entry.body, _SETTLED.size)
    records = memoryview(entry.body)[_SETTLED.size + _LENGTH.size :]
    truncation = Truncation(records[:writers_length], records[writers_length:])
    return Settled(end, truncation, is_mended=bool(flags & _IS_MENDED))
