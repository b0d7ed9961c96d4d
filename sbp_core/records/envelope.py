"""The envelope of a record batch: the part that every server and client reads alike.

    | bytes | field                                                              |
    |--------|--------------------------------------------------------------------|
    | 1      | magic 0x22                                                         |
    | 8      | base offset, i64: written in place by the range server             |
    | 4      | length of the metadata, i32                                        |
    | ...    | RecordBatchMeta (schemas/record_batch.fbs), padded with zero bytes |
    | ...    | body, in the encoding that the metadata names                      |

Numbers are big-endian. The property `encoding` of the metadata names the form of the body, and
`body_bytes` is its length in decimal, so that batches can stand back to back. A batch of columns
has two more properties (encodings/columns_encoding.py). The padding makes fixed part and metadata a
multiple of 8 bytes together: in an aligned buffer bodies are aligned.

Without an encoding the body is a record sequence, as other clients write it:

    record = metadata length i32 | body length i32 | RecordMeta | body, repeated to the end

Nothing says how long the sequence is, and writers disagree on whether `last_offset_delta` is the
number of records or one less, so records are counted. A record begins with the high byte of a small
length, which is never that of a batch's magic: so a batch behind a sequence shows where it ends.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Final

import msgspec

from sbp_core import limits
from sbp_core.errors import DamagedBatchError, HeaderError, RecordBatchError
from sbp_core.record_sizes import LARGEST
from sbp_core.records.batch_meta import BatchMeta, encode_meta, read_meta
from sbp_core.wire.checksum import Buffer

if TYPE_CHECKING:
    import pyarrow as pa

MAGIC: Final = 0x22
OFFSET_MAX: Final = 2**63 - 1
BODY_ALIGNMENT_BYTES: Final = 8

_FIXED: Final = struct.Struct(">Bqi")  # magic, base offset, length of the metadata
HEAD_BYTES_MIN: Final = _FIXED.size
_BASE_OFFSET: Final = struct.Struct(">q")
_RECORD_LENGTHS: Final = struct.Struct(">ii")
"""The start of a record of a sequence: the lengths of its metadata and of its body."""
_BASE_OFFSET_POSITION: Final = 1
_DIGEST_BYTES: Final = 16
_BODY_BYTES_DIGITS_MAX: Final = len(str(LARGEST.batch_bytes))


class Envelope(msgspec.Struct, frozen=True):
    """The metadata of a record batch; `body`, a view, has the records, still encoded.

    `base_offset` is the offset of its first record, `length_bytes` the size of the whole batch,
    `base_timestamp_ms` in ms (UTC). `encoding` is "rows" or "columns", None for a record sequence;
    `decode_batch` and `decode_columns` decode the body. A batch of columns names its schema by
    `schema_fingerprint`, and may name a `timestamp_column` with the times of the records. For a
    record sequence `record_count` was counted, and may differ from the `declared_count`. A batch
    from which columns were left out names its columns by `projection` (projection.py). It may have
    `statistics` (statistics.py). A skipped batch has no body and no records, although it counts
    them; its body had `skipped_bytes`, which is None for all other batches (skipping.py). A batch
    that was made of a table has its records in `rows`, and no body.
    """

    stream_id: int
    base_offset: int
    record_count: int
    base_timestamp_ms: int
    encoding: str | None
    body: memoryview
    length_bytes: int
    schema_fingerprint: str | None = None
    timestamp_column: str | None = None
    declared_count: int = 0
    projection: str | None = None
    statistics: str | None = None
    skipped_bytes: int | None = None
    rows: pa.RecordBatch | None = None

    @property
    def is_skipped(self) -> bool:
        """Whether its records were left out, because the reader wants none of them."""
        return self.skipped_bytes is not None

    @property
    def columns_fingerprint(self) -> str | None:
        """The fingerprint of the columns that the body has: all of its schema, or some."""
        return self.projection or self.schema_fingerprint

    @property
    def place(self) -> str:
        """Where the batch is, for a message."""
        return f"record batch at offset {self.base_offset} of stream {self.stream_id}"

    @property
    def end_offset(self) -> int:
        """Offset after the last record."""
        return self.base_offset + self.record_count

    def damage(self, cause: object) -> DamagedBatchError:
        """Return the error of a batch that cannot be decoded."""
        return DamagedBatchError(str(cause), self.stream_id, self.base_offset, self.end_offset)


def encode_envelope(
    body: Sequence[Buffer],
    *,
    stream_id: int,
    record_count: int,
    base_timestamp_ms: int,
    encoding: str,
    base_offset: int = 0,
    schema_fingerprint: str | None = None,
    timestamp_column: str | None = None,
    statistics: str | None = None,
    origin: str | None = None,
) -> bytes:
    """Return a whole record batch; `body` is a sequence of buffers, joined without padding.

    `origin` names the batch at its sender: batches with equal records differ by it.

    Raises RecordBatchError when the batch would break a limit.
    """
    meta = BatchMeta(
        stream_id,
        record_count,
        base_timestamp_ms,
        encoding,
        str(sum(len(part) for part in body)),
        schema_fingerprint,
        timestamp_column,
        statistics,
        projection=None,
        skipped=None,
        origin=origin,
    )
    head = encode_head(meta, base_offset)
    length_bytes = len(head) + sum(map(len, body))
    if length_bytes > LARGEST.batch_bytes:
        raise RecordBatchError(
            f"{record_count} records make a batch of {length_bytes} bytes, more than the"
            f" {LARGEST.batch_bytes} that one may have; spread them over several batches"
        )
    return b"".join((head, *body))


def encode_head(meta: BatchMeta, base_offset: int) -> bytes:
    """Return what is in front of the body of a record batch; not of a record sequence.

    Raises RecordBatchError when the batch would break a limit.
    """
    _check_record_count(meta.record_count)
    check_offsets(base_offset, meta.record_count)
    encoded_meta = encode_meta(meta)
    encoded_meta += bytes(-(_FIXED.size + len(encoded_meta)) % BODY_ALIGNMENT_BYTES)
    return _FIXED.pack(MAGIC, base_offset, len(encoded_meta)) + encoded_meta


def decode_envelope(data: Buffer, position: int = 0) -> Envelope:
    """Return the record batch that starts at `position`; its body is a view of `data`.

    Without `body_bytes` in its metadata the body reaches to the end of `data`, that of a record
    sequence to the next batch.
    Raises RecordBatchError when any part of it lies outside the data or breaks a limit.
    """
    envelope = _read_envelope(memoryview(data).cast("B"), position, LARGEST.batch_bytes)
    check_offsets(envelope.base_offset, envelope.record_count)
    return envelope


def peek_batch(data: Buffer, bytes_max: int = LARGEST.batch_bytes) -> Envelope:
    """Check `data` as exactly one record batch, as a server does that stores it unread.

    The base offset may be anything, for the server is about to assign it. The body is not touched,
    but for a record sequence, whose records are counted.
    SPEC "APPEND". Raises RecordBatchError, also if it has more than `bytes_max`.
    """
    view = memoryview(data).cast("B")
    envelope = _read_envelope(view, 0, bytes_max)
    if envelope.length_bytes != len(view):
        raise RecordBatchError(
            f"record batch of {envelope.length_bytes} bytes in {len(view)} bytes of data;"
            " expected one batch and nothing after it"
        )
    return envelope


def sequence_places(view: memoryview, position: int) -> Iterator[tuple[int, int, int]]:
    """Yield where the metadata of each record of a sequence starts, its body, and the next record.

    The sequence reaches from `position` to the end of the data, or to the next batch. Raises
    RecordBatchError when a length leads outside the data.

    A server counts records on its event loop, so this does as little as possible.
    """
    size_bytes, unpack = len(view), _RECORD_LENGTHS.unpack_from
    while position < size_bytes and view[position] != MAGIC:
        start = position + _RECORD_LENGTHS.size
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


def write_base_offset(buffer: bytearray | memoryview, base_offset: int) -> None:
    """Write the offset of the first record into an encoded record batch, in place.

    Raises RecordBatchError when `buffer` starts no batch or the offset is out of bounds.
    """
    view = memoryview(buffer).cast("B")
    if len(view) < _FIXED.size or view[0] != MAGIC:
        raise RecordBatchError("no record batch to write a base offset into")
    check_offsets(base_offset, 1)
    _BASE_OFFSET.pack_into(view, _BASE_OFFSET_POSITION, base_offset)


def digest_batch(batch: memoryview) -> bytes:
    """Return 16 bytes of the SHA-256 of a record batch without its base offset.

    The server fills in the base offset, so a retry has the same digest. A cryptographic hash: no
    writer can make another batch with the same digest.
    """
    found = sha256(batch[:_BASE_OFFSET_POSITION])
    found.update(batch[_BASE_OFFSET_POSITION + _BASE_OFFSET.size :])
    return found.digest()[:_DIGEST_BYTES]


def are_same(batch: memoryview, other: memoryview) -> bool:
    """Whether two record batches are equal except for the base offset."""
    end = _BASE_OFFSET_POSITION + _BASE_OFFSET.size
    return (
        batch[:_BASE_OFFSET_POSITION] == other[:_BASE_OFFSET_POSITION]
        and batch[end:] == other[end:]
    )


def with_base_offset(batch: memoryview, base_offset: int) -> tuple[bytes, memoryview]:
    """Return a record batch with another base offset, in two pieces; its records are not copied."""
    end = _BASE_OFFSET_POSITION + _BASE_OFFSET.size
    head = bytes(batch[:_BASE_OFFSET_POSITION]) + _BASE_OFFSET.pack(base_offset)
    return head, batch[end:]


def check_offsets(base_offset: int, record_count: int) -> None:
    """Raise RecordBatchError unless the records' offsets are in 0 .. 2**63 - 2.

    The batch after them needs an offset too.
    """
    if not 0 <= base_offset <= OFFSET_MAX - record_count:
        raise RecordBatchError(
            f"base offset {base_offset} for {record_count} records: offsets go from 0 to"
            f" {OFFSET_MAX - 1}"
        )


def _check_record_count(record_count: int) -> None:
    if not 1 <= record_count <= limits.BATCH_RECORDS_MAX:
        raise RecordBatchError(
            f"record batch of {record_count} records; expected 1 to {limits.BATCH_RECORDS_MAX}"
        )


def announced_head_bytes(front: memoryview) -> int:
    """Return where the body of a batch starts, of which `front` has HEAD_BYTES_MIN; not checked."""
    _, _, meta_bytes = _FIXED.unpack_from(front)
    return _FIXED.size + int(meta_bytes)


def read_head(view: memoryview, position: int) -> tuple[BatchMeta, int, int]:
    """Return the metadata of the batch at `position`, its base offset, and where its body starts.

    Raises RecordBatchError.
    """
    available_bytes = len(view) - position
    if position < 0 or available_bytes < _FIXED.size:
        raise RecordBatchError(
            f"record batch at byte {position} of {len(view)}: cut off, at least {_FIXED.size}"
            " bytes are needed"
        )
    magic, base_offset, meta_bytes = _FIXED.unpack_from(view, position)
    if magic != MAGIC:
        raise RecordBatchError(
            f"record batch at byte {position} has magic {magic:#04x}; expected {MAGIC:#04x}"
        )
    meta_bytes_max = min(available_bytes - _FIXED.size, limits.BATCH_METADATA_BYTES_MAX)
    if not 0 < meta_bytes <= meta_bytes_max:
        raise RecordBatchError(
            f"record batch at byte {position} announces {meta_bytes} bytes of metadata;"
            f" expected 1 to {meta_bytes_max}"
        )
    body_start = position + _FIXED.size + meta_bytes
    try:
        meta = read_meta(bytes(view[position + _FIXED.size : body_start]))
    except HeaderError as error:
        raise RecordBatchError(
            f"metadata of the record batch at byte {position}: {error}"
        ) from error
    return meta, base_offset, body_start


def _read_envelope(view: memoryview, position: int, bytes_max: int) -> Envelope:
    meta, base_offset, body_start = read_head(view, position)
    record_count, body_bytes = meta.record_count, len(view) - body_start
    if meta.body_bytes is not None:
        body_bytes = _parse_body_bytes(meta.body_bytes, body_bytes_max=body_bytes)
    if meta.encoding is None:
        record_count, end = _measure_sequence(view[: body_start + body_bytes], body_start)
        body_bytes = end - body_start
    _check_record_count(record_count)
    length_bytes = body_start - position + body_bytes
    if length_bytes > bytes_max:
        raise RecordBatchError(
            f"record batch of {length_bytes} bytes; at most {bytes_max} are allowed"
        )
    return Envelope(
        meta.stream_id,
        base_offset,
        record_count,
        meta.base_timestamp_ms,
        meta.encoding,
        view[body_start : body_start + body_bytes],
        length_bytes,
        meta.schema_fingerprint,
        meta.timestamp_column,
        meta.record_count,
        meta.projection,
        meta.statistics,
        _maybe_skipped_bytes(meta, body_bytes),
    )


def _maybe_skipped_bytes(meta: BatchMeta, body_bytes: int) -> int | None:
    """Return how long the body was that is not there; None unless the batch was skipped."""
    if meta.skipped is None:
        return None
    if body_bytes or meta.encoding is None:
        raise RecordBatchError(
            f"record batch that was skipped, and has a body of {body_bytes} bytes; expected none"
        )
    return _parse_body_bytes(meta.skipped, body_bytes_max=LARGEST.batch_bytes)


def _measure_sequence(view: memoryview, position: int) -> tuple[int, int]:
    """Return (number of records, where they end).

    Raises RecordBatchError, also when there are more than limits.SEQUENCE_RECORDS_MAX.
    """
    count, end = 0, position
    for _, _, end in sequence_places(view, position):  # noqa: B007 - the last one counts
        count += 1
        if count > limits.SEQUENCE_RECORDS_MAX:
            raise RecordBatchError(
                f"a record sequence of more than {limits.SEQUENCE_RECORDS_MAX} records; spread them"
                " over several batches"
            )
    return count, end


def _parse_body_bytes(text: str, *, body_bytes_max: int) -> int:
    is_decimal = text.isascii() and text.isdecimal() and len(text) <= _BODY_BYTES_DIGITS_MAX
    if not is_decimal or int(text) > body_bytes_max:
        raise RecordBatchError(
            f"record batch announces a body of {text[:32]!r} bytes; expected a decimal number up"
            f" to {body_bytes_max}, the bytes that follow its metadata"
        )
    return int(text)
