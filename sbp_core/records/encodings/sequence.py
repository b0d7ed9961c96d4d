"""Rows as record sequences and back, as ElasticStream's clients of April 2023 write and read them.

The envelope has the form of a sequence. A row is a record:

    | column    | in a record                                                               |
    |-----------|---------------------------------------------------------------------------|
    | key       | the header `Keys`, which is text; a null has none                         |
    | value     | the body                                                                  |
    | headers   | `Tag`, `RecordId` and `CreatedAt`: headers; other names: properties; text |
    | timestamp | milliseconds, as the difference from the base timestamp of its batch      |

The names of headers are an enumeration there: a client of that time fails on a header with any
other name. Properties are free. On reading, headers come before properties.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sbp_core import limits
from sbp_core.errors import HeaderError, RecordBatchError
from sbp_core.records.arrow_body import Compression, check_values, record_sizes
from sbp_core.records.encodings import PlainEncoding, register
from sbp_core.records.encodings.rows import ROWS_SCHEMA, check_rows_schema
from sbp_core.records.envelope import (
    RECORD_LENGTHS,
    Envelope,
    encode_sequence_envelope,
    sequence_places,
)
from sbp_core.wire._generated import LAYOUTS, KeyValue, RecordMeta
from sbp_core.wire.flat import Schema

_SCHEMA: Final = Schema(LAYOUTS, bytes_max=limits.BATCH_METADATA_BYTES_MAX)

KEY_HEADER: Final = "Keys"
_HEADERS: Final = frozenset({"Tag", "RecordId", "CreatedAt"})
_INT32_MIN, _INT32_MAX = -(2**31), 2**31 - 1
_TIME_MS_MIN: Final = -(2**63 // 1000)
"""The earliest time in ms whose microseconds fit into 64 bits."""
_TEXTS_FACTOR: Final = 8
_FRAME_BYTES: Final = 128
"""Bytes of a record beside its value are less than this, plus the factor times its key and headers
as `record_sizes` counts them; the bytes of the envelope are less, too."""
TEXTS_BYTES_SAFE: Final = limits.BATCH_METADATA_BYTES_MAX // _TEXTS_FACTOR - _FRAME_BYTES
"""Key and headers of this size, counted so, always fit into the metadata of a record."""

_NO_VALUE: Final = (
    "a record without a value (null), which a record sequence does not have; write an empty one,"
    " for example with coalesce(value, X'')"
)
_NO_HEADER: Final = (
    "no value (null), which clients of record sequences leave out or fail on; write an empty one"
)
_NO_TEXT: Final = (
    "not UTF-8, and a record sequence has text there; encode it, for example with base64, or put it"
    " into the value"
)
_NO_ROOM: Final = (
    f"a record whose key and headers take more than the {limits.BATCH_METADATA_BYTES_MAX} bytes of"
    " metadata that a record of a sequence may have; put them into the value"
)

_Indexes = npt.NDArray[np.int64]
_NONE: Final = np.zeros(0, dtype=np.int64)
_Headers = Sequence[tuple[str, bytes | None]] | None


class SequenceEncoding(PlainEncoding):
    """The body is a record sequence, and the envelope names no encoding."""

    name = None

    def check_count(self, envelope: Envelope) -> None:
        """Compare what is declared with the records, which were counted.

        Fewer may be declared, as writers disagree on whether it is the number or the last index.
        Raises RecordBatchError.
        """
        if not 0 <= envelope.declared_count <= envelope.record_count:
            raise RecordBatchError(
                f"a record batch declares {envelope.declared_count} records, and its sequence has"
                f" {envelope.record_count}"
            )

    def check_fit(self, rows: pa.RecordBatch) -> None:
        """Raise RecordBatchError for the first row that `find_unfit` returns."""
        unfit = find_unfit(rows)
        if unfit:
            indexes, error = unfit[0]
            if rows.num_rows == 1:
                raise error
            raise RecordBatchError(f"row {indexes[0]} of {rows.num_rows}: {error}")

    def encode(
        self, rows: pa.RecordBatch, *, stream_id: int, timestamp_ms: int, compression: Compression
    ) -> list[bytes]:
        """Return record batches, as many as `encode_sequences` does; they are not compressed."""
        times_ms = _times_ms(rows.column("timestamp"), timestamp_ms)
        keys, values, headers = (rows.column(name).to_pylist() for name in ROWS_SCHEMA.names[:3])
        sizes = np.fromiter(map(len, values), np.int64, len(values)) + _around_values(rows)
        encoded = []
        for start, stop in pairwise([*_starts(sizes.tolist(), times_ms), rows.num_rows]):
            base_ms = times_ms[start]
            records = [
                encode_sequence_record(
                    _meta(at - start, times_ms[at] - base_ms, keys[at], headers[at]), values[at]
                )
                for at in range(start, stop)
            ]
            encoded.append(
                encode_sequence_envelope(records, stream_id=stream_id, base_timestamp_ms=base_ms)
            )
        return encoded

    def decode(self, envelope: Envelope) -> pa.RecordBatch:
        """Return the records of a sequence as rows of ROWS_SCHEMA. Raises DamagedBatchError."""
        keys: list[bytes | None] = []
        values: list[bytes] = []
        headers: list[list[tuple[str, bytes | None]]] = []
        timestamps_us: list[int] = []
        try:
            for start, body_start, end in sequence_places(envelope.body, 0):
                meta = _decode_meta(envelope.body[start:body_start], end)
                pairs = [(item.key or "", _maybe_bytes(item.value)) for item in meta.headers]
                at = next((at for at, (name, _) in enumerate(pairs) if name == KEY_HEADER), None)
                keys.append(None if at is None else pairs.pop(at)[1])
                pairs += [(item.key or "", _maybe_bytes(item.value)) for item in meta.properties]
                headers.append(pairs)
                values.append(bytes(envelope.body[body_start:end]))
                timestamps_us.append((envelope.base_timestamp_ms + meta.timestamp_delta) * 1000)
            contents = keys, values, headers, timestamps_us
            columns = [
                pa.array(content, field.type)
                for content, field in zip(contents, ROWS_SCHEMA, strict=True)
            ]
        except (RecordBatchError, pa.ArrowException, OverflowError) as error:
            raise envelope.damage(f"it cannot be shown as rows: {error}") from error
        return pa.RecordBatch.from_arrays(columns, schema=ROWS_SCHEMA)


def encode_sequences(rows: pa.RecordBatch, *, stream_id: int, timestamp_ms: int) -> list[bytes]:
    """Return rows of ROWS_SCHEMA as record batches whose bodies are record sequences.

    There is one, unless its records would be too many, too large together, or more than 2^31 ms
    apart. `timestamp_ms`, milliseconds since the epoch, is for rows without a timestamp;
    microseconds are cut off. Raises RecordBatchError for rows that `find_unfit` returns.
    """
    check_rows_schema(rows)
    check_values(rows)
    encoding = SequenceEncoding()
    encoding.check_fit(rows)
    return encoding.encode(rows, stream_id=stream_id, timestamp_ms=timestamp_ms, compression="none")


def find_unfit(rows: pa.RecordBatch) -> list[tuple[_Indexes, RecordBatchError]]:
    """Return which rows of ROWS_SCHEMA a record sequence cannot hold, and why."""
    key, value, headers, _ = rows.columns
    nulls = np.flatnonzero(value.is_null()) if value.null_count else _NONE
    items = headers.items
    empty = _rows_of(headers, np.flatnonzero(items.is_null()) if items.null_count else _NONE)
    keys, texts = _not_text(key), _rows_of(headers, _not_text(items))
    unread = np.concatenate((keys, texts))
    large = np.setdiff1d(np.flatnonzero(texts_bytes(rows) > TEXTS_BYTES_SAFE), unread)
    no_room = [at for at in large.tolist() if not _has_room(key[at], headers[at])]
    found = (
        (nulls, _NO_VALUE),
        (empty, f"a header with {_NO_HEADER}"),
        (keys, f"a key that is {_NO_TEXT}"),
        (texts, f"a header with a value that is {_NO_TEXT}"),
        (np.array(no_room, dtype=np.int64), _NO_ROOM),
    )
    return [(indexes, RecordBatchError(why)) for indexes, why in found if indexes.size]


def texts_bytes(rows: pa.RecordBatch) -> _Indexes:
    """Return how many bytes key and headers of each row take, in Arrow's form."""
    return record_sizes(rows.select(["key", "headers"]))


def encode_sequence_record(meta: RecordMeta, body: bytes) -> bytes:
    """Return one record."""
    encoded_meta = _SCHEMA.encode(meta)
    return RECORD_LENGTHS.pack(len(encoded_meta), len(body)) + encoded_meta + body


def _decode_meta(encoded: memoryview, end: int) -> RecordMeta:
    """Return the metadata of a record, an empty one if it has none. Raises RecordBatchError."""
    if not encoded:
        return RecordMeta()
    try:
        return _SCHEMA.decode(RecordMeta, encoded)
    except HeaderError as error:
        raise RecordBatchError(f"metadata of a record that ends at {end}: {error}") from error


def _around_values(rows: pa.RecordBatch) -> _Indexes:
    """Return the bytes of each record beside its value, at most."""
    texts = np.minimum(_TEXTS_FACTOR * texts_bytes(rows), limits.BATCH_METADATA_BYTES_MAX)
    return texts + _FRAME_BYTES


def _starts(sizes: Sequence[int], times_ms: Sequence[int]) -> Iterator[int]:
    """Yield the indexes of the rows that begin a batch; `sizes` are in bytes, and not too small."""
    start, used_bytes = 0, _FRAME_BYTES
    for at, (size_bytes, time_ms) in enumerate(zip(sizes, times_ms, strict=True)):
        is_near = _INT32_MIN <= time_ms - times_ms[start] <= _INT32_MAX
        is_fitting = used_bytes + size_bytes <= limits.BATCH_BYTES_MAX
        is_countable = at - start < limits.SEQUENCE_RECORDS_MAX
        if at == 0 or not (is_near and is_fitting and is_countable):
            yield at
            start, used_bytes = at, _FRAME_BYTES
        used_bytes += size_bytes


def _meta(offset_delta: int, time_delta_ms: int, key: bytes | None, pairs: _Headers) -> RecordMeta:
    headers = [] if key is None else [KeyValue(KEY_HEADER, key.decode())]
    properties: list[KeyValue] = []
    for name, value in pairs or ():
        item = KeyValue(name, (value or b"").decode())
        (headers if name in _HEADERS else properties).append(item)
    return RecordMeta(offset_delta, time_delta_ms, tuple(headers), tuple(properties))


def _has_room(key: pa.Scalar, headers: pa.Scalar) -> bool:
    """Whether the metadata of a record can be written, and read again."""
    try:
        meta = _meta(_INT32_MAX, _INT32_MAX, key.as_py(), headers.as_py())
        encoded = _SCHEMA.encode(meta)
        _SCHEMA.decode(RecordMeta, encoded)
    except (HeaderError, UnicodeDecodeError):
        return False
    return len(encoded) <= limits.BATCH_METADATA_BYTES_MAX


def _times_ms(times: pa.Array, timestamp_ms: int) -> list[int]:
    times_ms = np.maximum(times.cast(pa.int64()).fill_null(0).to_numpy() // 1000, _TIME_MS_MIN)
    times_ms[times.is_null().to_numpy(zero_copy_only=False)] = timestamp_ms
    found: list[int] = times_ms.tolist()
    return found


def _not_text(texts: pa.Array) -> _Indexes:
    """Return the indexes of values that are no UTF-8."""
    try:
        texts.cast(pa.string())
    except pa.ArrowInvalid:
        wrong = [at for at, text in enumerate(texts.to_pylist()) if not _is_text(text)]
        return np.array(wrong, dtype=np.int64)
    return _NONE


def _rows_of(headers: pa.Array, entries: _Indexes) -> _Indexes:
    """Return the indexes of rows that have one of the entries, each once."""
    if not entries.size:
        return _NONE
    rows = np.unique(np.searchsorted(headers.offsets.to_numpy(), entries, side="right") - 1)
    return rows[(rows >= 0) & (rows < len(headers))]


def _is_text(text: bytes | None) -> bool:
    try:
        (text or b"").decode()
    except UnicodeDecodeError:
        return False
    return True


def _maybe_bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


register(SequenceEncoding())
