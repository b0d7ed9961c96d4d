"""Rows from a store into nothing, and out of memory into a store."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from benchmarks.harness.interleave import Run
from benchmarks.scenarios.bench import Bench, seconds_to_nothing
from benchmarks.systems.base import System, check_stored
from benchmarks.systems.ceiling import MemoryStore, renamed
from benchmarks.systems.kafka import Kafka, Topic
from benchmarks.systems.sbp import Sbp, Streams

CHATTY_RECORDS: Final = 10
CHATTY_SBP: Final = {"batchRecords": f"{CHATTY_RECORDS}"}
CHATTY_KAFKA: Final = {"kafka.batch.size": "1200", "kafka.linger.ms": "0"}
"""About ten records of 100 B; Kafka's producer counts bytes, with those of its batch's header."""


def batch_read(bench: Bench, system: System) -> Run:
    """Read all rows, from planning to the end."""
    store = bench.filled(system)
    return lambda: [seconds_to_nothing(store.rows())]


def values_read(bench: Bench, system: System) -> Run:
    """Read the values of all rows, and no other column."""
    store = bench.filled(system)
    assert isinstance(store, Streams | Topic)
    return lambda: [seconds_to_nothing(store.values())]


def available_now_read(bench: Bench, system: System) -> Run:
    """Read all rows with Trigger.AvailableNow."""
    store = bench.filled(system)
    return lambda: [bench.run_seconds(store.streamed_rows().writeStream.format("noop"))]


def batch_write(bench: Bench, system: System) -> Run:
    """Write all rows, which Spark keeps in its memory, into an empty store, acknowledged."""
    kept = MemoryStore(bench.spark, bench.shape).kept_rows()

    def run() -> Sequence[float]:
        store = system.new_store(bench.shape)
        rows = renamed(kept, store.shape)
        started = time.perf_counter()
        store.batch_writer(rows).save()
        seconds = time.perf_counter() - started
        check_stored(store)
        return [seconds]

    return run


def streaming_write(bench: Bench, system: System) -> Run:
    """Write all rows in one micro-batch, acknowledged, and published where they are staged."""

    def run() -> Sequence[float]:
        store = system.new_store(bench.shape)
        rows = bench.input_of(store).streamed_rows()
        seconds = bench.run_seconds(store.stream_writer(rows))
        check_stored(store)
        return [seconds]

    return run


def chatty_read(bench: Bench, system: System) -> Run:
    """Read all rows, which were written in batches of a few."""
    assert isinstance(system, Sbp | Kafka)
    options = CHATTY_SBP if isinstance(system, Sbp) else CHATTY_KAFKA
    store = bench.filled(system.with_options(options))
    return lambda: [seconds_to_nothing(store.rows())]


def merged_read(bench: Bench, system: System) -> Run:
    """Read all rows, which were written in batches of a few; SBP's server has merged its own.

    It does not merge batches of transactions, so these rows are written at least once.
    """
    if not isinstance(system, Sbp):
        return chatty_read(bench, system)
    store = bench.filled(system.with_options({**CHATTY_SBP, "delivery": "at-least-once"}))
    assert isinstance(store, Streams)
    store.wait_until_merged(CHATTY_RECORDS)
    return lambda: [seconds_to_nothing(store.rows())]
