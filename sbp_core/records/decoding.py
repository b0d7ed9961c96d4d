"""From any record batch that this version reads to rows."""

from __future__ import annotations

import pyarrow as pa

from sbp_core.errors import RecordBatchError
from sbp_core.records.envelope import Envelope
from sbp_core.records.rows import ROWS_SCHEMA, decode_rows
from sbp_core.records.sequence import decode_record_meta, walk_sequence


def decode_batch(envelope: Envelope) -> pa.RecordBatch:
    """Return the rows of a record batch in ROWS_SCHEMA, as many as its record_count.

    Batches of rows are decoded without a copy, record sequences one by one. Raises
    RecordBatchError when the batch is damaged or in an encoding that this version cannot read.
    """
    return _decode_sequence(envelope) if envelope.encoding is None else decode_rows(envelope)


def _decode_sequence(envelope: Envelope) -> pa.RecordBatch:
    """A record's body is its value; there are no keys. Times are milliseconds."""
    values: list[bytes] = []
    headers: list[list[tuple[str, bytes]]] = []
    timestamps_us: list[int] = []
    for record in walk_sequence(envelope.body, 0):
        meta = decode_record_meta(record)
        values.append(bytes(record.body))
        headers.append([(item.key or "", (item.value or "").encode()) for item in meta.headers])
        timestamps_us.append((envelope.base_timestamp_ms + meta.timestamp_delta) * 1000)
    types = {field.name: field.type for field in ROWS_SCHEMA}
    try:
        columns = {
            "key": pa.nulls(len(values), types["key"]),
            "value": pa.array(values, types["value"]),
            "headers": pa.array(headers, types["headers"]),
            "timestamp": pa.array(timestamps_us, types["timestamp"]),
        }
    except (pa.ArrowException, OverflowError) as error:
        raise RecordBatchError(
            f"record batch at offset {envelope.base_offset} of stream {envelope.stream_id} cannot"
            f" be shown as rows: {error}"
        ) from error
    return pa.RecordBatch.from_arrays([columns[name] for name in types], schema=ROWS_SCHEMA)
