"""Entries: the layout byte by byte, and each way in which bytes are refused."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c

from sbp_core.errors import LogCorruptionError, LogError
from sbp_core.log.entry import Commit, Entry, decode_commit, decode_entry, encode_entry
from sbp_core.record_sizes import LARGEST
from sbp_core.segment_format import ENTRY_HEADER_BYTES, EntryKind, decode_entry_header

ENTRY = Entry(EntryKind.BATCH, -7, 3, 2**40, 5, b"body bytes")
POSITION = 2**33 + 1


def encoded(entry: Entry = ENTRY, position: int = POSITION) -> bytes:
    return b"".join(encode_entry(entry, position))


def with_kind(kind: int) -> bytes:
    fields = struct.pack(">BqiqI", kind, 1, 2, 3, 4)
    crc = crc32c(fields, crc32c(struct.pack(">QI", POSITION, len(fields))))
    return struct.pack(">III", len(fields), crc, crc) + fields


def test_layout_is_the_documented_one() -> None:
    fields = struct.pack(">BqiqI", 1, -7, 3, 2**40, 5)
    length = len(fields) + len(b"body bytes")
    header_crc = crc32c(struct.pack(">QI", POSITION, length) + fields)
    crc = crc32c(struct.pack(">QI", POSITION, length) + fields + b"body bytes")
    assert encoded() == struct.pack(">III", length, header_crc, crc) + fields + b"body bytes"
    assert ENTRY_HEADER_BYTES == 37
    assert [kind.value for kind in EntryKind] == list(range(16))


def test_the_body_is_passed_on_not_copied() -> None:
    body = memoryview(bytearray(1000))
    buffers = encode_entry(Entry(EntryKind.STAGED, 1, 0, 0, 1, body), 0)
    assert buffers[1] is body
    assert len(encode_entry(Entry(EntryKind.SEAL, 1, 0, 0, 0), 0)) == 1


def test_the_greatest_length_is_accepted() -> None:
    largest = Entry(EntryKind.BATCH, 1, 0, 0, 1, bytes(LARGEST.frame_bytes - ENTRY_HEADER_BYTES))
    header = encode_entry(largest, POSITION)[0]
    assert decode_entry_header(header, POSITION).length == LARGEST.frame_bytes


def test_an_unknown_kind_is_no_damage() -> None:
    assert decode_entry(memoryview(with_kind(15)), POSITION).kind is EntryKind.COPY_BEGUN
    with pytest.raises(LogError, match=f"position {POSITION} is of kind 16.*newer") as caught:
        decode_entry(memoryview(with_kind(16)), POSITION)
    assert not isinstance(caught.value, LogCorruptionError)


COMMIT = Commit(POSITION - 9, 1_700_000_000_123)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        bytes(COMMIT.to_entry().body)[:-1],
        bytes(COMMIT.to_entry().body) + b"\0",
        bytes(32),
        Commit(POSITION + 1, 0).to_entry().body,
    ],
)
def test_an_impossible_commit_is_refused(body: bytes) -> None:
    with pytest.raises(LogCorruptionError, match="COMMIT"):
        decode_commit(Entry(EntryKind.COMMIT, 0, 0, 0, 0, body), POSITION)
