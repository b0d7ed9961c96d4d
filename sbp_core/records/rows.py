"""The `rows` encoding: the body is one Arrow record batch message with a fixed schema.

The schema itself is not in the body. Offsets are not stored per row: they follow from the base
offset of the envelope (`offsets_array`).
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from sbp_core.errors import RecordBatchError
from sbp_core.records.arrow_body import (
    Compression,
    check_values,
    decode_body,
    encode_body,
)
from sbp_core.records.columns import COLUMNS_ENCODING
from sbp_core.records.envelope import Envelope, check_offsets, encode_envelope

ROWS_ENCODING: Final = "rows"
ROWS_SCHEMA: Final = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", pa.map_(pa.string(), pa.binary())),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
    ]
)


def encode_rows(
    batch: pa.RecordBatch,
    *,
    stream_id: int,
    timestamp_ms: int,
    compression: Compression = "none",
    base_offset: int = 0,
) -> bytes:
    """Return rows of ROWS_SCHEMA as a whole record batch, envelope included.

    `timestamp_ms` is the base timestamp, milliseconds since the epoch. A slice of a larger batch is
    written without the rest of it. What is returned has passed the checks of `decode_rows`, so that
    nothing is written that no reader would accept. Raises RecordBatchError.
    """
    check_rows_schema(batch)
    check_values(batch)
    return encode_checked_rows(
        batch,
        stream_id=stream_id,
        timestamp_ms=timestamp_ms,
        compression=compression,
        base_offset=base_offset,
    )


def encode_checked_rows(
    batch: pa.RecordBatch,
    *,
    stream_id: int,
    timestamp_ms: int,
    compression: Compression,
    base_offset: int = 0,
) -> bytes:
    """Return rows as `encode_rows` does, which its caller has checked."""
    return encode_envelope(
        [encode_body(batch, compression)],
        stream_id=stream_id,
        record_count=batch.num_rows,
        base_timestamp_ms=timestamp_ms,
        encoding=ROWS_ENCODING,
        base_offset=base_offset,
    )


def decode_rows(envelope: Envelope) -> pa.RecordBatch:
    """Return the rows of a record batch, in ROWS_SCHEMA, fully validated.

    Uncompressed columns are views of the envelope's body, unless that is not aligned to 8 octets:
    then it is copied once. Raises DamagedBatchError, also for an encoding that is not known, and
    RecordBatchError for columns.
    """
    if envelope.encoding != ROWS_ENCODING:
        if envelope.encoding == COLUMNS_ENCODING:
            raise RecordBatchError(
                f"{envelope.place} is typed, it has columns and not rows: read it with"
                " encoding=columns. Where a stream has both, read each stretch by its offsets, or"
                " trim what is before"
            )
        named = "no encoding" if envelope.encoding is None else f"encoding {envelope.encoding!r}"
        raise envelope.damage(
            f'it names {named}; this version reads "{ROWS_ENCODING}". Read the stream with a'
            " version that knows it"
        )
    return decode_body(envelope, ROWS_SCHEMA)


def offsets_array(base_offset: int, count: int) -> pa.Int64Array:
    """Return the offsets of `count` records as a column: base_offset, base_offset + 1 ...

    Raises RecordBatchError when they do not fit into 63 bits.
    """
    check_offsets(base_offset, count)
    return pa.array(np.arange(base_offset, base_offset + count, dtype=np.int64))


def check_rows_schema(batch: pa.RecordBatch) -> None:
    """Raise RecordBatchError unless the rows have exactly the columns of ROWS_SCHEMA."""
    if not batch.schema.equals(ROWS_SCHEMA):
        raise RecordBatchError(
            f"rows of schema ({_describe(batch.schema)}); expected ({_describe(ROWS_SCHEMA)}):"
            " cast them first"
        )


def _describe(schema: pa.Schema) -> str:
    return ", ".join(
        f"{field.name} {field.type}{'' if field.nullable else ' not null'}" for field in schema
    )
