"""What is measured: each function runs one side once and returns the seconds that it took."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from itertools import count
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from benchmarks.sources import MEMORY_FORMAT, NULL_FORMAT, Shape
from sbp_core.client import Client, StreamSpec
from sbp_core.cluster import LocalCluster

QUERY_TIMEOUT_S: Final = 600


class Side(Enum):
    """What runs: the connector, or Spark's own ceiling for the same work."""

    SBP = "sbp"
    CEILING = "ceiling"


class BenchmarkError(Exception):
    """A run did not do the work that it was timed for."""


@dataclass(frozen=True, slots=True)
class Bench:
    """A session, a server of its own, a folder for checkpoints, and the rows to move."""

    spark: SparkSession
    endpoint: str
    folder: Path
    shape: Shape
    _numbers: Iterator[int] = field(default_factory=count)

    def new_streams(self) -> Shape:
        """Create empty streams on the server and return the shape with their names."""
        number = next(self._numbers)
        names = tuple(f"bench-{number}-{index}" for index in range(len(self.shape.streams)))
        with Client(self.endpoint) as client:
            client.create_streams([StreamSpec(name) for name in names])
        return replace(self.shape, streams=names)

    def new_checkpoint(self) -> str:
        """Return a folder that no query used before."""
        return str(self.folder / f"checkpoint-{next(self._numbers)}")

    def fill(self) -> Bench:
        """Write the rows into new streams and return the bench that reads them."""
        filled = replace(self, shape=self.new_streams())
        _save(filled, Side.SBP)
        return filled

    def check_stored(self) -> None:
        """Raise BenchmarkError unless the streams hold exactly the rows of the shape."""
        with Client(self.endpoint) as client:
            infos = client.describe_streams(self.shape.streams)
            bounds = client.stream_bounds([info.stream_id for info in infos])
        stored = sum(bound.next_offset - bound.start_offset for bound in bounds)
        if stored != self.shape.rows:
            raise BenchmarkError(f"{self.shape.rows} rows were written, but {stored} are stored")


@dataclass(frozen=True, slots=True)
class Scenario:
    """A measurement; `needs_rows`: the streams are filled before the first run, untimed."""

    name: str
    ceiling: str
    needs_rows: bool
    run: Callable[[Bench, Side], float]


def batch_read(bench: Bench, side: Side) -> float:
    """Read all rows, from planning to the end."""
    started = time.perf_counter()
    batch_rows(bench, side).write.format("noop").mode("overwrite").save()
    return time.perf_counter() - started


def available_now_read(bench: Bench, side: Side) -> float:
    """Read all rows with Trigger.AvailableNow."""
    return stream_seconds(bench, streamed_rows(bench, side).writeStream.format("noop"))


def batch_write(bench: Bench, side: Side) -> float:
    """Write all rows, acknowledged."""
    target = replace(bench, shape=bench.new_streams())
    return _save(target, side)


def streaming_write(bench: Bench, side: Side, *, delivery: str = "exactly-once") -> float:
    """Write all rows in one micro-batch, acknowledged and, where they were staged, published."""
    target = replace(bench, shape=bench.new_streams())
    writer = streamed_rows(target, Side.CEILING).writeStream
    if side is Side.CEILING:
        return stream_seconds(target, writer.format(NULL_FORMAT))
    writer = writer.format("sbp").options(endpoint=target.endpoint, delivery=delivery)
    seconds = stream_seconds(target, writer)
    target.check_stored()
    return seconds


SCENARIOS: Final = {
    scenario.name: scenario
    for scenario in (
        Scenario("batch-read", "in-memory source", True, batch_read),
        Scenario("available-now-read", "in-memory source", True, available_now_read),
        Scenario("batch-write", "null sink", False, batch_write),
        Scenario("streaming-write", "null sink", False, streaming_write),
        Scenario(
            "streaming-write-at-least-once",
            "null sink",
            False,
            partial(streaming_write, delivery="at-least-once"),
        ),
    )
}


@contextmanager
def open_bench(spark: SparkSession, folder: Path, shape: Shape) -> Iterator[tuple[Bench, int]]:
    """Start a server on an empty folder; give the bench and the server's process id."""
    with LocalCluster(folder / "data") as cluster:
        yield Bench(spark, cluster.endpoint, folder, shape), cluster.pid


def batch_rows(bench: Bench, side: Side) -> DataFrame:
    """Return all rows, of the streams or out of memory, to be read in a batch."""
    if side is Side.SBP:
        return bench.spark.read.format("sbp").options(**sbp_options(bench)).load()
    return bench.spark.read.format(MEMORY_FORMAT).options(**bench.shape.to_options()).load()


def streamed_rows(bench: Bench, side: Side) -> DataFrame:
    """Return all rows, of the streams or out of memory, to be read by a query."""
    if side is Side.SBP:
        options = sbp_options(bench) | {"startingOffsets": "earliest"}
        return bench.spark.readStream.format("sbp").options(**options).load()
    return bench.spark.readStream.format(MEMORY_FORMAT).options(**bench.shape.to_options()).load()


def sbp_options(bench: Bench) -> dict[str, str]:
    """Return the options with which the connector reads as many partitions as its ceiling."""
    names = bench.shape.streams
    return {
        "endpoint": bench.endpoint,
        "streams": ",".join(names),
        "minPartitions": str(len(names)),
    }


def _save(bench: Bench, side: Side) -> float:
    started = time.perf_counter()
    writer = batch_rows(bench, Side.CEILING).write.mode("append")
    if side is Side.CEILING:
        writer.format(NULL_FORMAT).save()
        return time.perf_counter() - started
    writer.format("sbp").option("endpoint", bench.endpoint).save()
    seconds = time.perf_counter() - started
    bench.check_stored()
    return seconds


def stream_seconds(bench: Bench, writer: DataStreamWriter) -> float:
    """Run a query to its end; return how long its micro-batches took, without starting it."""
    query = (
        writer.option("checkpointLocation", bench.new_checkpoint())
        .trigger(availableNow=True)
        .start()
    )
    if not query.awaitTermination(QUERY_TIMEOUT_S):
        query.stop()
        raise BenchmarkError(f"a query did not end within {QUERY_TIMEOUT_S} s")
    progress = query.recentProgress
    rows = sum(each["numInputRows"] for each in progress)
    if rows != bench.shape.rows:
        raise BenchmarkError(f"a query was to move {bench.shape.rows} rows, but moved {rows}")
    return sum(float(each["durationMs"]["triggerExecution"]) for each in progress) / 1000
