"""The body of a record batch in Arrow's form: one message, whose schema writer and reader know."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sbp_core.errors import RecordBatchError
from sbp_core.records.arrow_message import (
    BUFFER_ALIGNMENT_BYTES,
    BodyCompression,
    check_record_batch_message,
    find_buffers,
)
from sbp_core.records.envelope import Envelope

Compression = Literal["none", "lz4", "zstd"]
_CODECS: Final[tuple[Compression, ...]] = ("lz4", "zstd")
"""By the number of Arrow's codec."""
Ends = npt.NDArray[np.int64]
"""The bytes before each of n rows, and after the last one: n + 1 numbers that never fall."""

_VALIDITY_BITS: Final = 1
_OFFSET_BITS: Final = 32
_STRINGS: Final = (pa.string().id, pa.binary().id)
_LISTS: Final = (pa.list_(pa.int8()).id, pa.map_(pa.int8(), pa.int8()).id)
_STRUCT: Final = pa.struct([]).id
_WITH_TWO_BUFFERS: Final = (
    pa.types.is_primitive,
    pa.types.is_decimal,
    pa.types.is_list,
    pa.types.is_map,
)


def compression_of(found: BodyCompression | None) -> Compression:
    """Return the name of a checked compression."""
    return "none" if found is None else _CODECS[found.codec]


def encode_body(batch: pa.RecordBatch, compression: Compression) -> memoryview:
    """Return rows that pass `check_values` as a message that passes the checks of `decode_body`.

    A slice of a larger batch is written without the rest of it. Raises RecordBatchError.
    """
    try:
        whole = _whole(batch)
        if compression == "none":
            body = memoryview(whole.serialize())
        else:
            body = _compress(whole, compression)
    except (pa.ArrowException, OSError) as error:
        raise RecordBatchError(f"rows that cannot be encoded: {error}") from error
    check_record_batch_message(body, record_count=batch.num_rows)
    return body


def decode_body(
    envelope: Envelope,
    schema: pa.Schema,
    names: Collection[str] | None = None,
    *,
    schema_message: bytes = b"",
) -> pa.RecordBatch:
    """Return the rows of a record batch, those columns that are asked for, fully validated.

    With `names` comes `schema_message`, the schema as Arrow's streams begin with it. Uncompressed
    columns are views of the envelope's body, unless that is not aligned to 8 bytes: then it is
    copied once. Raises DamagedBatchError.
    """
    wanted = [index for index, name in enumerate(schema.names) if name in (names or ())]
    try:
        if envelope.rows is not None:
            batch = envelope.rows if names is None else envelope.rows.select(wanted)
        elif _is_compressed(envelope) and wanted:
            batch = _decompress_some(envelope.body, schema_message, wanted)
        else:
            batch = pa.ipc.read_record_batch(_aligned_buffer(envelope.body), schema)
            batch = batch if names is None else batch.select(wanted)
        batch.validate(full=True)
    except (RecordBatchError, pa.ArrowException, OSError) as error:
        raise envelope.damage(error) from error
    return batch


def _is_compressed(envelope: Envelope) -> bool:
    """Check the message of a body, and return whether it is compressed. Raises RecordBatchError."""
    size = check_record_batch_message(envelope.body, record_count=envelope.record_count)
    return size.is_compressed


def decode_joined(
    bodies: Sequence[memoryview], schema_message: bytes, wanted: Sequence[int] | None = None
) -> pa.RecordBatch:
    """Return the rows of several bodies, which are checked messages, one after the other.

    `schema_message` is their schema, as Arrow's streams begin with it; of its columns only those at
    the indexes `wanted` are decoded, if these are given. All of them are copied. Raises
    ArrowException or OSError when one is damaged, not saying which.
    """
    stream = pa.py_buffer(b"".join((schema_message, *bodies)))
    options = pa.ipc.IpcReadOptions(included_fields=wanted, use_threads=False)
    table = pa.ipc.open_stream(stream, options=options).read_all()
    table.validate(full=True)  # before it is joined, for which Arrow trusts all offsets
    (joined,) = table.combine_chunks().to_batches()
    return joined


def check_values(batch: pa.RecordBatch) -> None:
    """Raise RecordBatchError for rows that are no valid data of Arrow's."""
    try:
        batch.validate(full=True)
    except pa.ArrowException as error:
        raise RecordBatchError(f"rows that cannot be encoded: {error}") from error


def maybe_buffer_count(kind: pa.DataType) -> int | None:
    """Return how many buffers a column has, without the buffers of nested columns.

    Return None for a type that no stream has.
    """
    if pa.types.is_null(kind):
        return 0
    if pa.types.is_struct(kind):
        return 1
    if pa.types.is_binary(kind) or pa.types.is_string(kind):
        return 3
    return 2 if any(is_kind(kind) for is_kind in _WITH_TWO_BUFFERS) else None


def record_sizes(rows: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """Return the bytes of each row in a record batch."""
    return np.diff(row_ends(rows))


def row_ends(rows: pa.RecordBatch) -> Ends:
    """Return the bytes before each row and after the last one, from any number on."""
    return _ends(rows.columns, rows.num_rows)


def _compress(batch: pa.RecordBatch, compression: Compression) -> memoryview:
    """Return the message of a batch, its buffers compressed, which Arrow does in streams only."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression, use_threads=False)
    pa.ipc.new_stream(sink, batch.schema, options=options).write_batch(batch)
    written = memoryview(sink.getvalue())
    return written[find_buffers(written, metadata_bytes_max=len(written)) :]


def _decompress_some(body: memoryview, schema_message: bytes, wanted: list[int]) -> pa.RecordBatch:
    """Return the columns at these indexes, not validated; no others are decompressed.

    Arrow leaves columns out of streams only.
    """
    stream = pa.py_buffer(b"".join((schema_message, body)))
    options = pa.ipc.IpcReadOptions(included_fields=wanted, use_threads=False)
    return pa.ipc.open_stream(stream, options=options).read_next_batch()


def _whole(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch with lists and maps copied: Arrow would write the values of all parents."""
    columns = [
        pa.concat_arrays([column]) if pa.types.is_nested(column.type) else column
        for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _aligned_buffer(body: memoryview) -> pa.Buffer:
    buffer = pa.py_buffer(body)
    if buffer.address % BUFFER_ALIGNMENT_BYTES == 0:
        return buffer
    copied = pa.allocate_buffer(len(body))
    memoryview(copied).cast("B")[:] = body
    return copied


def _ends(columns: Sequence[pa.Array], count: int) -> Ends:
    uneven: list[npt.NDArray[Any]] = []
    bits = sum(_measure(column, uneven) for column in columns)
    ends = np.arange(count + 1, dtype=np.int64) * -(-bits // 8)
    for each in uneven:
        ends += each
    return ends


def _measure(array: pa.Array, uneven: list[npt.NDArray[Any]]) -> int:
    """Return the bits that every row has; add to `uneven` the ends of parts of varying size."""
    kind = array.type
    if kind.id in _STRINGS:
        uneven.append(_value_offsets(array))
        return _VALIDITY_BITS + _OFFSET_BITS
    if kind.id in _LISTS:
        offsets = _value_offsets(array)
        first, last = int(offsets[0]), int(offsets[-1])
        if first < last:
            values = array.values.slice(first, last - first)
            uneven.append(_ends([values], len(values))[offsets - first])
        return _VALIDITY_BITS + _OFFSET_BITS
    if kind.id == _STRUCT:
        fields = map(array.field, range(kind.num_fields))
        return _VALIDITY_BITS + sum(_measure(field, uneven) for field in fields)
    return _VALIDITY_BITS + max(8, int(kind.bit_width))


def _value_offsets(array: pa.Array) -> npt.NDArray[np.int32]:
    """Return the n + 1 offsets of an array with 32-bit offsets; an empty one may have no buffer."""
    count = len(array)
    if count == 0:
        return np.zeros(1, dtype=np.int32)
    offsets = np.frombuffer(array.buffers()[1], dtype=np.int32, count=array.offset + count + 1)
    return offsets[array.offset :]
