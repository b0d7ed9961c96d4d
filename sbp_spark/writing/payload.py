"""Rows as plain records, or as the columns of typed streams: conversion and record batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from sbp_core import limits
from sbp_core.client import Client
from sbp_core.errors import SchemaError
from sbp_core.records import (
    ROWS_SCHEMA,
    BatchBuilder,
    ColumnsBuilder,
    RowsBuilder,
    StreamSchema,
    find_column,
    map_columns,
)
from sbp_spark.logical_types import retyped
from sbp_spark.options.sink import Batching, SinkOptions
from sbp_spark.writing.bad_records import (
    BadRows,
    RecordBytesMax,
    StreamIds,
    columns_to_dead_letters,
    default_record_bytes_max,
    find_bad_columns,
    find_bad_rows,
    to_dead_letters,
)
from sbp_spark.writing.digest import digest_of, digest_of_columns
from sbp_spark.writing.directory import TypedStream, evolve_streams
from sbp_spark.writing.routing import RowRouter, split_rows


class RowsPayload:
    """Plain records."""

    def __init__(
        self,
        batching: Batching,
        *,
        record_bytes_max: RecordBytesMax = default_record_bytes_max,
    ) -> None:
        self._batching = batching
        self._record_bytes_max = record_bytes_max

    def convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the record columns in ROWS_SCHEMA."""
        return to_rows(batch)

    def find_bad(self, rows: pa.RecordBatch, stream_ids: StreamIds) -> list[BadRows]:
        """Return the rows that the servers of their streams do not accept."""
        return find_bad_rows(rows, stream_ids, self._record_bytes_max)

    def to_dead_letters(self, rows: pa.RecordBatch, bad: Sequence[BadRows]) -> pa.RecordBatch:
        """Return bad rows with headers that describe the fault."""
        return to_dead_letters(rows, bad)

    def digest(self, rows: pa.RecordBatch, stream_ids: StreamIds) -> int:
        """Return the digest of rows."""
        return digest_of(rows, stream_ids)

    def split(
        self, rows: pa.RecordBatch, stream_ids: StreamIds, now_us: int
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield (stream id, its rows); those without a timestamp get `now_us`."""
        yield from split_rows(fill_times(rows, now_us), stream_ids)

    def make_builder(self, stream_id: int) -> RowsBuilder:
        """Return the builder of record batches for a stream."""
        return rows_builder(stream_id, self._batching)


def rows_builder(stream_id: int, batching: Batching) -> RowsBuilder:
    """Return the builder of plain record batches for a stream. `find_bad` has checked the sizes."""
    return RowsBuilder(
        stream_id,
        target_bytes=batching.target_bytes,
        records_max=batching.records_max,
        record_bytes_max=limits.RECORD_BYTES_LARGEST,
        compression=batching.compression,
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


class ColumnsPayload:
    """Columns of the schema `given`; `streams` are their possible targets."""

    def __init__(
        self,
        given: StreamSchema,
        streams: Mapping[int, TypedStream],
        batching: Batching,
        timestamp_column: str | None = None,
        stats_columns: Sequence[str] = (),
        *,
        record_bytes_max: RecordBytesMax = default_record_bytes_max,
    ) -> None:
        # Whether a null may be where Spark says that there is none, the streams say.
        self._given = pa.schema([field.with_nullable(True) for field in given.arrow])
        self._streams = streams
        self._record_bytes_max = record_bytes_max
        self._batching = batching
        self._timestamp_column = timestamp_column
        found = (find_column(given.arrow, path.split(".")) for path in stats_columns)
        self._stats_columns = [*dict.fromkeys(".".join(names) for names, _ in found)]

    def convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the columns that are written; Spark's times are in the session's zone."""
        columns = [retyped(batch.column(field.name), field.type) for field in self._given]
        return pa.RecordBatch.from_arrays(columns, schema=self._given)

    def find_bad(self, rows: pa.RecordBatch, stream_ids: StreamIds) -> list[BadRows]:
        """Return the rows that their streams do not take."""
        return find_bad_columns(rows, stream_ids, self._streams, self._record_bytes_max)

    def to_dead_letters(self, rows: pa.RecordBatch, bad: Sequence[BadRows]) -> pa.RecordBatch:
        """Return bad rows as JSON, with headers that describe the fault."""
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
        """Return the builder of record batches for a stream; dead letters are plain records."""
        if stream_id not in self._streams:
            return rows_builder(stream_id, self._batching)
        return ColumnsBuilder(
            stream_id,
            self._streams[stream_id].schema,
            timestamp_column=self._timestamp_column,
            target_bytes=self._batching.target_bytes,
            records_max=self._batching.records_max,
            record_bytes_max=limits.RECORD_BYTES_LARGEST,
            compression=self._batching.compression,
            stats_columns=self._stats_columns,
        )


Payload: TypeAlias = RowsPayload | ColumnsPayload
"""How Spark's batches become record batches of streams: `split` yields (stream id, its rows in
their order) as the stream's builder takes them. Digests are joined by `join_digests`."""


def make_payload(
    client: Client,
    options: SinkOptions,
    router: RowRouter,
    schema: StreamSchema | None,
    planned: Mapping[int, TypedStream] | None = None,
) -> Payload:
    """Return the payload for a DataFrame of this schema; None for plain records.

    `planned` are the streams whose schemas fit already. Raises SbpError.
    """
    if schema is None:
        return RowsPayload(options.batching, record_bytes_max=client.record_bytes_max)
    columns = options.columns
    assert columns is not None
    streams = planned or evolve_streams(
        client, router.option_streams(), schema, may_change=columns.is_merging
    )
    return ColumnsPayload(
        schema,
        streams,
        options.batching,
        columns.timestamp_column,
        columns.stats_columns,
        record_bytes_max=client.record_bytes_max,
    )
