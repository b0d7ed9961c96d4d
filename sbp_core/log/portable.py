"""Encode numbered entries of replicated ranges for the way between servers.

The *portable form* of an entry leaves out positions in one log (`states/replicated_entries.py`).
Bytes, big-endian, one entry after the other:

    0-3    length       u32   of the content
    4-7    crc          u32   CRC-32C of bytes 0-3, of all fields behind it, and of the content
    8      kind         u8    EntryKind
    9-16   stream_id    i64
    17-20  range_index  i32
    21-28  base_offset  i64
    29-32  count        u32   records
    33-    content

This is version 1 of the replication protocol (`session/negotiation.py`, REPLICATION_VERSIONS).
"""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Final

from sbp_core.errors import LogCorruptionError, LogError
from sbp_core.log.entry import Entry
from sbp_core.log.states.replicated_entries import NUMBERED_KINDS, portable
from sbp_core.log.states.staged_entries import (
    BatchColumns,
    decode_portable_end,
    decode_prefix,
    encode_end,
    portable_end,
    prefix_length,
)
from sbp_core.log.states.staged_states import StagedStates
from sbp_core.segment_format import EntryKind
from sbp_core.wire.checksum import Buffer, crc32c

_CHECKS: Final = struct.Struct(">II")
_FIELDS: Final = struct.Struct(">BqiqI")
_CHECKED: Final = struct.Struct(">IBqiqI")
"""The length and the fields, which the checksum covers together with the content."""
_HEADER_BYTES: Final = _CHECKS.size + _FIELDS.size
_LENGTH_BYTES: Final = 4
_KINDS: Final = {int(kind): kind for kind in NUMBERED_KINDS}


def encode_portable(entry: Entry) -> list[Buffer]:
    """Return the buffers of a numbered entry; the body is not copied.

    Raises LogCorruptionError for the end of transactions in an unknown form.
    """
    own = portable(entry)
    content = [part for part in (own.prefix, own.body) if part]
    length = len(own.prefix) + len(own.body)
    checked = _CHECKED.pack(
        *(length, own.kind, own.stream_id, own.range_index, own.base_offset, own.count)
    )
    crc = crc32c(content, crc32c((checked,)))
    return [_CHECKS.pack(length, crc) + checked[_LENGTH_BYTES:], *content]


def decode_portable(data: memoryview) -> list[Entry]:
    """Return the entries in `data`; their bodies are views into it.

    Raises LogCorruptionError unless `data` consists of intact entries in portable form.
    """
    entries = []
    position = 0
    while position < len(data):
        start = position + _HEADER_BYTES
        if start > len(data):
            raise LogCorruptionError(f"an entry is cut off after {len(data) - position} bytes")
        length, crc = _CHECKS.unpack_from(data, position)
        end = start + length
        if end > len(data):
            raise LogCorruptionError(
                f"an entry with {length} bytes of content is cut off after {len(data) - start}"
            )
        behind = position + _CHECKS.size
        if crc != crc32c((data[position : position + _LENGTH_BYTES], data[behind:end])):
            raise LogCorruptionError("an entry from another server has a wrong checksum")
        kind, stream_id, range_index, base_offset, count = _FIELDS.unpack_from(data, behind)
        if kind not in _KINDS:
            raise LogCorruptionError(f"an entry of kind {kind} is not one that is replicated")
        entry = Entry(_KINDS[kind], stream_id, range_index, base_offset, count, data[start:end])
        entries.append(_as_appended(entry))
        position = end
    return entries


def _as_appended(entry: Entry) -> Entry:
    """Return an entry as it is appended: the prefix of a STAGED entry beside its body."""
    if entry.kind is EntryKind.TXN_END and portable_end(entry) != entry.body:
        raise LogCorruptionError("the end of a transaction has places of another log")
    if entry.kind is not EntryKind.STAGED:
        return entry
    body = memoryview(entry.body)
    length = prefix_length(decode_prefix(body)[0])
    return replace(entry, prefix=bytes(body[:length]), body=body[length:])


def to_local(entry: Entry, staged: StagedStates) -> Entry:
    """Return the entry to append to this log for an entry in portable form.

    The end of transactions publishes the batches that are `staged` here. Raises LogError if these
    are other batches than the entry names, LogCorruptionError for a damaged entry.
    """
    if entry.kind is not EntryKind.TXN_END:
        return entry
    is_commit, txn_ids = decode_portable_end(entry)
    if not is_commit:
        return entry
    stagings = [
        staged.maybe_staging(entry.stream_id, entry.range_index, txn_id) for txn_id in txn_ids
    ]
    batches = [BatchColumns() if each is None else each.batches for each in stagings]
    record_count = sum(sum(each.record_counts) for each in batches)
    if record_count != entry.count:
        raise LogError(
            f"{entry.count} records are to be published in range {entry.range_index} of stream"
            f" {entry.stream_id}, and {record_count} are staged here under their transactions"
        )
    return replace(entry, body=encode_end(txn_ids, batches, is_commit=True))
