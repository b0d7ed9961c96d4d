"""Record sequences as rows: record batches without an encoding, as other clients write them.

A record is a row:

    | column    | in a record                                                        |
    |-----------|--------------------------------------------------------------------|
    | key       | the first of its headers with the name `Keys`; null if it has none |
    | value     | the body                                                           |
    | headers   | the other headers, then the properties                             |
    | timestamp | milliseconds, as the difference from the base timestamp            |
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from sbp_core import limits
from sbp_core.errors import HeaderError, RecordBatchError
from sbp_core.records.encodings import Encoding, register
from sbp_core.records.encodings.rows_encoding import ROWS_SCHEMA
from sbp_core.records.envelope import Envelope, sequence_places
from sbp_core.wire._generated import LAYOUTS, RecordMeta
from sbp_core.wire.flat import Schema

_SCHEMA: Final = Schema(LAYOUTS, bytes_max=limits.BATCH_METADATA_BYTES_MAX)
_KEY_HEADER: Final = "Keys"


class SequenceEncoding(Encoding):
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
                at = next((at for at, (name, _) in enumerate(pairs) if name == _KEY_HEADER), None)
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


def _decode_meta(encoded: memoryview, end: int) -> RecordMeta:
    """Return the metadata of a record, an empty one if it has none. Raises RecordBatchError."""
    if not encoded:
        return RecordMeta()
    try:
        return _SCHEMA.decode(RecordMeta, encoded)
    except HeaderError as error:
        raise RecordBatchError(f"metadata of a record that ends at {end}: {error}") from error


def _maybe_bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


register(SequenceEncoding())
