"""Record batches of Kafka as rows, and rows as record batches of Kafka.

Offsets, keys, values, headers and times in ms are the same on both sides. A record without headers
has none in a stream. A time that Kafka calls unknown is null.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from sbp_core import limits
from sbp_core.errors import RecordBatchError
from sbp_core.records import ROWS_SCHEMA, StreamSchema
from sbp_core.records.json_lines import parse_json_lines
from sbp_core.records.json_parsing import RowFault
from sbp_core.records.json_values import describe_columns
from sbp_core.records.stream_decoder import Records

_HEAD: Final = struct.Struct(">qiibIhiqqqhii")
_LOG_HEAD_BYTES: Final = 12
_MAGIC_AT: Final = 16
_CRC_BYTES_AT: Final = 21
_MAGIC: Final = 2
_CODEC_MASK: Final = 0x07
_TRANSACTIONAL: Final = 0x10
_CONTROL: Final = 0x20
_NO_TIME: Final = -1
_TIME_MAX_MS: Final = 2**63 // 1_000 - 1
_BASE_OFFSET: Final = struct.Struct(">q")
_STREAMED: Final = {1: "gzip", 3: "lz4", 4: "zstd"}
"""Codecs that decompress step by step, by their number in Kafka."""
_SNAPPY: Final = 2
_XERIAL: Final = b"\x82SNAPPY\x00"
_XERIAL_HEAD_BYTES: Final = 16
_SET_BYTES_MAX: Final = 8 * limits.MIB
"""The most bytes of a record batch for consumers: the rest follows in the next answer."""
_OLD: Final = "a message set of Kafka before 0.11: use a client that writes record batches"


@dataclass(frozen=True, slots=True)
class ProducerBatch:
    """A record batch that a producer sent: rows, and the numbers of an idempotent producer.

    `producer_id` is -1 without idempotence, `first_time_ms` the time of the first record, -1 if it
    is unknown.
    """

    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int
    first_time_ms: int
    rows: pa.RecordBatch


class OldFormatError(RecordBatchError):
    """A message set of Kafka before 0.11, which the gateway does not read."""


class TransactionalError(RecordBatchError):
    """A record batch of a transaction, or a control batch."""


class TooLargeError(RecordBatchError):
    """A record batch with too many records or bytes: a client may send fewer at a time."""


def warm_up() -> None:
    """Let PyArrow import what its first array needs: pandas, where that is installed."""
    pa.array([b""], pa.binary())


def read_producer_batch(data: bytes, schema: StreamSchema | None) -> ProducerBatch:
    """Return the one record batch of a partition in a produce request.

    The values of a typed stream are objects of JSON that fit its `schema`. Raises RecordBatchError
    for bytes that are damaged, or records that do not fit, TooLargeError for too many.
    """
    if len(data) < _HEAD.size:
        if len(data) > _MAGIC_AT and data[_MAGIC_AT] != _MAGIC:
            raise OldFormatError(_OLD)
        raise RecordBatchError(f"a record batch of {len(data)} bytes is shorter than its head")
    head = _HEAD.unpack_from(data)
    length, magic, attributes, count = head[1], head[3], head[5], head[12]
    if magic != _MAGIC:
        raise OldFormatError(_OLD)
    if length != len(data) - _LOG_HEAD_BYTES:
        raise RecordBatchError("the records of a partition are not exactly one record batch")
    if attributes & (_TRANSACTIONAL | _CONTROL):
        raise TransactionalError("a record batch of a transaction, or a control batch")
    if count > limits.BATCH_RECORDS_MAX:
        raise TooLargeError(f"{count} records; at most {limits.BATCH_RECORDS_MAX} are accepted")
    if count <= 0 or head[6] != count - 1:
        raise RecordBatchError(f"a record batch declares {count} records, or numbers them wrongly")
    try:
        batch = DefaultRecordBatch(_decompressed(data, attributes & _CODEC_MASK))
        rows = _typed_rows(batch, schema) if schema is not None else _plain_rows(batch)
    except RecordBatchError:
        raise
    except RowFault as error:
        raise RecordBatchError(f"record {error.index} does not fit the schema: {error}") from error
    except Exception as error:  # what the reader meets in damaged bytes
        raise RecordBatchError(f"a record batch cannot be read: {error!r}") from error
    if rows.num_rows != count:
        raise RecordBatchError(f"a record batch declares {count} records and has {rows.num_rows}")
    return ProducerBatch(head[9], head[10], head[11], count, head[7], rows)


def _decompressed(data: bytes, codec: int) -> bytes:
    """Return a record batch whose records are not compressed; its checksum is compared before.

    The records are bounded here: the reader has no limit.
    """
    if not DefaultRecordBatch(data).validate_crc():
        raise RecordBatchError("the checksum of a record batch is wrong")
    if codec == 0:
        return data
    body = memoryview(data)[_HEAD.size :]
    records: bytes
    if codec in _STREAMED:
        with pa.CompressedInputStream(pa.BufferReader(body), _STREAMED[codec]) as source:
            records = source.read(limits.BATCH_BYTES_MAX + 1)
    elif codec == _SNAPPY:
        records = b"".join(_snappy_blocks(body))
    else:
        raise RecordBatchError(f"compression codec {codec} is none of gzip, snappy, lz4 and zstd")
    _check_size(len(records))
    head = bytearray(data[: _HEAD.size])
    head[_CRC_BYTES_AT + 1] &= ~_CODEC_MASK
    return bytes(head) + records


def _snappy_blocks(body: memoryview) -> Iterator[bytes]:
    """Yield the parts of a snappy stream: one, or those of the form that Java's clients write."""
    if bytes(body[: len(_XERIAL)]) != _XERIAL:
        yield _unsnappied(body)
        return
    position, total = _XERIAL_HEAD_BYTES, 0
    while position < len(body):
        start = position + 4
        position = start + int.from_bytes(body[position:start], "big")
        block = _unsnappied(body[start:position])
        total += len(block)
        _check_size(total)
        yield block


def _unsnappied(block: memoryview) -> bytes:
    """Return one block of snappy, which begins with its length in groups of 7 bits."""
    size = shift = 0
    for byte in bytes(block[:5]):
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    _check_size(size)
    return bytes(pa.decompress(block, size, codec="snappy", asbytes=True))


def _check_size(size_bytes: int) -> None:
    if size_bytes > limits.BATCH_BYTES_MAX:
        raise TooLargeError(
            f"the records of a batch have more than {limits.BATCH_BYTES_MAX} bytes, decompressed"
        )


def _plain_rows(batch: DefaultRecordBatch) -> pa.RecordBatch:
    found = list(batch)
    headers = [each.headers or None for each in found]
    times = pa.array([each.timestamp for each in found], pa.int64())
    key_kind, value_kind, headers_kind, time_kind = (field.type for field in ROWS_SCHEMA)
    is_time = pc.and_(pc.greater_equal(times, 0), pc.less_equal(times, _TIME_MAX_MS))
    times = pc.multiply(pc.if_else(is_time, times, None), 1_000).cast(time_kind)
    columns = [
        pa.array([each.key for each in found], key_kind),
        pa.array([each.value for each in found], value_kind),
        pa.array(headers, headers_kind) if any(headers) else pa.nulls(len(found), headers_kind),
        times,
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ROWS_SCHEMA)


def _typed_rows(batch: DefaultRecordBatch, schema: StreamSchema) -> pa.RecordBatch:
    found = list(batch)
    for index, record in enumerate(found):
        if record.key is not None or record.headers:
            raise RowFault(
                index,
                "it has a key or headers, for which a stream with a schema has no"
                " place: send them as columns",
            )
    lines = [b"null" if record.value is None else record.value for record in found]
    return parse_json_lines(lines, schema, default_timestamp_us=None)


def build_record_set(records: Records, batch_time_ms: int) -> tuple[bytes, int]:
    """Return records as one record batch for consumers, and how many of them it has.

    Records of typed streams have an object of JSON as their value. A record without a time has
    the time of its batch.
    """
    batch_time_ms = batch_time_ms or _NO_TIME
    builder = DefaultRecordBatchBuilder(_MAGIC, 0, False, -1, -1, -1, _SET_BYTES_MAX)
    count = 0
    for time_ms, key, value, headers in _contents(records, batch_time_ms):
        if builder.append(count, time_ms, key, value, headers) is None:
            break
        count += 1
    encoded = builder.build()
    _BASE_OFFSET.pack_into(encoded, 0, records.base_offset)
    return bytes(encoded), count


def _contents(records: Records, batch_time_ms: int) -> Iterator[tuple[int, Any, Any, Any]]:
    rows = records.rows
    if records.is_typed:
        for columns in describe_columns(rows):
            yield batch_time_ms, None, msgspec.json.encode(columns), []
        return
    times = rows.column("timestamp").cast(pa.int64()).to_pylist()
    headers = rows.column("headers")
    listed = [None] * len(rows) if headers.null_count == len(rows) else headers.to_pylist()
    keys, values = rows.column("key").to_pylist(), rows.column("value").to_pylist()
    for time_us, key, value, pairs in zip(times, keys, values, listed, strict=True):
        yield batch_time_ms if time_us is None else time_us // 1_000, key, value, pairs or []
