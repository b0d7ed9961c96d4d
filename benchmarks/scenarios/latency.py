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
from benchmarks.systems.base import LogSystem, System

TRIGGER_S: Final = 1
"""Of `steady`: longer than a micro-batch takes, so that all systems have as many."""
TRIGGERS: Final = 5
RECORDS: Final = 201
"""Sent over a whole number of trigger intervals. Both numbers have no common divisor, so that each
record comes at another point of a trigger interval, all points alike."""
RECORDS_IGNORED: Final = 40
INTERVAL_S: Final = TRIGGERS * TRIGGER_S / RECORDS

_TIMEOUT_S: Final = 60


class Arrivals:
    """Arrival times of records at a query; their values begin with their numbers."""

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
    return lambda: _latencies(bench, system, f"{TRIGGER_S} seconds")


def _latencies(bench: Bench, system: System, trigger: str) -> Sequence[float]:
    """Return the seconds of each record but the first ones, to a query that is at work.

    A record's time begins when it is due: that an append waits for another counts.
    """
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
            append(_value(0, bench.shape.value_bytes))
            _wait_for(arrivals.have_begun)  # a query takes a second or two to start
            first = time.perf_counter()
            due = [first + number * INTERVAL_S for number in range(len(arrivals.seconds))]
            for number, when in enumerate(due[1:], start=1):
                time.sleep(max(0.0, when - time.perf_counter()))
                append(_value(number, bench.shape.value_bytes))
            _wait_for(arrivals.are_complete)
        finally:
            query.stop()
    pairs = zip(due, arrivals.seconds, strict=True)
    return [arrived - begun for begun, arrived in pairs if arrived is not None][RECORDS_IGNORED:]


def _value(number: int, value_bytes: int) -> bytes:
    return f"{number} ".encode().ljust(value_bytes, b".")


def _wait_for(event: Event) -> None:
    if not event.wait(_TIMEOUT_S):
        raise BenchmarkError(f"records did not come within {_TIMEOUT_S} s")
