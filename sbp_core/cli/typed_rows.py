"""Record batches of typed streams: decoded in the version that they were written in."""

from __future__ import annotations

import pyarrow as pa

from sbp_core.client import Client
from sbp_core.records import COLUMNS_ENCODING, Envelope, StreamSchema, decode_batch, decode_columns


class BatchDecoder:
    """Decodes the record batches of a stream, whichever version of its schema they are in."""

    def __init__(self, client: Client, stream_id: int) -> None:
        self._client = client
        self._stream_id = stream_id
        self._schemas: dict[str, StreamSchema] = {}

    def decode(self, envelope: Envelope) -> pa.RecordBatch:
        """Return the columns of a typed batch, the rows of any other. Raises DamagedBatchError."""
        if envelope.encoding != COLUMNS_ENCODING:
            return decode_batch(envelope)
        fingerprint = envelope.schema_fingerprint or ""
        if fingerprint not in self._schemas:
            versions = self._client.describe_schemas([self._stream_id])[self._stream_id]
            self._schemas = {each.schema.fingerprint: each.schema for each in versions}
        if fingerprint not in self._schemas:
            raise envelope.damage(
                f"it names schema {fingerprint!r}, which the placement driver does not know of"
                f" stream {self._stream_id}"
            )
        return decode_columns(envelope, self._schemas[fingerprint])
