"""Columns with types beside the same columns as JSON in values, in our log and in Kafka's.

The types are known to the stream in one case, to `to_json` and `from_json` in the other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Protocol, cast

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, DataFrameWriter
from pyspark.sql import functions as sf

from benchmarks.harness.interleave import Run, in_turn
from benchmarks.harness.model import OURS, BenchmarkError, Case, Measure, Outcome, Shape
from benchmarks.scenarios.bench import Bench, Systems, seconds_to_nothing
from benchmarks.scenarios.flights import read_flights
from benchmarks.systems.base import Log, LogSystem, check_stored
from benchmarks.systems.opening import KAFKA
from benchmarks.systems.sbp import Sbp, Streams
from sbp_core.client import Client, FetchItem

COPIES: Final = 3
"""How often all flights are written and read, to be at it for some seconds."""
OUR_JSON: Final = "sbp JSON"
KAFKA_JSON: Final = "kafka JSON"
COMPRESSIONS: Final = ("none", "lz4", "zstd")

_FETCH_BYTES: Final = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Flights:
    """Flights to move, out of Parquet files; `shape` counts the bytes of Arrow's columns."""

    frame: DataFrame
    shape: Shape


class Form(Protocol):
    """How flights are kept."""

    def writer(self, log: Log, flights: DataFrame) -> DataFrameWriter: ...

    def rows(self, log: Log, flights: DataFrame) -> DataFrame: ...


class Columns:
    """Columns with types, in a typed stream."""

    def writer(self, log: Log, flights: DataFrame) -> DataFrameWriter:
        return log.values_writer(flights).option("encoding", "columns")

    def rows(self, log: Log, flights: DataFrame) -> DataFrame:
        return log.rows()


class Json:
    """Each flight a JSON object in the value of a record."""

    def writer(self, log: Log, flights: DataFrame) -> DataFrameWriter:
        return log.values_writer(flights.select(sf.to_json(sf.struct("*")).alias("value")))

    def rows(self, log: Log, flights: DataFrame) -> DataFrame:
        text = sf.col("value").cast("string")
        row = sf.from_json(text, flights.schema).alias("row")
        return log.rows().select(row).select("row.*")


def typed_read(bench: Bench, systems: Systems) -> list[Outcome]:
    """Read all flights with their types, which were compared with what was written."""
    with _open(bench, copies=COPIES) as flights:

        def prepare(system: LogSystem, form: Form) -> Run:
            log, _ = _write(system, flights, form)
            if fingerprint(form.rows(log, flights.frame)) != fingerprint(flights.frame):
                raise BenchmarkError("other flights came back than were written")
            return lambda: [seconds_to_nothing(form.rows(log, flights.frame))]

        return [_measure(bench, "typed-read", flights, _prepared(systems, prepare))]


def typed_write(bench: Bench, systems: Systems) -> list[Outcome]:
    """Write all flights, acknowledged."""
    with _open(bench, copies=COPIES) as flights:

        def prepare(system: LogSystem, form: Form) -> Run:
            return lambda: [_write(system, flights, form)[1]]

        return [_measure(bench, "typed-write", flights, _prepared(systems, prepare))]


def typed_bytes(bench: Bench, systems: Systems) -> list[Outcome]:
    """Write all flights once in each form and compression, and look at what is stored."""
    found = []
    sbp = cast("Sbp", systems[OURS])
    with _open(bench, copies=1) as flights:
        for compression in COMPRESSIONS:
            system = sbp.with_options({"batchCompression": compression})
            runs: dict[str, Run | str] = {
                name: partial(_stored_bytes, system, flights, form)
                for name, form in ((OURS, Columns()), (OUR_JSON, Json()))
            }
            case = Case("typed-bytes", Measure.BYTES, flights.shape, compression)
            found.append(in_turn(case, runs, rounds=1, warm_ups=0, report=bench.report))
    return found


def _prepared(systems: Systems, prepare: Callable[[LogSystem, Form], Run]) -> dict[str, Run | str]:
    forms: list[tuple[str, str, Form]] = [
        (OURS, OURS, Columns()),
        (OUR_JSON, OURS, Json()),
        (KAFKA_JSON, KAFKA, Json()),
    ]
    runs: dict[str, Run | str] = {}
    for name, system_name, form in forms:
        system = systems.get(system_name)
        if system is not None:
            there = not isinstance(system, str)
            runs[name] = prepare(cast("LogSystem", system), form) if there else cast("str", system)
    return runs


def _measure(
    bench: Bench, scenario: str, flights: Flights, runs: Mapping[str, Run | str]
) -> Outcome:
    case = Case(scenario, Measure.RATE, flights.shape)
    return in_turn(case, runs, rounds=bench.rounds, warm_ups=bench.warm_ups, report=bench.report)


@contextmanager
def _open(bench: Bench, *, copies: int) -> Iterator[Flights]:
    table = read_flights()
    file = Path(bench.folder, "flights.parquet")
    pq.write_table(table, file)
    frame = bench.spark.read.parquet(*[str(file)] * copies)
    frame = frame.coalesce(bench.spark.sparkContext.defaultParallelism)
    yield Flights(
        frame, Shape(table.num_rows * copies, table.nbytes // table.num_rows, ("flights",))
    )
    file.unlink()


def _write(system: LogSystem, flights: Flights, form: Form) -> tuple[Log, float]:
    """Write all flights into a new store; return it, and the seconds."""
    log = system.new_store(flights.shape)
    started = time.perf_counter()
    form.writer(log, flights.frame).save()
    seconds = time.perf_counter() - started
    check_stored(log)
    return log, seconds


def _stored_bytes(system: Sbp, flights: Flights, form: Form) -> Sequence[float]:
    """Return the bytes of all record batches of a stream with the flights."""
    log, _ = _write(system, flights, form)
    assert isinstance(log, Streams)
    byte_count = 0
    with Client(log.endpoint) as client:
        (info,) = client.describe_streams(log.shape.streams)
        (bounds,) = client.stream_bounds([info.stream_id])
        offset = bounds.start_offset
        while offset < bounds.next_offset:
            item = FetchItem(info.stream_id, offset, bounds.next_offset, _FETCH_BYTES)
            (outcome,) = client.fetch([item])
            if outcome.error is not None:
                raise outcome.error
            byte_count += len(outcome.payload)
            offset = outcome.next_offset
    return [byte_count]


def fingerprint(frame: DataFrame) -> tuple[int, int]:
    """Return what two frames with the same rows have in common, whatever their order."""
    columns = [sf.col(name) for name in sorted(frame.columns)]
    total = sf.sum(sf.xxhash64(*columns).cast("decimal(38, 0)"))
    row = frame.select(total.alias("total"), sf.count("*").alias("count")).first()
    assert row is not None
    return int(row["total"]), int(row["count"])
