"""Two of twenty columns, beside all of them, JSON in Kafka's values, and a Parquet file.

All have the same rows of random doubles, which nothing compresses. Every reader is told the two
columns in the way that lets it read the least.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from benchmarks.harness.interleave import Run, attempt, in_turn
from benchmarks.harness.model import OURS, BenchmarkError, Case, Measure, Outcome
from benchmarks.scenarios.bench import Bench, Systems, seconds_to_nothing
from benchmarks.scenarios.typed import KAFKA_JSON, Columns, Form, Json, fingerprint
from benchmarks.systems.base import Log, LogSystem, check_stored
from benchmarks.systems.opening import KAFKA
from benchmarks.systems.sbp import Streams

COLUMNS: Final = 20
ROW_BYTES: Final = COLUMNS * 8
ALL: Final = "sbp all"
PARQUET: Final = "parquet"
_TWO: Final = ("c3", "c17")
_BATCH_ROWS: Final = 100_000

Read = Callable[[], DataFrame]
"""Returns the rows of one system, planned again each time."""


def columns_read(bench: Bench, systems: Systems) -> list[Outcome]:
    """Read two columns."""
    with _doubles(bench) as rows:
        stream = _written(cast("LogSystem", systems[OURS]), bench, rows, Columns())
        assert isinstance(stream, Streams)
        reads: dict[str, Read | str] = {
            OURS: partial(_from_stream, stream, rows.select(*_TWO)),
            ALL: partial(_from_stream, stream, rows),
            PARQUET: partial(rows.select, *_TWO),
        }
        if KAFKA in systems:
            reads[KAFKA_JSON] = _in_kafka(cast("LogSystem | str", systems[KAFKA]), bench, rows)
        return [_measure(bench, rows, reads)]


def _from_stream(stream: Streams, wanted: DataFrame) -> DataFrame:
    reader = stream.spark.read.format("sbp").schema(wanted.schema)
    return reader.options(**stream.source_options()).load()


def _in_kafka(system: LogSystem | str, bench: Bench, rows: DataFrame) -> Read | str:
    """Return how the columns are read from Kafka, or why they are not."""
    if isinstance(system, str):
        return system
    case = Case("columns-read", Measure.RATE, bench.shape)
    topic = attempt(case, KAFKA, partial(_written, system, bench, rows, Json()))
    return topic if isinstance(topic, str) else partial(Json().rows, topic, rows.select(*_TWO))


def _measure(bench: Bench, rows: DataFrame, reads: Mapping[str, Read | str]) -> Outcome:
    expected = fingerprint(rows.select(*_TWO))
    runs: dict[str, Run | str] = {}
    for name, read in reads.items():
        if not isinstance(read, str) and fingerprint(read().select(*_TWO)) != expected:
            raise BenchmarkError(f"{name} returned other doubles than were written")
        runs[name] = read if isinstance(read, str) else partial(_timed, read)
    case = Case("columns-read", Measure.RATE, bench.shape)
    return in_turn(case, runs, rounds=bench.rounds, warm_ups=bench.warm_ups, report=bench.report)


def _timed(read: Read) -> list[float]:
    return [seconds_to_nothing(read())]


def _written(system: LogSystem, bench: Bench, rows: DataFrame, form: Form) -> Log:
    """Return a new store that has the rows."""
    log = system.new_store(bench.shape)
    form.writer(log, rows).save()
    check_stored(log)
    return log


@contextmanager
def _doubles(bench: Bench) -> Iterator[DataFrame]:
    """Give the rows, in a Parquet file while the body runs."""
    file = Path(bench.folder, "doubles.parquet")
    schema = pa.schema([pa.field(f"c{at}", pa.float64()) for at in range(COLUMNS)])
    values = np.random.default_rng(1)
    with pq.ParquetWriter(file, schema, use_dictionary=False, compression="none") as writer:
        for start in range(0, bench.shape.rows, _BATCH_ROWS):
            count = min(_BATCH_ROWS, bench.shape.rows - start)
            columns = [values.random(count) for _ in schema]
            writer.write_batch(pa.record_batch(columns, schema=schema))
    yield bench.spark.read.parquet(str(file))
    file.unlink()
