"""The record batches of one stream, in a row, as records; and these as objects of JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from sbp_core.errors import RecordBatchError
from sbp_core.records.encodings import decode_batch, encoding_of
from sbp_core.records.encodings.columns_encoding import decode_columns
from sbp_core.records.envelope import Envelope
from sbp_core.records.json_values import describe_bytes, describe_columns, describe_values
from sbp_core.records.splitting import split_envelopes
from sbp_core.records.stream_schema import StreamSchema
from sbp_core.wire.checksum import Buffer


@dataclass(frozen=True, slots=True)
class Records:
    """Records in a row: the columns of a typed stream's schema, or plain ones in ROWS_SCHEMA."""

    base_offset: int
    rows: pa.RecordBatch
    is_typed: bool

    def first(self, count: int) -> Records:
        """Return at most `count` of them."""
        return replace(self, rows=self.rows.slice(0, count))

    def describe(self, stream: str) -> Iterator[dict[str, object]]:
        """Yield each record as an object of JSON, with the stream's name and its offset."""
        if not self.is_typed:
            yield from describe_rows(stream, self.base_offset, self.rows)
            return
        for offset, columns in enumerate(describe_columns(self.rows), self.base_offset):
            yield {"stream": stream, "offset": offset, "columns": columns}


class StreamDecoder:
    """Decodes the batches of a stream in order, from the record at `start` up to `end`, exclusive.

    The batches of a typed stream name their schemas: before one is decoded that `lacks_schema`,
    ask the placement driver, and `learn` what it knows.
    """

    def __init__(self, stream_id: int, start: int, end: int | None = None) -> None:
        self._stream_id = stream_id
        self._end = end
        self._schemas: dict[str, StreamSchema] = {}
        self.next_offset = start
        """The offset of the record that comes next."""

    @property
    def is_done(self) -> bool:
        """Whether all records up to `end` were decoded."""
        return self._end is not None and self.next_offset >= self._end

    def wanted(self, payload: Buffer) -> Iterator[Envelope]:
        """Yield the batches of an answer that have wanted records, while they are decoded."""
        for envelope in split_envelopes(payload):
            if self.is_done:
                return
            yield envelope

    def lacks_schema(self, envelope: Envelope) -> bool:
        """Whether a batch names a schema that is not known yet."""
        fingerprint = envelope.schema_fingerprint or ""
        return encoding_of(envelope).is_typed and fingerprint not in self._schemas

    def learn(self, schemas: Iterable[StreamSchema]) -> None:
        """Note the versions of the stream's schema."""
        self._schemas = {each.fingerprint: each for each in schemas}

    def decode(self, envelope: Envelope) -> Records:
        """Return the records of the next batch that are wanted.

        Raises RecordBatchError for a batch that does not follow, DamagedBatchError for a batch that
        cannot be decoded, or names an unknown schema.
        """
        offset, batch_end = self.next_offset, envelope.end_offset
        if not envelope.base_offset <= offset < batch_end:
            raise RecordBatchError(
                f"expected offset {offset}, found records {envelope.base_offset} to {batch_end - 1}"
            )
        wanted_end = batch_end if self._end is None else min(batch_end, self._end)
        skipped = offset - envelope.base_offset
        rows = self._decode(envelope).slice(skipped, wanted_end - offset)
        self.next_offset = wanted_end
        return Records(offset, rows, encoding_of(envelope).is_typed)

    def _decode(self, envelope: Envelope) -> pa.RecordBatch:
        if not encoding_of(envelope).is_typed:
            return decode_batch(envelope)
        fingerprint = envelope.schema_fingerprint or ""
        if fingerprint not in self._schemas:
            raise envelope.damage(
                f"it has schema {fingerprint!r}, which the placement driver does not know for"
                f" stream {self._stream_id}"
            )
        return decode_columns(envelope, self._schemas[fingerprint])


def describe_rows(
    stream: str, base_offset: int, rows: pa.RecordBatch
) -> Iterator[dict[str, object]]:
    """Yield each plain record as an object of JSON."""
    timestamps = describe_values(rows.column("timestamp"))
    columns = [rows.column(name).to_pylist() for name in ("key", "value", "headers")]
    records = zip(timestamps, *columns, strict=True)
    for offset, (timestamp, key, value, headers) in enumerate(records, base_offset):
        yield {
            "stream": stream,
            "offset": offset,
            "timestamp": timestamp,
            "key": _maybe_bytes(key),
            "value": _maybe_bytes(value),
            "headers": None
            if headers is None
            else [[name, _maybe_bytes(content)] for name, content in headers],
        }


def _maybe_bytes(data: bytes | None) -> object:
    return None if data is None else describe_bytes(data)
