"""The record sequence: the body of batches that name no encoding, as other clients write them.

    record = metadata length i32 | body length i32 | RecordMeta | body, repeated to the end

Numbers are big-endian. Nothing says how long the sequence is, and writers disagree on whether
`last_offset_delta` is the number of records or one less, so records are counted. A record begins
with the high octet of a small length, which is never that of a batch's magic: so a batch behind a
sequence shows where it ends.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from sbp_core import limits
from sbp_core.errors import HeaderError, RecordBatchError
from sbp_core.wire._generated.record_batch import LAYOUTS, RecordMeta
from sbp_core.wire.flat import Schema

BATCH_MAGIC: Final = 0x22

_LENGTHS: Final = struct.Struct(">ii")
_SCHEMA: Final = Schema(LAYOUTS, bytes_max=limits.BATCH_METADATA_BYTES_MAX)


@dataclass(frozen=True, slots=True)
class SequenceRecord:
    """One record: its metadata, its body, and where the next one starts."""

    meta: memoryview
    body: memoryview
    end: int


def walk_sequence(view: memoryview, position: int) -> Iterator[SequenceRecord]:
    """Yield the records from `position` to the end of the data, or to the next batch.

    Raises RecordBatchError when a length leads outside the data.
    """
    for start, body_start, end in _places(view, position):
        yield SequenceRecord(view[start:body_start], view[body_start:end], end)


def measure_sequence(view: memoryview, position: int) -> tuple[int, int]:
    """Return (number of records, where they end).

    Raises RecordBatchError, also when there are more than limits.SEQUENCE_RECORDS_MAX.
    """
    count, end = 0, position
    for _, _, end in _places(view, position):  # noqa: B007 - the last one counts
        count += 1
        if count > limits.SEQUENCE_RECORDS_MAX:
            raise RecordBatchError(
                f"a record sequence of more than {limits.SEQUENCE_RECORDS_MAX} records; spread them"
                " over several batches"
            )
    return count, end


def _places(view: memoryview, position: int) -> Iterator[tuple[int, int, int]]:
    """Yield where the metadata of each record starts, its body, and the next record.

    A server counts records while others wait for it, so this does as little as it can.
    """
    size_bytes, unpack = len(view), _LENGTHS.unpack_from
    while position < size_bytes and view[position] != BATCH_MAGIC:
        start = position + _LENGTHS.size
        if start > size_bytes:
            raise RecordBatchError(f"record at byte {position}: its lengths are cut off")
        meta_bytes, body_bytes = unpack(view, position)
        body_start = start + meta_bytes
        end = body_start + body_bytes
        if meta_bytes < 0 or body_bytes < 0 or end > size_bytes:
            raise RecordBatchError(
                f"record at byte {position} announces {meta_bytes} bytes of metadata and a body"
                f" of {body_bytes}; {size_bytes - start} bytes are left"
            )
        yield start, body_start, end
        position = end


def decode_record_meta(record: SequenceRecord) -> RecordMeta:
    """Return a record's metadata, an empty one if it has none. Raises RecordBatchError."""
    if not record.meta:
        return RecordMeta()
    try:
        return _SCHEMA.decode(RecordMeta, record.meta)
    except HeaderError as error:
        raise RecordBatchError(
            f"metadata of a record that ends at {record.end}: {error}"
        ) from error


def encode_sequence_record(meta: RecordMeta, body: bytes) -> bytes:
    """Return one record."""
    encoded_meta = _SCHEMA.encode(meta)
    return _LENGTHS.pack(len(encoded_meta), len(body)) + encoded_meta + body
