"""What rows are made of: plain records, or the columns of typed streams."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import pyarrow as pa

from sbp_core.client import Dialect
from sbp_core.records import BatchBuilder, StreamSchema
from sbp_spark.options import SinkOptions
from sbp_spark.writing.bad_records import BadRows
from sbp_spark.writing.columns import ColumnsPayload
from sbp_spark.writing.routing import Router, StreamIds
from sbp_spark.writing.rows import RowsPayload
from sbp_spark.writing.typed_streams import TypedStreamsClient, evolve_streams


class Payload(Protocol):
    """How Spark's batches become record batches of streams."""

    def convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return what is to be written of a batch, as rows of one schema."""
        ...

    def find_bad(self, rows: pa.RecordBatch, stream_ids: StreamIds) -> list[BadRows]:
        """Return which rows cannot be written to their streams."""
        ...

    def to_dead_letters(self, rows: pa.RecordBatch, bad: Sequence[BadRows]) -> pa.RecordBatch:
        """Return bad rows as they are kept, in their order and in ROWS_SCHEMA."""
        ...

    def digest(self, rows: pa.RecordBatch, stream_ids: StreamIds) -> int:
        """Return the digest of rows; those of several batches are joined by `join_digests`."""
        ...

    def split(
        self, rows: pa.RecordBatch, stream_ids: StreamIds, now_us: int
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield (stream id, its rows in their order), as the stream's builder takes them.

        `now_us`, microseconds since the epoch, is for rows that need a time and have none.
        """
        ...

    def make_builder(self, stream_id: int) -> BatchBuilder:
        """Return what makes record batches for a stream, which may be that of dead letters."""
        ...


def takes_sequences(client: TypedStreamsClient) -> bool:
    """Whether the servers take plain records as record sequences only. Raises SbpError."""
    return client.dialect() is Dialect.ELASTICSTREAM_2023_04


def make_payload(
    client: TypedStreamsClient, options: SinkOptions, router: Router, schema: StreamSchema | None
) -> Payload:
    """Return what makes record batches of a DataFrame of this schema; None for plain records.

    Raises SbpError.
    """
    columns = options.maybe_columns
    if schema is None or columns is None:
        return RowsPayload(options.batching, is_sequence=takes_sequences(client))
    streams = evolve_streams(client, router.option_streams(), schema, may_change=columns.is_merging)
    return ColumnsPayload(schema, streams, options.batching, columns.timestamp_column)
