"""How long the driver takes to find one new record, as the streams grow in number."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from statistics import median
from typing import Any, Final

from pyspark.sql.streaming.datasource import ReadAllAvailable

from benchmarks.harness.interleave import Run
from benchmarks.harness.model import BenchmarkError
from benchmarks.scenarios.bench import Bench
from benchmarks.systems.base import Append, System
from benchmarks.systems.sbp import Sbp, Streams
from sbp_core import limits
from sbp_core.client import Client, StreamSpec
from sbp_spark.row_schema import source_schema
from sbp_spark.streaming.stream_reader import SbpStreamReader

Offset = dict[str, Any]

_LOOKS: Final = 5


def planning(bench: Bench, system: System) -> Run:
    """Look for news of as many streams as the bench has, when one of them has a new record."""
    assert isinstance(system, Sbp)
    reader = _reader(system.endpoint, bench.shape.streams)
    log = Streams(system.spark, system.endpoint, bench.shape, system.tasks, system.sink_options)
    offset = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())

    def measure() -> list[float]:
        with log.appending() as append:
            return [median(look(append) for _ in range(_LOOKS))]

    def look(append: Append) -> float:
        nonlocal offset
        append(b"1")
        seconds, offset = _look(reader, offset)
        return seconds

    return measure


def _reader(endpoint: str, names: Sequence[str]) -> SbpStreamReader:
    with Client(endpoint) as client:
        specs = [StreamSpec(name) for name in names]
        for begin in range(0, len(specs), limits.STREAMS_PER_CALL):
            client.create_streams(specs[begin : begin + limits.STREAMS_PER_CALL])
    pattern = f"{names[0].rsplit('-', 1)[0]}-.*"
    options = {"endpoint": endpoint, "streamsPattern": pattern, "startingOffsets": "earliest"}
    return SbpStreamReader(options, source_schema(include_headers=False))


def _look(reader: SbpStreamReader, offset: Offset) -> tuple[float, Offset]:
    """Return how long a look takes from an offset that was just parsed, and the latest offset.

    Streams must have news: a look without news waits for some.
    """
    start = json.loads(json.dumps(offset))
    started = time.perf_counter()
    latest = reader.latestOffset(start, ReadAllAvailable())
    seconds = time.perf_counter() - started
    if latest == offset:
        raise BenchmarkError("the record that was appended was not found")
    return seconds, latest
