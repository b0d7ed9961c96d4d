"""How long a record takes from before its append until a function of foreachBatch has it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from threading import Event
from typing import Final, cast

from pyspark.sql import DataFrame

from benchmarks.harness.interleave import Run
from benchmarks.harness.model import BenchmarkError
from benchmarks.scenarios.bench import Bench
from benchmarks.systems.base import Append, LogSystem, System

RECORDS: Final = 100
RECORDS_IGNORED: Final = 20
INTERVAL_S: Final = 0.05
TRIGGER: Final = "1 second"
"""Of `steady`: longer than a micro-batch takes, so that all systems have as many."""

_TIMEOUT_S: Final = 60


class Arrivals:
    """When records came to a query; their values begin with their numbers."""

    def __init__(self, count: int) -> None:
        self.seconds: list[float | None] = [None] * count
        self.have_begun = Event()
        self.are_complete = Event()

    def take(self, batch: DataFrame, _number: int) -> None:
        """Note the records of a micro-batch, once they are here."""
        values = [bytes(row.value) for row in batch.select("value").collect()]
        now = time.perf_counter()
        for value in values:
            self.seconds[int(value.split()[0])] = now
        if values:
            self.have_begun.set()
        if None not in self.seconds:
            self.are_complete.set()


def at_once(bench: Bench, system: System) -> Run:
    """Append one record after the other to a query whose next micro-batch starts at once."""
    return lambda: _latencies(bench, system, "0 seconds")


def steady(bench: Bench, system: System) -> Run:
    """Append one record after the other to a query that has a micro-batch every second."""
    return lambda: _latencies(bench, system, TRIGGER)


def _latencies(bench: Bench, system: System, trigger: str) -> Sequence[float]:
    """Return the seconds of each record but the first ones, to a query that is at work."""
    log = cast("LogSystem", system).with_tasks(1).new_store(bench.shape)
    arrivals = Arrivals(RECORDS_IGNORED + RECORDS)
    with log.appending() as append:
        query = (
            log.streamed_rows()
            .writeStream.foreachBatch(arrivals.take)
            .option("checkpointLocation", bench.new_checkpoint())
            .trigger(processingTime=trigger)
            .start()
        )
        try:
            sent = [_send(append, 0, bench.shape.value_bytes)]
            _wait_for(arrivals.have_begun)  # a query takes a second or two to start
            for number in range(1, len(arrivals.seconds)):
                sent.append(_send(append, number, bench.shape.value_bytes))
                time.sleep(INTERVAL_S)
            _wait_for(arrivals.are_complete)
        finally:
            query.stop()
    pairs = zip(sent, arrivals.seconds, strict=True)
    return [arrived - begun for begun, arrived in pairs if arrived is not None][RECORDS_IGNORED:]


def _send(append: Append, number: int, value_bytes: int) -> float:
    """Append a numbered value; return when that was begun."""
    begun = time.perf_counter()
    append(f"{number} ".encode().ljust(value_bytes, b"."))
    return begun


def _wait_for(event: Event) -> None:
    if not event.wait(_TIMEOUT_S):
        raise BenchmarkError(f"records did not come within {_TIMEOUT_S} s")
