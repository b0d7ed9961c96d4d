"""Columns with types beside the same columns as JSON in the values of rows.

Both sides are the connector's, on one server. What differs is who knows the types: the stream, or
`to_json` and `from_json`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from benchmarks import report
from benchmarks.flights import read_flights
from benchmarks.peer.report import Comparison, compare
from benchmarks.scenarios import Bench, BenchmarkError, open_bench
from benchmarks.sources import Shape
from sbp_core.client import Client, FetchItem

READ: Final = "typed-read"
WRITE: Final = "typed-write"
BYTES: Final = "typed-bytes"
CHOICES: Final = (READ, WRITE, BYTES)

PEER: Final = "JSON in rows"
COPIES: Final = 3
"""How often all flights are written and read, to be at it for some seconds."""
TASKS: Final = 2
WARM_UPS: Final = 2
"""Rounds that are not timed: JSON is Java's work, which gets faster while it is compiled."""
COMPRESSIONS: Final = ("none", "lz4", "zstd")

_FETCH_BYTES: Final = 8 * 1024 * 1024


class Form(Enum):
    """How a flight is kept."""

    COLUMNS = "columns"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class Size:
    """Octets of the record batches of a stream for each row, in either form."""

    compression: str
    columns_bytes: float
    json_bytes: float

    @property
    def ratio(self) -> float:
        """Columns over JSON: below 1.0, columns are smaller."""
        return self.columns_bytes / self.json_bytes


@dataclass(frozen=True, slots=True)
class FlightBench:
    """Flights to move; `payload_bytes` are the octets of their columns in Arrow's form."""

    bench: Bench
    flights: DataFrame
    payload_bytes: int

    def write(self, form: Form, compression: str = "none") -> tuple[FlightBench, float]:
        """Write all flights into a new stream; return the bench that has it, and the seconds."""
        target = replace(self.bench, shape=self.bench.new_streams())
        frame = self.flights
        if form is Form.JSON:
            frame = frame.select(sf.to_json(sf.struct("*")).alias("value"))
        writer = frame.write.format("sbp").mode("append").option("endpoint", target.endpoint)
        writer = writer.options(stream=target.shape.streams[0], batchCompression=compression)
        if form is Form.COLUMNS:
            writer = writer.option("encoding", "columns")
        started = time.perf_counter()
        writer.save()
        seconds = time.perf_counter() - started
        target.check_stored()
        return replace(self, bench=target), seconds

    def read(self, form: Form) -> DataFrame:
        """Return the flights of the stream, with their types."""
        reader = self.bench.spark.read.format("sbp").option("endpoint", self.bench.endpoint)
        reader = reader.options(streams=self.bench.shape.streams[0], minPartitions=TASKS)
        frame = reader.load()
        if form is Form.JSON:
            text = sf.col("value").cast("string")
            row = sf.from_json(text, self.flights.schema).alias("row")
            frame = frame.select(row).select("row.*")
        return frame

    def check_read(self, form: Form) -> None:
        """Raise BenchmarkError unless the stream gives back what was written."""
        if _fingerprint(self.read(form)) != _fingerprint(self.flights):
            raise BenchmarkError(f"other flights came back as {form.value} than were written")

    def stored_bytes(self) -> int:
        """Return the octets of all record batches of the stream."""
        octets = 0
        with Client(self.bench.endpoint) as client:
            (info,) = client.describe_streams(self.bench.shape.streams)
            (bounds,) = client.stream_bounds([info.stream_id])
            offset = bounds.start_offset
            while offset < bounds.next_offset:
                item = FetchItem(info.stream_id, offset, bounds.next_offset, _FETCH_BYTES)
                (outcome,) = client.fetch([item])
                if outcome.error is not None:
                    raise outcome.error
                octets += len(outcome.payload)
                offset = outcome.next_offset
        return octets


def measure(
    spark: SparkSession, name: str, rounds: int, *, folder: Path, tell: Callable[[str], None]
) -> Comparison:
    """Read or write in both forms in turn, unmeasured first and then `rounds` times."""
    seconds: dict[Form, list[float]] = {form: [] for form in Form}
    with _open(spark, folder, copies=COPIES) as bench:
        filled = {form: bench.write(form)[0] for form in Form}
        for form in Form:
            filled[form].check_read(form)
        for number in range(1 - WARM_UPS, rounds + 1):
            for form in Form:
                os.sync()  # nobody pays for what the other has left to be written
                taken = bench.write(form)[1] if name == WRITE else _read_seconds(filled[form], form)
                what = f"round {number}" if number > 0 else "warm-up"
                tell(f"{name}: {what}: {form.value} {taken:.2f} s")
                seconds[form] += [taken] if number > 0 else []
        return compare(
            name,
            PEER,
            rows=bench.bench.shape.rows,
            payload_bytes=bench.payload_bytes,
            seconds=seconds[Form.COLUMNS],
            peer_seconds=seconds[Form.JSON],
        )


def measure_sizes(spark: SparkSession, *, folder: Path, tell: Callable[[str], None]) -> list[Size]:
    """Write all flights once in each form with each compression, and look at what is stored."""
    sizes = []
    with _open(spark, folder, copies=1) as bench:
        for compression in COMPRESSIONS:
            octets = {form: bench.write(form, compression)[0].stored_bytes() for form in Form}
            rows = bench.bench.shape.rows
            size = Size(compression, octets[Form.COLUMNS] / rows, octets[Form.JSON] / rows)
            tell(f"{BYTES}: {compression}: {size.ratio:.2f}")
            sizes.append(size)
    return sizes


def size_table(sizes: Sequence[Size]) -> str:
    """Return the sizes as a table for the terminal."""
    header = ("batchCompression", "columns B/row", "JSON B/row", "ratio")
    lines = [
        (
            each.compression,
            f"{each.columns_bytes:,.1f}",
            f"{each.json_bytes:,.1f}",
            f"{each.ratio:.2f}",
        )
        for each in sizes
    ]
    return report.table(header, lines, text_columns={0})


@contextmanager
def _open(spark: SparkSession, folder: Path, *, copies: int) -> Iterator[FlightBench]:
    """Start a server on an empty folder; give the bench that reads flights from Parquet files."""
    flights = read_flights()
    file = folder / "flights.parquet"
    pq.write_table(flights, file)
    shape = Shape(flights.num_rows * copies, flights.nbytes // flights.num_rows, ("flights",))
    frame = spark.read.parquet(*[str(file)] * copies).coalesce(TASKS)
    with open_bench(spark, folder, shape) as (bench, _):
        yield FlightBench(bench, frame, flights.nbytes * copies)


def _read_seconds(bench: FlightBench, form: Form) -> float:
    started = time.perf_counter()
    bench.read(form).write.format("noop").mode("overwrite").save()
    return time.perf_counter() - started


def _fingerprint(frame: DataFrame) -> tuple[int, int]:
    """Return what two frames with the same rows have in common, whatever their order."""
    columns = [sf.col(name) for name in sorted(frame.columns)]
    total = sf.sum(sf.xxhash64(*columns).cast("decimal(38, 0)"))
    row = frame.select(total.alias("total"), sf.count("*").alias("count")).first()
    assert row is not None
    return int(row["total"]), int(row["count"])
