"""The time of a micro-batch of a few rows, beside that of a source without any cost."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import pyarrow as pa

from benchmarks.harness.interleave import Run
from benchmarks.harness.model import BenchmarkError
from benchmarks.scenarios.bench import Bench
from benchmarks.systems.base import System
from benchmarks.systems.ceiling import Ceiling
from benchmarks.systems.sbp import Sbp, Streams
from benchmarks.systems.sources import IDLE_ROWS, random_binary
from sbp_core.client import AppendItem, Client
from sbp_core.records import ROWS_SCHEMA, encode_rows

_BATCHES: Final = 20
_BATCHES_IGNORED: Final = 3
_APPEND_INTERVAL_S: Final = 0.02
_TIMEOUT_S: Final = 120


def micro_batches(bench: Bench, system: System) -> Run:
    """Run a query that has a few new rows in each micro-batch."""

    def run() -> Sequence[float]:
        if isinstance(system, Ceiling):
            return _durations(bench, system.new_store(bench.shape).idle_rows())
        assert isinstance(system, Sbp)
        streams = system.with_tasks(1).new_store(bench.shape)
        with _steady_appends(streams):
            return _durations(bench, streams.streamed_rows())

    return run


def _durations(bench: Bench, rows: Any) -> Sequence[float]:
    """Return the seconds of micro-batches that had records, without the first ones."""
    query = (
        rows.writeStream.format("noop")
        .option("checkpointLocation", bench.new_checkpoint())
        .trigger(processingTime="0 seconds")
        .start()
    )
    try:
        give_up_at = time.monotonic() + _TIMEOUT_S
        while time.monotonic() < give_up_at:
            busy = [each for each in query.recentProgress if each["numInputRows"]]
            if len(busy) >= _BATCHES_IGNORED + _BATCHES:
                kept = busy[_BATCHES_IGNORED:]
                return [each["durationMs"]["triggerExecution"] / 1000 for each in kept]
            if query.exception() is not None:
                raise BenchmarkError(str(query.exception()))
            time.sleep(_APPEND_INTERVAL_S)
    finally:
        query.stop()
    raise BenchmarkError(f"no {_BATCHES} micro-batches within {_TIMEOUT_S} s")


@contextmanager
def _steady_appends(streams: Streams) -> Iterator[None]:
    """Append a few records to each stream again and again while the body runs."""
    is_over = threading.Event()

    def append() -> None:
        with Client(streams.endpoint) as client:
            ids = [info.stream_id for info in client.describe_streams(streams.shape.streams)]
            items = [AppendItem(each, _few_rows(each, streams.shape.value_bytes)) for each in ids]
            while not is_over.wait(_APPEND_INTERVAL_S):
                client.append(items)

    thread = threading.Thread(target=append, name="steady-appends", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _few_rows(stream_id: int, value_bytes: int) -> bytes:
    columns = {field.name: pa.nulls(IDLE_ROWS, field.type) for field in ROWS_SCHEMA}
    columns["value"] = random_binary(IDLE_ROWS, value_bytes)
    rows = pa.record_batch(list(columns.values()), schema=ROWS_SCHEMA)
    return encode_rows(rows, stream_id=stream_id, timestamp_ms=0)
