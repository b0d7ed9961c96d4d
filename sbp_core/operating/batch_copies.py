"""Copies of record batches for another stream, with the same records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sbp_core.errors import RecordBatchError
from sbp_core.records import (
    Envelope,
    StreamSchema,
    decode_columns,
    encode_columns,
    encode_envelope,
    encoding_of,
    slice_plain,
    split_envelopes,
)
from sbp_core.wire.checksum import Buffer


def copied_batches(
    payload: Buffer, stream_id: int, start: int, end: int, schemas: Sequence[StreamSchema]
) -> tuple[list[bytes], int]:
    """Return the records in [`start`, `end`) as batches of stream `stream_id`, and their number.

    `payload` begins with the batch that has `start`; `schemas` are the schemas of its batches. A
    batch with all records in the interval is not decoded. Raises RecordBatchError for a gap,
    DamagedBatchError.
    """
    known = {each.fingerprint: each for each in schemas}
    batches = []
    offset = start
    for envelope in split_envelopes(payload):
        if offset >= end:
            break
        if not envelope.base_offset <= offset < envelope.end_offset:
            raise RecordBatchError(
                f"expected offset {offset}, found records {envelope.base_offset} to"
                f" {envelope.end_offset - 1}"
            )
        wanted_end = min(envelope.end_offset, end)
        is_whole = (offset, wanted_end) == (envelope.base_offset, envelope.end_offset)
        if is_whole and envelope.encoding is not None:
            batches.append(_readdressed(envelope, stream_id))
        else:
            first = offset - envelope.base_offset
            batches.append(_part(envelope, stream_id, first, wanted_end - offset, known))
        offset = wanted_end
    return batches, offset - start


def _readdressed(envelope: Envelope, stream_id: int) -> bytes:
    assert envelope.encoding is not None
    return encode_envelope(
        [envelope.body],
        stream_id=stream_id,
        record_count=envelope.record_count,
        base_timestamp_ms=envelope.base_timestamp_ms,
        encoding=envelope.encoding,
        schema_fingerprint=envelope.schema_fingerprint,
        timestamp_column=envelope.timestamp_column,
        statistics=envelope.statistics,
    )


def _part(
    envelope: Envelope,
    stream_id: int,
    first: int,
    count: int,
    schemas: Mapping[str, StreamSchema],
) -> bytes:
    """Return some records of a batch, or all records of a record sequence, as a batch."""
    if not encoding_of(envelope).is_typed:
        return slice_plain(envelope, first, count, stream_id=stream_id)
    schema = schemas.get(envelope.schema_fingerprint or "")
    if schema is None:
        raise envelope.damage(f"its schema {envelope.schema_fingerprint!r} is not known")
    return encode_columns(
        decode_columns(envelope, schema).slice(first, count),
        schema,
        stream_id=stream_id,
        timestamp_ms=envelope.base_timestamp_ms,
        timestamp_column=envelope.timestamp_column,
    )
