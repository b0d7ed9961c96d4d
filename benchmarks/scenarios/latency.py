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
        self.are_complete = Event()

    def take(self, batch: DataFrame, _number: int) -> None:
        """Note the records of a micro-batch, once they are here."""
        values = [bytes(row.value) for row in batch.select("value").collect()]
        now = time.perf_counter()
        for value in values:
            self.seconds[int(value.split()[0])] = now
        if None not in self.seconds:
            self.are_complete.set()


def at_once(bench: Bench, system: System) -> Run:
    """Append one record after the other to a query whose next micro-batch starts at once."""
    return lambda: _latencies(bench, system, "0 seconds")


def steady(bench: Bench, system: System) -> Run:
    """Append one record after the other to a query that has a micro-batch every second."""
    return lambda: _latencies(bench, system, TRIGGER)


def _latencies(bench: Bench, system: System, trigger: str) -> Sequence[float]:
    """Return the seconds of each record but the first ones."""
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
            sent = _send(append, len(arrivals.seconds), bench.shape.value_bytes)
            if not arrivals.are_complete.wait(_TIMEOUT_S):
                raise BenchmarkError(f"records did not come within {_TIMEOUT_S} s")
        finally:
            query.stop()
    pairs = zip(sent, arrivals.seconds, strict=True)
    return [arrived - begun for begun, arrived in pairs if arrived is not None][RECORDS_IGNORED:]


def _send(append: Append, count: int, value_bytes: int) -> list[float]:
    """Append so many numbered values; return when each was begun."""
    sent = []
    for number in range(count):
        sent.append(time.perf_counter())
        append(f"{number} ".encode().ljust(value_bytes, b"."))
        time.sleep(INTERVAL_S)
    return sent
