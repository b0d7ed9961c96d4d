"""The encodings of record batches: what each does, and the registry in which each is.

An encoding is one module here that ends with `register`; `sbp_core.records` imports them all.
Nothing else decides by the name of an encoding.
"""

from __future__ import annotations

from typing import ClassVar, Final

import pyarrow as pa

from sbp_core.errors import RecordBatchError
from sbp_core.record_sizes import LARGEST
from sbp_core.records.envelope import Envelope, peek_batch
from sbp_core.wire.checksum import Buffer


class Encoding:
    """One form of the bodies of record batches; this class itself stands for unknown encodings.

    `name` is the name in envelopes. If it `is_message`, a body is one Arrow message, and small
    bodies are decoded together. If it `is_typed`, a body has the columns of a schema of the stream,
    else the columns of ROWS_SCHEMA.
    """

    name: ClassVar[str | None] = ""
    is_message: ClassVar[bool] = False
    is_typed: ClassVar[bool] = False

    def check_count(self, envelope: Envelope) -> None:
        """Raise RecordBatchError unless a body has the records that are declared; decode nothing.

        A record of an unknown encoding has one byte at least.
        """
        if envelope.record_count > len(envelope.body):
            raise RecordBatchError(
                f"a record batch declares {envelope.record_count} records in a body of"
                f" {len(envelope.body)} bytes, which is too short for these"
            )

    def decode(self, envelope: Envelope) -> pa.RecordBatch:
        """Return the records in ROWS_SCHEMA, fully validated.

        Raises DamagedBatchError, also for an unknown encoding, and RecordBatchError for a typed
        encoding.
        """
        raise envelope.damage(
            f'it names encoding {envelope.encoding!r}; this version reads "rows". Read the stream'
            " with a version that knows it"
        )


ENCODINGS: Final[dict[str | None, Encoding]] = {}
"""By the names in envelopes; None for a batch that names no encoding."""
_UNKNOWN: Final = Encoding()


def register(encoding: Encoding) -> None:
    """Use an encoding for the batches that name it."""
    ENCODINGS[encoding.name] = encoding


def encoding_of(envelope: Envelope) -> Encoding:
    """Return the encoding of a record batch; `Encoding()` itself if it is not known."""
    return ENCODINGS.get(envelope.encoding, _UNKNOWN)


def accept_batch(data: Buffer, bytes_max: int = LARGEST.batch_bytes) -> Envelope:
    """Return `data`, if it is exactly one record batch that a server may store, body unread.

    A batch that declares more records than it has would be acknowledged, occupy their offsets, and
    fail every reader. So its encoding checks the count. Nothing is decompressed: the declared sizes
    of compressed buffers count, and only readers validate the values. The base offset may be
    anything: the server is about to assign it. SPEC "APPEND". Raises RecordBatchError, also for a
    batch of more than `bytes_max`.
    """
    envelope = peek_batch(data, bytes_max)
    if envelope.projection is not None:
        raise RecordBatchError(
            f"a record batch of which only some columns are there ({envelope.projection}), as a"
            " FETCH returns it: nothing of it was stored; append whole batches"
        )
    if envelope.is_skipped:
        raise RecordBatchError(
            "a record batch whose records were left out, as a FETCH with filters returns it:"
            " nothing of it was stored; append whole batches"
        )
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
