"""Spark's columns as those of typed streams."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from sbp_core.errors import SchemaError
from sbp_core.records import BatchBuilder, ColumnsBuilder, StreamSchema, map_columns
from sbp_spark.options import Batching
from sbp_spark.retyping import retyped
from sbp_spark.writing.bad_columns import columns_to_dead_letters, find_bad_columns
from sbp_spark.writing.bad_records import BadRows
from sbp_spark.writing.column_digest import digest_of_columns
from sbp_spark.writing.routing import StreamIds, split_rows
from sbp_spark.writing.rows import rows_builder
from sbp_spark.writing.typed_streams import TypedStream


class ColumnsPayload:
    """Columns of the schema `given`, as a Payload; `streams` are those that they may go to."""

    def __init__(
        self,
        given: StreamSchema,
        streams: Mapping[int, TypedStream],
        batching: Batching,
        timestamp_column: str | None = None,
    ) -> None:
        # Whether a null may be where Spark says that there is none, the streams say.
        self._given = pa.schema([field.with_nullable(True) for field in given.arrow])
        self._streams = streams
        self._batching = batching
        self._timestamp_column = timestamp_column

    def convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the columns that are written; Spark's times are in the session's zone."""
        columns = [retyped(batch.column(field.name), field.type) for field in self._given]
        return pa.RecordBatch.from_arrays(columns, schema=self._given)

    def find_bad(self, rows: pa.RecordBatch, stream_ids: StreamIds) -> list[BadRows]:
        """Return which rows their streams do not take."""
        return find_bad_columns(rows, stream_ids, self._streams)

    def to_dead_letters(self, rows: pa.RecordBatch, bad: Sequence[BadRows]) -> pa.RecordBatch:
        """Return bad rows as JSON, with headers that say what was wrong."""
        return columns_to_dead_letters(rows, bad)

    def digest(self, rows: pa.RecordBatch, stream_ids: StreamIds) -> int:
        """Return the digest of rows."""
        return digest_of_columns(rows, stream_ids)

    def split(
        self, rows: pa.RecordBatch, stream_ids: StreamIds, now_us: int
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield (stream id, its rows in its schema). Raises SchemaError."""
        for stream_id, part in split_rows(rows, stream_ids):
            stream = self._streams[stream_id]
            try:
                yield stream_id, map_columns(part, stream.schema.arrow, is_loss_allowed=False)
            except SchemaError as error:
                error.add_note(f"while writing to stream {stream.name!r}")
                raise

    def make_builder(self, stream_id: int) -> BatchBuilder:
        """Return what makes record batches for a stream; of dead letters plain records are made."""
        if stream_id not in self._streams:
            return rows_builder(stream_id, self._batching)
        return ColumnsBuilder(
            stream_id,
            self._streams[stream_id].schema,
            timestamp_column=self._timestamp_column,
            target_bytes=self._batching.target_bytes,
            records_max=self._batching.records_max,
            compression=self._batching.compression,
        )
