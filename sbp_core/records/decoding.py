"""From any record batch that this version reads to rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa

from sbp_core import limits
from sbp_core.errors import RecordBatchError
from sbp_core.records.arrow_body import decode_joined
from sbp_core.records.arrow_message import BUFFER_ALIGNMENT_BYTES, check_record_batch_message
from sbp_core.records.envelope import Envelope
from sbp_core.records.rows import ROWS_ENCODING, ROWS_SCHEMA, decode_rows
from sbp_core.records.sequence import decode_record_meta, walk_sequence

_SMALL_BYTES: Final = 32 * limits.KIB
"""To decode a batch alone takes as long as to copy so much."""
_ROWS_MESSAGE: Final = bytes(ROWS_SCHEMA.serialize())


def decode_batch(envelope: Envelope) -> pa.RecordBatch:
    """Return the rows of a record batch in ROWS_SCHEMA, as many as its record_count.

    Batches of rows are decoded without a copy, record sequences one by one. Raises
    RecordBatchError when the batch is damaged or in an encoding that this version cannot read.
    """
    return _decode_sequence(envelope) if envelope.encoding is None else decode_rows(envelope)


def decode_batches(
    envelopes: Iterable[Envelope], *, rows_enough: int, bytes_enough: int
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of all record batches in their order, those of small ones together.

    Small batches are joined until they have `rows_enough` rows or decode to `bytes_enough` octets.
    Any other is decoded alone, as by `decode_batch`. Raises RecordBatchError.
    """
    run: list[Envelope] = []
    row_count = size_bytes = 0
    for envelope in envelopes:
        decoded_bytes = _small_bytes(envelope)
        if decoded_bytes is not None:
            run.append(envelope)
            row_count += envelope.record_count
            size_bytes += decoded_bytes
            if row_count < rows_enough and size_bytes < bytes_enough:
                continue
        if run:
            yield _decode_run(run)
        run, row_count, size_bytes = [], 0, 0
        if decoded_bytes is None:
            yield decode_batch(envelope)
    if run:
        yield _decode_run(run)


def _small_bytes(envelope: Envelope) -> int | None:
    """Return what a batch decodes to that is better joined with others, None for any other."""
    body = envelope.body
    is_short = len(body) < _SMALL_BYTES and len(body) % BUFFER_ALIGNMENT_BYTES == 0
    if not is_short or envelope.encoding != ROWS_ENCODING:
        return None
    size = check_record_batch_message(body, record_count=envelope.record_count)
    return size.decoded_bytes if size.decoded_bytes < _SMALL_BYTES else None


def _decode_run(run: list[Envelope]) -> pa.RecordBatch:
    if len(run) == 1:
        return decode_rows(run[0])
    try:
        return decode_joined([envelope.body for envelope in run], _ROWS_MESSAGE)
    except (pa.ArrowException, OSError):
        return pa.concat_batches(map(decode_rows, run))  # which names the one that is damaged


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
