"""How long the driver looks for news of streams that have none, as the streams grow in number."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, Final

from pyspark.sql.streaming.datasource import ReadAllAvailable

from benchmarks.harness.interleave import Run
from benchmarks.harness.model import BenchmarkError
from benchmarks.scenarios.bench import Bench
from benchmarks.systems.base import System
from benchmarks.systems.sbp import Sbp
from sbp_core import limits
from sbp_core.client import Client, StreamSpec
from sbp_spark.row_schema import source_schema
from sbp_spark.streaming.stream_reader import SbpStreamReader

_LOOKS: Final = 5


def planning(bench: Bench, system: System) -> Run:
    """Look for news of as many idle streams as the bench has."""
    assert isinstance(system, Sbp)
    reader = _reader(system.endpoint, bench.shape.streams)
    offset = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    return lambda: [median(_look_seconds(reader, offset) for _ in range(_LOOKS))]


def _reader(endpoint: str, names: Sequence[str]) -> SbpStreamReader:
    with Client(endpoint) as client:
        specs = [StreamSpec(name) for name in names]
        for begin in range(0, len(specs), limits.STREAMS_PER_CALL):
            client.create_streams(specs[begin : begin + limits.STREAMS_PER_CALL])
    pattern = f"{names[0].rsplit('-', 1)[0]}-.*"
    options = {"endpoint": endpoint, "streamsPattern": pattern, "startingOffsets": "earliest"}
    return SbpStreamReader(options, source_schema(include_headers=False))


def _look_seconds(reader: SbpStreamReader, offset: Mapping[str, Any]) -> float:
    """Return how long a look takes from an offset that was just parsed, as Spark does."""
    start = json.loads(json.dumps(offset))
    started = time.perf_counter()
    latest = reader.latestOffset(start, ReadAllAvailable())
    seconds = time.perf_counter() - started
    if latest != offset:
        raise BenchmarkError("streams to which nothing was appended have moved")
    return seconds
