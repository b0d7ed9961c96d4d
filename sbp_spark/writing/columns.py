"""Spark's columns as those of typed streams."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from sbp_core.errors import SchemaError
from sbp_core.records import BatchBuilder, ColumnsBuilder, StreamSchema, map_columns
from sbp_spark.options import Batching
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
        columns = [_retyped(batch.column(field.name), field.type) for field in self._given]
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


def _retyped(array: pa.Array, target: pa.DataType) -> pa.Array:
    """Return an array as one of a type that differs in time zones and names only, without a copy.

    A struct that is null may have a null in a field that is required where the struct is not: in
    the rows that a left join found no partner for. Arrow's own cast refuses those.
    """
    kind = array.type
    if kind == target:
        return array
    if pa.types.is_struct(target):
        children = _retyped_fields(array, list(target))
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(children, fields=list(target), mask=mask)
    if pa.types.is_map(target):
        fields = [target.key_field, target.item_field]
        parts = _retyped_fields(array.values, fields)
        return _with_child(array, target, pa.StructArray.from_arrays(parts, fields=fields))
    if pa.types.is_list(target):
        return _with_child(array, target, _retyped(array.values, target.value_type))
    return array.cast(target)


def _retyped_fields(array: pa.StructArray, fields: Sequence[pa.Field]) -> list[pa.Array]:
    return [_retyped(array.field(index), field.type) for index, field in enumerate(fields)]


def _with_child(array: pa.Array, target: pa.DataType, child: pa.Array) -> pa.Array:
    validity, offsets = array.buffers()[:2]
    return pa.Array.from_buffers(
        target, len(array), [validity, offsets], array.null_count, array.offset, [child]
    )
