"""A streaming query without Spark: which micro-batches it makes of streams, and their rows."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition

from sbp_spark.logical_types import logical_arrow_schema
from sbp_spark.reading.offsets import SourceOffset, intervals
from sbp_spark.row_schema import source_schema
from sbp_spark.streaming.stream_reader import SbpStreamReader

SCHEMA = source_schema(include_headers=True)

Offset = dict[str, Any]


@dataclass(frozen=True)
class MicroBatch:
    """A micro-batch as recorded in Spark's checkpoint."""

    start: Offset
    end: Offset

    def bounds(self) -> dict[int, tuple[int, int]]:
        """The offsets that are read of each stream, by id."""
        start, end = map(SourceOffset.from_json, (self.start, self.end))
        return {each: (begin, stop) for each, begin, stop in intervals(start, end)}


def stream_reader(endpoint: str, streams: str, **options: str) -> SbpStreamReader:
    """Return a reader, which Spark keeps while a query runs; a new one is a restarted driver."""
    given = {"endpoint": endpoint, "streams": streams, "includeHeaders": "true"}
    return SbpStreamReader({**given, "startingOffsets": "earliest", **options}, SCHEMA)


def micro_batches(reader: SbpStreamReader) -> Iterator[MicroBatch]:
    """Go to the tail as a query does; offsets are as they come back from a checkpoint."""
    start = reader.initialOffset()
    limit = reader.getDefaultReadLimit()
    while (end := reader.latestOffset(start, limit)) != start:
        end = json.loads(json.dumps(end))
        yield MicroBatch(start, end)
        start = end


def rows_between(reader: SbpStreamReader, batch: MicroBatch) -> pa.Table:
    """The rows of a micro-batch, by stream and offset."""
    task = SbpStreamReader({}, SCHEMA)
    return rows_of_partitions(task, reader.partitions(batch.start, batch.end))


def rows_of_partitions(
    reader: DataSourceReader | DataSourceStreamReader, partitions: list[InputPartition]
) -> pa.Table:
    """Return the rows read by tasks, by stream and offset; each task gets pickled copies."""
    schema = logical_arrow_schema(SCHEMA)
    tables = []
    for sent in partitions:
        task, partition = pickle.loads(pickle.dumps((reader, sent)))
        tables.append(pa.Table.from_batches(list(task.read(partition)), schema))
        check_order(tables[-1])
    table = pa.concat_tables([schema.empty_table(), *tables])
    return table.sort_by([("stream_id", "ascending"), ("offset", "ascending")])


def check_order(table: pa.Table) -> None:
    """Assert that a task gives each stream's records in their order."""
    last: dict[int, int] = {}
    pairs = zip(*(table.column(name).to_pylist() for name in ("stream_id", "offset")), strict=True)
    for stream_id, offset in pairs:
        assert offset > last.get(stream_id, -1)
        last[stream_id] = offset


def positions_json(offsets: Mapping[int, int]) -> str:
    """Offsets by stream id, as the options take them."""
    return json.dumps({str(stream_id): offset for stream_id, offset in offsets.items()})
