"""The arguments of every scenario, and steps that several of them share."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from benchmarks.harness.interleave import Report, Run, attempt, in_turn
from benchmarks.harness.model import BenchmarkError, Case, Outcome, Shape
from benchmarks.systems.base import Store, System, check_stored
from benchmarks.systems.ceiling import MemoryStore

QUERY_TIMEOUT_S: Final = 600

Systems = Mapping[str, System | str]
"""The measured systems by name; a text is the reason why there is none."""


@dataclass(frozen=True, slots=True)
class Bench:
    """A session, a new folder for checkpoints and files, the rows to move, and how often."""

    spark: SparkSession
    folder: Path
    shape: Shape
    rounds: int
    warm_ups: int
    report: Report
    _numbers: Iterator[int] = field(default_factory=count)

    def new_checkpoint(self) -> str:
        """Return a folder that no query used before."""
        return str(self.folder / f"checkpoint-{next(self._numbers)}")

    def with_shape(self, shape: Shape) -> Bench:
        """Return the bench with other rows."""
        return replace(self, shape=shape)

    def input_of(self, store: Store) -> MemoryStore:
        """Return the rows that are to be written to a store."""
        return MemoryStore(self.spark, store.shape)

    def filled(self, system: System) -> Store:
        """Return a store that has the rows."""
        store = system.new_store(self.shape)
        if not isinstance(store, MemoryStore):
            store.batch_writer(self.input_of(store).rows()).save()
            check_stored(store)
        return store

    def run_seconds(self, writer: DataStreamWriter) -> float:
        """Run a query to its end; return how long its micro-batches took, without starting it.

        Raises BenchmarkError unless it read as many rows as the bench has.
        """
        query = (
            writer.option("checkpointLocation", self.new_checkpoint())
            .trigger(availableNow=True)
            .start()
        )
        if not query.awaitTermination(QUERY_TIMEOUT_S):
            query.stop()
            raise BenchmarkError(f"a query did not end within {QUERY_TIMEOUT_S} s")
        progress = query.recentProgress
        rows = sum(each["numInputRows"] for each in progress)
        if rows != self.shape.rows:
            raise BenchmarkError(f"a query was to move {self.shape.rows} rows, but moved {rows}")
        return sum(float(each["durationMs"]["triggerExecution"]) for each in progress) / 1000


Prepare = Callable[[Bench, System], Run]
"""Does what is not measured on a system, and returns what is."""


def measure(bench: Bench, case: Case, systems: Systems, prepare: Prepare) -> Outcome:
    """Prepare every system that is there, and run them in turn."""
    runs: dict[str, Run | str] = {
        name: system
        if isinstance(system, str)
        else attempt(case, name, partial(prepare, bench, system))
        for name, system in systems.items()
    }
    return in_turn(case, runs, rounds=bench.rounds, warm_ups=bench.warm_ups, report=bench.report)


def seconds_to_nothing(rows: DataFrame) -> float:
    """Read rows in a batch, from planning to the end; return how long that took."""
    started = time.perf_counter()
    rows.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - started
