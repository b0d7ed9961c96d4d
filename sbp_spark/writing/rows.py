"""Spark's columns as plain records: each has a key, a value, headers and a timestamp."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from sbp_core.records import ROWS_SCHEMA, RowsBuilder, find_unfit
from sbp_spark.options import Batching
from sbp_spark.writing.bad_records import BadRows, find_bad_rows, to_dead_letters
from sbp_spark.writing.digest import digest_of
from sbp_spark.writing.routing import StreamIds, split_rows


class RowsPayload:
    """Plain records, as a Payload; with `is_sequence` they go into record sequences."""

    def __init__(self, batching: Batching, *, is_sequence: bool = False) -> None:
        self._batching = batching
        self._is_sequence = is_sequence

    def convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the record columns in ROWS_SCHEMA."""
        return to_rows(batch)

    def find_bad(self, rows: pa.RecordBatch, stream_ids: StreamIds) -> list[BadRows]:
        """Return which rows no server takes, whatever their stream is."""
        bad = find_bad_rows(rows)
        if self._is_sequence:
            bad += [BadRows(indexes, error) for indexes, error in find_unfit(rows)]
        return bad

    def to_dead_letters(self, rows: pa.RecordBatch, bad: Sequence[BadRows]) -> pa.RecordBatch:
        """Return bad rows with headers that say what was wrong."""
        return to_dead_letters(rows, bad, is_sequence=self._is_sequence)

    def digest(self, rows: pa.RecordBatch, stream_ids: StreamIds) -> int:
        """Return the digest of rows."""
        return digest_of(rows, stream_ids)

    def split(
        self, rows: pa.RecordBatch, stream_ids: StreamIds, now_us: int
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield (stream id, its rows); those without a timestamp get `now_us`."""
        yield from split_rows(fill_times(rows, now_us), stream_ids)

    def make_builder(self, stream_id: int) -> RowsBuilder:
        """Return what makes record batches for a stream."""
        return rows_builder(stream_id, self._batching, is_sequence=self._is_sequence)


def rows_builder(stream_id: int, batching: Batching, *, is_sequence: bool = False) -> RowsBuilder:
    """Return what makes record batches of plain records for a stream."""
    return RowsBuilder(
        stream_id,
        target_bytes=batching.target_bytes,
        records_max=batching.records_max,
        compression=batching.compression,
        is_sequence=is_sequence,
    )


def to_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the record columns of Spark's batch in ROWS_SCHEMA; missing ones are null."""
    columns = []
    for field in ROWS_SCHEMA:
        if field.name not in batch.schema.names:
            columns.append(pa.nulls(batch.num_rows, field.type))
            continue
        column = batch.column(field.name)
        columns.append(column if column.type == field.type else column.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=ROWS_SCHEMA)


def fill_times(rows: pa.RecordBatch, now_us: int) -> pa.RecordBatch:
    """Return the rows with `now_us`, microseconds since the epoch, for timestamps that are null."""
    index = ROWS_SCHEMA.get_field_index("timestamp")
    if not rows.column(index).null_count:
        return rows
    field = ROWS_SCHEMA.field(index)
    filled = pc.fill_null(rows.column(index), pa.scalar(now_us, field.type))
    return rows.set_column(index, field, filled)
