"""The encodings of record batches: each is a class, and an entry of the one table here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pyarrow as pa

from sbp_core.errors import RecordBatchError
from sbp_core.records.encodings.columns import ColumnsEncoding
from sbp_core.records.encodings.encoding import Encoding
from sbp_core.records.encodings.rows import RowsEncoding
from sbp_core.records.encodings.sequence import SequenceEncoding
from sbp_core.records.envelope import Envelope, Octets, peek_batch

ENCODINGS: Final[Mapping[str | None, Encoding]] = {
    each.name: each for each in (RowsEncoding(), ColumnsEncoding(), SequenceEncoding())
}
"""By the names in envelopes; None for a batch that names no encoding."""
_RAW: Final = Encoding()


def encoding_of(envelope: Envelope) -> Encoding:
    """Return the encoding of a record batch; for an unknown one, what can be done without it."""
    return ENCODINGS.get(envelope.encoding, _RAW)


def accept_batch(data: Octets) -> Envelope:
    """Return `data`, if it is exactly one record batch that a server may store, body unread.

    A batch that claims more records than it has would be acknowledged, take their offsets, and fail
    every reader. So its count is compared with what its encoding says of it. Nothing is
    decompressed: the sizes that compressed buffers declare count, and what the values are worth
    only a reader finds out. The base offset may be anything, for the server is about to assign it.
    SPEC "APPEND". Raises RecordBatchError, which says what is wrong and what to do.
    """
    envelope = peek_batch(data)
    try:
        encoding_of(envelope).check_count(envelope)
    except RecordBatchError as error:
        raise RecordBatchError(
            f"{error}; the batch declares {envelope.record_count} records and has a body of"
            f" {len(envelope.body)} bytes. Nothing of this batch was stored, since no reader could"
            " decode it; correct the client that encodes it"
        ) from error
    return envelope


def decode_batch(envelope: Envelope) -> pa.RecordBatch:
    """Return the rows of a record batch in ROWS_SCHEMA, as many as its record_count.

    Batches of rows are decoded without a copy if their bodies are aligned to 8 bytes and not
    compressed, record sequences one by one. Raises DamagedBatchError when the batch is damaged or
    in an encoding that this version cannot read, and RecordBatchError when it has columns.
    """
    return encoding_of(envelope).decode(envelope)
