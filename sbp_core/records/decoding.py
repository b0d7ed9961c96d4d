"""From any record batch that this version reads to rows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa

from sbp_core import limits
from sbp_core.errors import RecordBatchError
from sbp_core.records.arrow_body import decode_joined
from sbp_core.records.arrow_message import (
    BUFFER_ALIGNMENT_BYTES,
    Outline,
    are_sound,
    check_outline,
    read_outline,
)
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
    run = _Run()
    for envelope in envelopes:
        if run.takes(envelope):
            if run.row_count < rows_enough and run.size_bytes < bytes_enough:
                continue
            yield run.decode()
            run = _Run()
        else:
            if run.envelopes:
                yield run.decode()
                run = _Run()
            yield decode_batch(envelope)
    if run.envelopes:
        yield run.decode()


class _Run:
    """Small batches that follow on one another."""

    def __init__(self) -> None:
        self.envelopes: list[Envelope] = []
        self.row_count = 0
        self.size_bytes = 0
        self._unchecked: list[Outline] = []

    def takes(self, envelope: Envelope) -> bool:
        """Take a batch if it is better joined with others. Raises RecordBatchError."""
        body = envelope.body
        is_short = len(body) < _SMALL_BYTES and len(body) % BUFFER_ALIGNMENT_BYTES == 0
        if not is_short or envelope.encoding != ROWS_ENCODING:
            return False
        outline = read_outline(body, record_count=envelope.record_count)
        decoded_bytes = outline.buffers_bytes
        if outline.compression is None:
            self._unchecked.append(outline)
        else:
            decoded_bytes = check_outline(outline, body).decoded_bytes
            if decoded_bytes >= _SMALL_BYTES:
                return False
        self.envelopes.append(envelope)
        self.row_count += envelope.record_count
        self.size_bytes += decoded_bytes
        return True

    def decode(self) -> pa.RecordBatch:
        """Return the rows of all. Raises RecordBatchError, which names the one that is damaged."""
        if len(self.envelopes) == 1:
            return decode_rows(self.envelopes[0])
        if are_sound(self._unchecked):
            with contextlib.suppress(pa.ArrowException, OSError):
                return decode_joined([each.body for each in self.envelopes], _ROWS_MESSAGE)
        return pa.concat_batches(map(decode_rows, self.envelopes))


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
