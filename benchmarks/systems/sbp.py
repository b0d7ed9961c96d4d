"""The connector, with a placement driver and a range server in a process of their own."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, DataFrameWriter, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from benchmarks.harness.model import BenchmarkError, Shape
from benchmarks.systems.base import WRITTEN, Append
from sbp_core import limits
from sbp_core.client import AppendItem, Client, FetchItem, StreamSpec
from sbp_core.cluster import LocalCluster
from sbp_core.records import ROWS_SCHEMA, encode_rows

MERGE_TIMEOUT_S: Final = 180.0
_MERGE_POLL_S: Final = 0.5
_SHARE_RECORDS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Streams:
    """Streams with the rows of a shape; `tasks` read them, `sink_options` are those of writers."""

    spark: SparkSession
    endpoint: str
    shape: Shape
    tasks: int
    sink_options: Mapping[str, str]

    def rows(self) -> DataFrame:
        return self.spark.read.format("sbp").options(**self.source_options()).load()

    def values(self) -> DataFrame:
        reader = self.spark.read.format("sbp").schema("value binary")
        return reader.options(**self.source_options()).load()

    def streamed_rows(self) -> DataFrame:
        options = self.source_options() | {"startingOffsets": "earliest"}
        return self.spark.readStream.format("sbp").options(**options).load()

    def source_options(self) -> dict[str, str]:
        """Return the options with which as many tasks read as from the other systems.

        By default a long stream is split into shares of a million records; a short one never is.
        """
        return {
            "endpoint": self.endpoint,
            "streams": ",".join(self.shape.streams),
            "minPartitions": str(self.tasks),
            "maxRecordsPerPartition": str(max(self.shape.rows, _SHARE_RECORDS)),
        }

    def batch_writer(self, rows: DataFrame) -> DataFrameWriter:
        return self._writer(rows.select(*WRITTEN))

    def stream_writer(self, rows: DataFrame) -> DataStreamWriter:
        chosen = rows.select(*WRITTEN)
        return chosen.writeStream.format("sbp").options(**self._sink_options())

    def values_writer(self, values: DataFrame) -> DataFrameWriter:
        return self._writer(values).option("stream", self.shape.streams[0])

    def _writer(self, rows: DataFrame) -> DataFrameWriter:
        return rows.write.mode("append").format("sbp").options(**self._sink_options())

    def _sink_options(self) -> dict[str, str]:
        return {"endpoint": self.endpoint, **self.sink_options}

    def stored_rows(self) -> int:
        with Client(self.endpoint) as client:
            infos = client.describe_streams(self.shape.streams)
            bounds = client.stream_bounds([info.stream_id for info in infos])
        return sum(bound.next_offset - bound.start_offset for bound in bounds)

    def wait_until_merged(self, record_count: int) -> None:
        """Fill the segment, and wait until its batches of so few records are merged.

        Raises BenchmarkError if they are not after MERGE_TIMEOUT_S.
        """
        deadline = time.monotonic() + MERGE_TIMEOUT_S
        with Client(self.endpoint) as client:
            (filler,) = client.create_streams([StreamSpec("filler")])
            batch = _one_row(filler.stream_id, bytes(limits.BATCH_TARGET_BYTES))
            for _ in range(limits.SEGMENT_BYTES // len(batch) + 1):
                client.append([AppendItem(filler.stream_id, batch)])
            stream_id = client.describe_streams(self.shape.streams)[0].stream_id
            first = FetchItem(stream_id, 0, None, max_bytes=1)
            while True:
                (fetched,) = client.fetch([first])
                if fetched.next_offset > record_count:
                    return
                if time.monotonic() > deadline:
                    raise BenchmarkError(f"batches are not merged after {MERGE_TIMEOUT_S} s")
                time.sleep(_MERGE_POLL_S)

    @contextmanager
    def appending(self) -> Iterator[Append]:
        with Client(self.endpoint) as client:
            stream_id = client.describe_streams(self.shape.streams)[0].stream_id

            def append(value: bytes) -> None:
                client.append([AppendItem(stream_id, _one_row(stream_id, value))])

            yield append


def _one_row(stream_id: int, value: bytes) -> bytes:
    columns = {field.name: pa.nulls(1, field.type) for field in ROWS_SCHEMA}
    columns["value"] = pa.array([value], pa.binary())
    rows = pa.record_batch(list(columns.values()), schema=ROWS_SCHEMA)
    return encode_rows(rows, stream_id=stream_id, timestamp_ms=0)


@dataclass(frozen=True, slots=True)
class Sbp:
    """The connector, read by `tasks` tasks; writers have `sink_options`."""

    spark: SparkSession
    endpoint: str
    server_pid: int
    tasks: int
    sink_options: Mapping[str, str] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=count)

    def new_store(self, shape: Shape) -> Streams:
        number = next(self._numbers)
        names = tuple(f"{name}-{number}" for name in shape.streams)
        with Client(self.endpoint) as client:
            client.create_streams([StreamSpec(name) for name in names])
        named = replace(shape, streams=names)
        return Streams(self.spark, self.endpoint, named, self.tasks, self.sink_options)

    def with_tasks(self, tasks: int) -> Sbp:
        """Return the same server with another number of tasks that read."""
        return replace(self, tasks=tasks)

    def with_options(self, options: Mapping[str, str]) -> Sbp:
        """Return the same server with other options of writers."""
        return replace(self, sink_options=options)


@contextmanager
def open_sbp(spark: SparkSession, folder: Path) -> Iterator[Sbp]:
    """Start a server on an empty folder."""
    with LocalCluster(folder) as cluster:
        yield Sbp(spark, cluster.endpoint, cluster.pid, spark.sparkContext.defaultParallelism)
