"""What an encoding of record batches does; by itself, one that this version does not know."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import pyarrow as pa

from sbp_core.errors import RecordBatchError
from sbp_core.records.arrow_body import Compression
from sbp_core.records.envelope import Envelope


class Encoding:
    """One form of the bodies of record batches.

    `name` is the name in envelopes. If it `is_message`, a body is one Arrow message, and small ones
    are decoded together. If it `is_typed`, a body has the columns of a schema of the stream, and
    those of ROWS_SCHEMA if not.
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

        Raises DamagedBatchError, also for an encoding that is not known, and RecordBatchError for
        one that is typed.
        """
        raise envelope.damage(
            f'it names encoding {envelope.encoding!r}; this version reads "rows". Read the stream'
            " with a version that knows it"
        )


class PlainEncoding(Encoding, ABC):
    """An encoding of rows of ROWS_SCHEMA, as RowsBuilder writes them."""

    @abstractmethod
    def check_fit(self, rows: pa.RecordBatch) -> None:
        """Raise RecordBatchError for valid rows that bodies cannot hold."""

    @abstractmethod
    def encode(
        self, rows: pa.RecordBatch, *, stream_id: int, timestamp_ms: int, compression: Compression
    ) -> list[bytes]:
        """Return record batches of rows that were checked."""
