"""Spark sessions, queries and checkpoints."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from sbp_core.client import AppendItem, Client, ReceivedBatches, Transaction, Writer
from sbp_core.errors import ConfigurationError
from sbp_core.records import ROWS_SCHEMA, encode_rows
from sbp_spark import testing
from sbp_spark.options.source import parse_source_options
from sbp_spark.reading.prefetch import Chunk

CONF = {
    **testing.SPARK_CONF,
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.streaming.stopTimeout": "20s",
    "spark.driver.memory": "1g",
    "spark.executor.extraJavaOptions": os.environ.get("SPARK_SUBMIT_OPTS", ""),
}


@contextmanager
def spark_session(
    folder: Path, *, master: str = "local[2]", conf: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """A silent session whose files are in `folder`, local and on two cores by default."""
    with testing.spark_session(folder, master=master, conf={**CONF, **(conf or {})}) as spark:
        spark.sparkContext.setLogLevel("OFF")
        yield spark


@contextmanager
def running_task(properties: Mapping[str, str], partition_id: int = 0) -> Iterator[None]:
    """Let this process run a task of Spark, whose job has these local properties."""
    task: Any = object.__new__(TaskContext)
    task._localProperties, task._partitionId = properties, partition_id
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TaskContext, "_taskContext", task)
        yield


TIMESTAMP_US = 1_700_000_000_000_000
QUERY_SECONDS = 240


def rows_of(values: Sequence[bytes | None]) -> pa.RecordBatch:
    """Rows of ROWS_SCHEMA with these values."""
    count = len(values)
    columns = {
        "key": pa.nulls(count, pa.binary()),
        "value": pa.array(values, pa.binary()),
        "headers": pa.nulls(count, ROWS_SCHEMA.field("headers").type),
        "timestamp": pa.array([TIMESTAMP_US] * count, ROWS_SCHEMA.field("timestamp").type),
    }
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=ROWS_SCHEMA)


def chunk_of(span_index: int, payload: memoryview, *, is_more: bool = False) -> Chunk:
    """A chunk as a task fetches it."""
    return Chunk(span_index, ReceivedBatches(payload, 0), is_more=is_more)


def numbered(first: int, stop: int) -> list[bytes]:
    """Values that show which records they are."""
    return [b"%d" % number for number in range(first, stop)]


def append_values(
    client: Client,
    stream: int | str,
    values: Sequence[bytes | None],
    *,
    writer: Writer | None = None,
    transaction: Transaction | None = None,
) -> None:
    """Append one record batch without Spark; with a `writer` also while servers die."""
    (info,) = client.describe_streams([stream])
    batch = encode_rows(rows_of(values), stream_id=info.stream_id, timestamp_ms=0)
    client.append([AppendItem(info.stream_id, batch)], writer=writer, transaction=transaction)


@dataclass
class Sbp:
    """Spark on one cluster."""

    spark: SparkSession
    endpoint: str

    def load(self, *streams: str, **options: Any) -> DataFrame:
        """Read a batch."""
        reader = self.spark.read.format("sbp").options(endpoint=self.endpoint, **options)
        return reader.option("streams", ",".join(streams)).load()

    def load_stream(self, *streams: str, **options: Any) -> DataFrame:
        """Read a stream, from its beginning unless the options say otherwise."""
        reader = self.spark.readStream.format("sbp").options(endpoint=self.endpoint, **options)
        if not any(name.startswith("starting") for name in options):
            reader = reader.option("startingOffsets", "earliest")
        return reader.option("streams", ",".join(streams)).load()

    def save(self, frame: DataFrame, **options: Any) -> None:
        """Append a DataFrame."""
        writer = frame.write.format("sbp").mode("append")
        writer.options(endpoint=self.endpoint, **options).save()

    def values(self, stream: str) -> list[bytes | None]:
        """The values of a stream, in the order of their offsets, which are 0, 1, 2 ..."""
        rows = self.load(stream).orderBy("offset").select("offset", "value").collect()
        assert [row.offset for row in rows] == list(range(len(rows)))
        return [None if row.value is None else bytes(row.value) for row in rows]

    def start_copy(
        self, frame: DataFrame, to: str, checkpoint: Path, **trigger: Any
    ) -> StreamingQuery:
        """Start a query that writes a streaming DataFrame to one stream."""
        writer = frame.writeStream.format("sbp").options(endpoint=self.endpoint, stream=to)
        writer = writer.option("checkpointLocation", str(checkpoint))
        return writer.trigger(**(trigger or {"availableNow": True})).start()

    def copy(self, frame: DataFrame, to: str, checkpoint: Path) -> StreamingQuery:
        """Copy what is available now, wait for the end; raises what the query failed with."""
        query = self.start_copy(frame, to, checkpoint)
        wait_until_over(query)
        return query


def wait_until_over(query: StreamingQuery, seconds: int = QUERY_SECONDS) -> None:
    """Wait for the end of a query; raises what it failed with."""
    is_over = query.awaitTermination(seconds)
    query.stop()
    assert is_over, "the query did not end in time"


def batch_sizes(query: StreamingQuery) -> list[int]:
    """How many records each micro-batch had, empty ones left out."""
    return [
        progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]
    ]


def forget_commit(checkpoint: Path) -> int:
    """Let a query do its last micro-batch again; return its number."""
    commits = checkpoint / "commits"
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
    (commits / str(last)).unlink()
    (commits / f".{last}.crc").unlink(missing_ok=True)
    return last


GOOD = {"endpoint": "pd:12378", "streams": "orders,17"}


def source(streaming=True, **options):
    """Good options with these."""
    return parse_source_options({**GOOD, **options}, streaming=streaming)


def faults(options, streaming=True):
    """The lines of the error about these options."""
    with pytest.raises(ConfigurationError) as caught:
        parse_source_options(options, streaming=streaming)
    return str(caught.value).splitlines()[1:]


def only_fault(streaming=True, **options):
    """The one line of the error about good options with these."""
    (line,) = faults({**GOOD, **options}, streaming)
    return line
