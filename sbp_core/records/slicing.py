"""Some records of a stored batch as a batch of their own.

A server may merge small batches while a reader is between two of them (batch_merging.py). The next
batch then begins before the offset at which the reader continues. A backup, which stores batches,
cuts the batch there.
"""

from __future__ import annotations

from sbp_core.records.arrow_body import Compression, compression_of
from sbp_core.records.arrow_message import read_outline
from sbp_core.records.encodings import decode_batch, encoding_of
from sbp_core.records.encodings.rows_encoding import encode_rows
from sbp_core.records.envelope import Envelope


def slice_plain(
    envelope: Envelope, first: int, count: int, *, stream_id: int, base_offset: int = 0
) -> bytes:
    """Return `count` plain records of a batch, from the one at index `first` on, as rows.

    Keys, values, headers and times are as they were, and so is the compression of rows.

    Raises RecordBatchError for a batch with a schema, DamagedBatchError for a damaged batch.
    """
    return encode_rows(
        decode_batch(envelope).slice(first, count),
        stream_id=stream_id,
        timestamp_ms=envelope.base_timestamp_ms,
        compression=_compression_of(envelope),
        base_offset=base_offset,
    )


def _compression_of(envelope: Envelope) -> Compression:
    if not encoding_of(envelope).is_message:
        return "none"
    outline = read_outline(envelope.body, record_count=envelope.record_count)
    return compression_of(outline.compression)
