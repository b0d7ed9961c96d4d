"""What a micro-batch takes beside its records: next to an idle source, or to few streams.

Either figure is the time of one side as a multiple of the other's: 1.0 means that what is measured
costs nothing.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.streaming.datasource import ReadAllAvailable

from benchmarks import report
from benchmarks.scenarios import Bench, BenchmarkError, Side, sbp_options
from benchmarks.sources import IDLE_FORMAT, IDLE_ROWS, random_binary
from sbp_core import limits
from sbp_core.client import AppendItem, Client, StreamSpec
from sbp_core.records import ROWS_SCHEMA, encode_rows
from sbp_spark.schema import source_schema
from sbp_spark.streaming.stream_reader import SbpStreamReader

MICRO_BATCH: Final = "micro-batch"
PLANNING: Final = "planning"
CHOICES: Final = (MICRO_BATCH, PLANNING)

FEW_STREAMS: Final = 10
MANY_STREAMS: Final = 10_000

_BATCHES: Final = 20
_BATCHES_IGNORED: Final = 3
_APPEND_INTERVAL_S: Final = 0.02
_QUERY_TIMEOUT_S: Final = 120
_LOOKS: Final = 5


@dataclass(frozen=True, slots=True)
class Delay:
    """Median milliseconds of two sides; `ratio` is the median of the rounds' ratios."""

    what: str
    ms: float
    baseline: str
    baseline_ms: float
    ratio: float
    ratio_low: float
    ratio_high: float


def delay(
    what: str, seconds: Sequence[float], baseline: str, baseline_seconds: Sequence[float]
) -> Delay:
    """Sum up rounds: `seconds[i]` and `baseline_seconds[i]` were measured back to back."""
    ratios = [own / other for own, other in zip(seconds, baseline_seconds, strict=True)]
    return Delay(
        what,
        median(seconds) * 1000,
        baseline,
        median(baseline_seconds) * 1000,
        median(ratios),
        min(ratios),
        max(ratios),
    )


def table(delays: Sequence[Delay]) -> str:
    """Return the delays as a table for the terminal."""
    header = ("what", "ms", "next to", "its ms", "ratio", "spread")
    lines = [
        (
            each.what,
            f"{each.ms:,.1f}",
            each.baseline,
            f"{each.baseline_ms:,.1f}",
            f"{each.ratio:.2f}",
            f"{each.ratio_low:.2f} to {each.ratio_high:.2f}",
        )
        for each in delays
    ]
    return report.table(header, lines, text_columns={0, 2})


def to_json(delays: Sequence[Delay]) -> list[dict[str, Any]]:
    """Return the delays for the file of results."""
    return [asdict(each) for each in delays]


def micro_batches(bench: Bench, rounds: int, *, tell: Callable[[str], None]) -> Delay:
    """Measure micro-batches of a few records, of the connector and of a source without any log."""
    seconds: dict[Side, list[float]] = {side: [] for side in Side}
    for number in range(rounds + 1):
        taken = {side: _micro_batch_seconds(bench, side) for side in Side}
        tell(f"{MICRO_BATCH}: round {number}: " + ", ".join(f"{s:.3f} s" for s in taken.values()))
        for side in Side if number else ():
            seconds[side].append(taken[side])
    return delay(MICRO_BATCH, seconds[Side.SBP], "an idle source", seconds[Side.CEILING])


def _micro_batch_seconds(bench: Bench, side: Side) -> float:
    """Return the median time of the micro-batches of one query."""
    filled = bench if side is Side.CEILING else replace(bench, shape=bench.new_streams())
    reader = bench.spark.readStream
    if side is Side.CEILING:
        rows = reader.format(IDLE_FORMAT).options(**bench.shape.to_options()).load()
    else:
        options = sbp_options(filled) | {"startingOffsets": "earliest"}
        rows = reader.format("sbp").options(**options).load()
    with _steady_appends(filled, is_wanted=side is Side.SBP):
        query = (
            rows.writeStream.format("noop")
            .option("checkpointLocation", bench.new_checkpoint())
            .trigger(processingTime="0 seconds")
            .start()
        )
        try:
            durations = _durations(query)
        finally:
            query.stop()
    return median(durations)


def _durations(query: Any) -> list[float]:
    """Return the seconds of micro-batches that had records, without the first ones."""
    give_up_at = time.monotonic() + _QUERY_TIMEOUT_S
    while time.monotonic() < give_up_at:
        busy = [each for each in query.recentProgress if each["numInputRows"]]
        if len(busy) >= _BATCHES_IGNORED + _BATCHES:
            return [
                each["durationMs"]["triggerExecution"] / 1000 for each in busy[_BATCHES_IGNORED:]
            ]
        if query.exception() is not None:
            raise BenchmarkError(str(query.exception()))
        time.sleep(_APPEND_INTERVAL_S)
    raise BenchmarkError(f"no {_BATCHES} micro-batches within {_QUERY_TIMEOUT_S} s")


@contextmanager
def _steady_appends(bench: Bench, *, is_wanted: bool) -> Iterator[None]:
    """Append a few records to each stream again and again while the body runs."""
    if not is_wanted:
        yield
        return
    is_over = threading.Event()

    def append() -> None:
        with Client(bench.endpoint) as client:
            ids = [info.stream_id for info in client.describe_streams(bench.shape.streams)]
            items = [AppendItem(each, _few_rows(each, bench.shape.value_bytes)) for each in ids]
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


def planning(endpoint: str, rounds: int, *, tell: Callable[[str], None]) -> Delay:
    """Measure how long the driver looks for news of many streams that have none, next to few."""
    readers = {count: _reader(endpoint, count) for count in (FEW_STREAMS, MANY_STREAMS)}
    offsets = {
        count: reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
        for count, reader in readers.items()
    }
    seconds: dict[int, list[float]] = {count: [] for count in readers}
    for number in range(rounds + 1):
        for count, reader in readers.items():
            taken = median(_look_seconds(reader, offsets[count]) for _ in range(_LOOKS))
            tell(f"{PLANNING}: round {number}: {count} streams {taken * 1000:.2f} ms")
            if number:
                seconds[count].append(taken)
    return delay(
        f"{PLANNING} {MANY_STREAMS:,} streams",
        seconds[MANY_STREAMS],
        f"{FEW_STREAMS} streams",
        seconds[FEW_STREAMS],
    )


def _reader(endpoint: str, count: int) -> SbpStreamReader:
    with Client(endpoint) as client:
        specs = [StreamSpec(f"plan-{count}-{index}") for index in range(count)]
        for begin in range(0, count, limits.STREAMS_PER_CALL):
            client.create_streams(specs[begin : begin + limits.STREAMS_PER_CALL])
    options = {
        "endpoint": endpoint,
        "streamsPattern": f"plan-{count}-.*",
        "startingOffsets": "earliest",
    }
    return SbpStreamReader(options, source_schema(include_headers=False))


def _look_seconds(reader: SbpStreamReader, offset: dict[str, Any]) -> float:
    """Return how long a look takes from an offset that was parsed anew, as Spark does."""
    start = json.loads(json.dumps(offset))
    started = time.perf_counter()
    latest = reader.latestOffset(start, ReadAllAvailable())
    seconds = time.perf_counter() - started
    if latest != offset:
        raise BenchmarkError("streams to which nothing was appended have moved")
    return seconds
