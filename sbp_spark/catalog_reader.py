"""Metadata as DataFrames: the streams, their ranges, and the cursors of consumer groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import (
    ArrayType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from sbp_core.client import Client, CursorInfo, Reach, StreamInfo
from sbp_core.errors import NotFoundError
from sbp_spark.client_pool import Patience, client_for
from sbp_spark.logical_types import logical_arrow_schema
from sbp_spark.options.endpoints import CatalogOptions, CatalogTable
from sbp_spark.reporting import plain_errors
from sbp_spark.row_schema import as_named

_TRIES: Final = 5
_ANSWER_MS: Final = 1_000
"""Timeout of a range server; values that it would have returned are null."""
_MS_MAX: Final = (2**63 - 1) // 1000

Row = dict[str, Any]
T = TypeVar("T")


def _columns(**types: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in types.items()])


SCHEMAS: Final = {
    CatalogTable.STREAMS: _columns(
        stream=StringType(),
        stream_id=LongType(),
        created=TimestampType(),
        replica_count=IntegerType(),
        retention_ms=LongType(),
        retention_bytes=LongType(),
        start_offset=LongType(),
        next_offset=LongType(),
    ),
    CatalogTable.RANGES: _columns(
        stream=StringType(),
        stream_id=LongType(),
        range_index=IntegerType(),
        state=StringType(),
        start_offset=LongType(),
        end_offset=LongType(),
        servers=ArrayType(StringType()),
    ),
    CatalogTable.CURSORS: _columns(
        consumer_group=StringType(),
        stream=StringType(),
        stream_id=LongType(),
        next_offset=LongType(),
        committed=TimestampType(),
        lag_records=LongType(),
        lost_records=LongType(),
    ),
}
"""The columns of each table, all of them nullable."""


class CatalogReader(DataSourceReader):
    """Reads a table as it is when a task asks for it, with the columns of `schema`."""

    def __init__(self, options: CatalogOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """Return one partition: each server is asked about all streams at once."""
        return [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows. Raises SbpError."""
        table = self._options.table
        with plain_errors():
            rows = table_rows(client_for(self._options.servers, Patience.RUNNING), table)
        named = logical_arrow_schema(as_named(self._schema, SCHEMAS[table]))
        schema = logical_arrow_schema(self._schema)
        yield pa.RecordBatch.from_pylist(rows, named).rename_columns(schema.names).cast(schema)


def table_rows(client: Client, table: CatalogTable) -> list[Row]:
    """Return the rows of a table, by the columns of its schema. Raises SbpError."""
    match table:
        case CatalogTable.STREAMS:
            return _stream_rows(client)
        case CatalogTable.RANGES:
            return _range_rows(client)
        case CatalogTable.CURSORS:
            return _cursor_rows(client)


def _stream_rows(client: Client) -> list[Row]:
    infos, found = _ask_of_all(client, partial(_reach, client))
    return [
        {
            **_identity(info),
            "created": _maybe_us(info.created_at_ms),
            "replica_count": info.replica_count,
            "retention_ms": info.retention_period_ms or None,
            "retention_bytes": info.retention_bytes or None,
            **_bounds(found[info.stream_id]),
        }
        for info in infos
    ]


def _range_rows(client: Client) -> list[Row]:
    infos, ranges = _ask_of_all(client, client.list_ranges)
    return [
        {
            **_identity(info),
            "range_index": piece.range_index,
            "state": "open" if piece.end_offset is None else "sealed",
            "start_offset": piece.start_offset,
            "end_offset": piece.end_offset,
            "servers": list(piece.servers),
        }
        for info in infos
        for piece in ranges[info.stream_id]
    ]


def _cursor_rows(client: Client) -> list[Row]:
    cursors = [
        (each.group, cursor)
        for each in client.list_groups()
        for cursor in client.describe_cursors(each.group)
    ]
    infos, found = _ask_of_all(client, partial(_reach, client))
    streams = {info.stream_id: (info, found[info.stream_id]) for info in infos}
    return [
        {
            "consumer_group": group,
            "stream_id": cursor.stream_id,
            "next_offset": cursor.next_offset,
            "committed": _maybe_us(cursor.committed_at_ms),
            **(_lag(cursor, *streams[cursor.stream_id]) if cursor.stream_id in streams else {}),
        }
        for group, cursor in cursors
    ]


def _reach(client: Client, stream_ids: list[int]) -> dict[int, Reach]:
    """Return the bounds of the streams without waiting for servers that are down."""
    return client.reach(dict.fromkeys(stream_ids), timeout_ms=_ANSWER_MS, spared={})


def _bounds(held: Reach) -> Row:
    """Return the bounds of a stream; nothing if they are not known because a server is down."""
    if held.next_offset is None:
        return {}
    return {"start_offset": held.start_offset, "next_offset": held.next_offset}


def _lag(cursor: CursorInfo, info: StreamInfo, held: Reach) -> Row:
    if held.next_offset is None:
        return {"stream": info.label}
    first = max(cursor.next_offset, held.start_offset)
    return {
        "stream": info.label,
        "lag_records": max(held.next_offset - first, 0),
        "lost_records": first - cursor.next_offset,
    }


def _ask_of_all(client: Client, ask: Callable[[list[int]], T]) -> tuple[list[StreamInfo], T]:
    """Return all streams, by id, and the answer to a question about them."""
    tries_left = _TRIES
    while True:
        infos = client.list_streams()
        tries_left -= 1
        try:
            return infos, ask([info.stream_id for info in infos])
        except NotFoundError:  # one was deleted between the questions
            if not tries_left:
                raise


def _identity(info: StreamInfo) -> Row:
    return {"stream": info.label, "stream_id": info.stream_id}


def _maybe_us(time_ms: int) -> int | None:
    """Return a time in us, None if it is not known, or if no timestamp can be so late."""
    return time_ms * 1000 if 0 <= time_ms <= _MS_MAX else None
