"""Typed streams without Spark: schemas, rows, and record batches of columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from sbp_core.client import AppendItem, Client, SchemaVersion
from sbp_core.records import Compression, StreamSchema, encode_columns, map_columns


def schema_of(**columns: pa.DataType) -> StreamSchema:
    """A schema of columns that may have nulls."""
    return StreamSchema.of(pa.schema(columns))


def rows_in(schema: StreamSchema, rows: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
    """Rows of a schema; what a row leaves out is null."""
    return pa.RecordBatch.from_pylist([dict(row) for row in rows], schema.arrow)


def versions_of(stream_id: int, *schemas: StreamSchema) -> tuple[SchemaVersion, ...]:
    """Versions of a stream's schema as a client describes them."""
    return tuple(
        SchemaVersion(stream_id, version, schema, 0)
        for version, schema in enumerate(schemas, start=1)
    )


def append_columns(
    client: Client,
    stream: str,
    rows: pa.RecordBatch,
    *,
    timestamp_ms: int = 0,
    timestamp_column: str | None = None,
    compression: Compression = "none",
) -> SchemaVersion:
    """Append one record batch, in a version of the stream's schema that takes these rows."""
    (info,) = client.describe_streams([stream])
    given = StreamSchema.of(rows.schema)
    newest = client.evolve_schema(info.stream_id, given, may_change=True)
    batch = encode_columns(
        map_columns(rows, newest.schema.arrow),
        newest.schema,
        stream_id=info.stream_id,
        timestamp_ms=timestamp_ms,
        timestamp_column=timestamp_column,
        compression=compression,
    )
    client.append([AppendItem(info.stream_id, batch)])
    return newest
