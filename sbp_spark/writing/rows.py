"""Spark's columns as rows of record batches."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from sbp_core.records import ROWS_SCHEMA


def to_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the record columns of Spark's batch in ROWS_SCHEMA; missing ones are null."""
    columns = []
    for field in ROWS_SCHEMA:
        if field.name in batch.schema.names:
            columns.append(batch.column(field.name).cast(field.type))
        else:
            columns.append(pa.nulls(batch.num_rows, field.type))
    return pa.RecordBatch.from_arrays(columns, schema=ROWS_SCHEMA)


def fill_times(rows: pa.RecordBatch, now_us: int) -> pa.RecordBatch:
    """Return the rows with `now_us`, microseconds since the epoch, for timestamps that are null."""
    index = ROWS_SCHEMA.get_field_index("timestamp")
    if not rows.column(index).null_count:
        return rows
    field = ROWS_SCHEMA.field(index)
    filled = pc.fill_null(rows.column(index), pa.scalar(now_us, field.type))
    return rows.set_column(index, field, filled)
