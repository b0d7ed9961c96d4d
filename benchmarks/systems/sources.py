"""Spark's own ceiling for Python sources and sinks: batches out of memory, rows into nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    DataSourceWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from benchmarks.harness.model import Shape
from sbp_spark.logical_types import logical_arrow_schema
from sbp_spark.row_schema import source_schema

ROWS_PER_BATCH_MAX: Final = 10_000
BYTES_PER_BATCH: Final = 1024 * 1024
"""Values of one batch; with fewer rows where they are large, as the connector's batches have."""
KEY_BYTES: Final = 8
MEMORY_FORMAT: Final = "bench_memory"
NULL_FORMAT: Final = "bench_null"
IDLE_FORMAT: Final = "bench_idle"
TASKS: Final = 2
"""Tasks that read the in-memory source, as many as the session has slots for."""
IDLE_ROWS: Final = 10
"""Rows of each stream in a micro-batch of the idle source."""

_TIMESTAMP_US: Final = 1_700_000_000_000_000


def shape_options(shape: Shape) -> dict[str, str]:
    """Return a shape as options of the in-memory source."""
    return {
        "rows": str(shape.rows),
        "valueBytes": str(shape.value_bytes),
        "streams": ",".join(shape.streams),
    }


def shape_of(options: Mapping[str, str]) -> Shape:
    """Return the shape that `shape_options` gave to the in-memory source."""
    streams = tuple(options["streams"].split(","))
    return Shape(int(options["rows"]), int(options["valueBytes"]), streams)


def rows_per_batch(shape: Shape) -> int:
    """Return the rows of each Arrow batch: as many as the connector gives to Spark at a time."""
    return min(ROWS_PER_BATCH_MAX, max(1, BYTES_PER_BATCH // shape.value_bytes))


@dataclass(frozen=True)
class Portion:
    """Rows of one stream; `stream_id` is its place among the streams."""

    stream: str
    stream_id: int
    rows: int
    rows_per_batch: int
    value_bytes: int


@dataclass(frozen=True)
class Work(InputPartition):
    """The rows that one task yields, one stream after the other."""

    portions: tuple[Portion, ...]


def works(shape: Shape, start: int, end: int) -> list[Work]:
    """Deal the rows [start, end) of all streams out to TASKS tasks, or one for each stream."""
    found = portions(shape, start, end)
    count = min(TASKS, len(found))
    cuts = [len(found) * index // count for index in range(count + 1)]
    return [Work(tuple(found[begin:end])) for begin, end in pairwise(cuts)]


def portions(shape: Shape, start: int, end: int) -> list[Portion]:
    """Cut the rows [start, end) of all streams together into one even portion for each stream."""
    count = len(shape.streams)
    cuts = [start + (end - start) * index // count for index in range(count + 1)]
    return [
        Portion(stream, index, after - before, rows_per_batch(shape), shape.value_bytes)
        for index, (stream, (before, after)) in enumerate(
            zip(shape.streams, pairwise(cuts), strict=True)
        )
    ]


def read_work(work: InputPartition) -> Iterator[pa.RecordBatch]:
    """Yield all rows of a task."""
    assert isinstance(work, Work)
    for portion in work.portions:
        yield from read_portion(portion)


def read_portion(portion: Portion) -> Iterator[pa.RecordBatch]:
    """Yield the one prebuilt batch of a stream until all rows of the portion are out."""
    batch = _prebuilt_batch(portion)
    for rest in range(portion.rows, 0, -batch.num_rows):
        yield batch if rest >= batch.num_rows else batch.slice(0, rest)


@lru_cache(maxsize=512)
def _prebuilt_batch(portion: Portion) -> pa.RecordBatch:
    schema = logical_arrow_schema(source_schema(include_headers=False))
    count = max(1, min(portion.rows_per_batch, portion.rows))
    columns = {
        "stream": pa.array([portion.stream] * count),
        "stream_id": pa.array(np.full(count, portion.stream_id)),
        "range_index": pa.array(np.zeros(count, dtype=np.int32)),
        "offset": pa.array(np.arange(count)),
        "timestamp": pa.array(np.full(count, _TIMESTAMP_US)).cast(schema.field("timestamp").type),
        "key": random_binary(count, KEY_BYTES),
        "value": random_binary(count, portion.value_bytes),
    }
    return pa.record_batch([columns[field.name] for field in schema], schema=schema)


def random_binary(count: int, size_bytes: int) -> pa.Array:
    """Return `count` values of `size_bytes` bytes each, the same ones every time."""
    data = np.random.default_rng(seed=0).bytes(count * size_bytes)
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(size_bytes)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), count, buffers)


class MemoryReader(DataSourceReader):
    """Reads all rows of the shape once."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape

    def partitions(self) -> Sequence[InputPartition]:
        return works(self._shape, 0, self._shape.rows)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_work(partition)


class MemoryStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads all rows of the shape in one micro-batch."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"rows": 0}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Nothing to freeze: the rows are as many as they are."""

    def latestOffset(self, start: dict[str, int], limit: object) -> dict[str, int]:  # noqa: N802
        return {"rows": self._shape.rows}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return works(self._shape, start["rows"], end["rows"])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_work(partition)


class MemorySource(DataSource):
    """The columns of the sbp source, out of memory: batches that were built before."""

    @classmethod
    def name(cls) -> str:
        return MEMORY_FORMAT

    def schema(self) -> StructType:
        return source_schema(include_headers=False)

    def reader(self, schema: StructType) -> DataSourceReader:
        return MemoryReader(shape_of(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return MemoryStreamReader(shape_of(self.options))


class IdleStreamReader(MemoryStreamReader):
    """Always has a few new rows in each stream, for nothing."""

    def latestOffset(self, start: dict[str, int], limit: object) -> dict[str, int]:  # noqa: N802
        return {"rows": start["rows"] + IDLE_ROWS * len(self._shape.streams)}


class IdleSource(MemorySource):
    """The least that a source can do in a micro-batch."""

    @classmethod
    def name(cls) -> str:
        return IDLE_FORMAT

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return IdleStreamReader(shape_of(self.options))


@dataclass
class Counted(WriterCommitMessage):
    """How many rows a task was given."""

    rows: int


class NullWriter(DataSourceArrowWriter):
    """Counts rows and forgets them."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return Counted(sum(batch.num_rows for batch in iterator))


class NullStreamWriter(DataSourceStreamArrowWriter):
    """Counts the rows of micro-batches and forgets them."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return Counted(sum(batch.num_rows for batch in iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing to publish."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing to undo."""


class NullSink(DataSource):
    """Takes any rows as Arrow batches."""

    @classmethod
    def name(cls) -> str:
        return NULL_FORMAT

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001
        return NullWriter()

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802, FBT001
        return NullStreamWriter()


def register(spark: SparkSession) -> None:
    """Make the sources and sinks of the benchmarks known to the session."""
    spark.dataSource.register(MemorySource)
    spark.dataSource.register(IdleSource)
    spark.dataSource.register(NullSink)
