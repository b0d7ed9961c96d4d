"""All scenarios, with the systems and the rows of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.harness.model import OURS, Case, Measure, Outcome, Shape
from benchmarks.scenarios.bench import Bench, Prepare, Systems, measure
from benchmarks.scenarios.columns import ROW_BYTES, columns_read
from benchmarks.scenarios.latency import at_once, steady
from benchmarks.scenarios.memory import memory
from benchmarks.scenarios.micro_batches import micro_batches
from benchmarks.scenarios.moving import (
    available_now_read,
    batch_read,
    batch_write,
    chatty_read,
    merged_read,
    streaming_write,
    values_read,
)
from benchmarks.scenarios.planning import planning
from benchmarks.scenarios.typed import typed_bytes, typed_read, typed_write
from benchmarks.systems.opening import AT_LEAST_ONCE, CEILING, KAFKA, KAFKA_SYNCED

VALUES: Final = (100, 1024, 10_240)
"""Bytes of values, of which the runs of minutes leave out the last."""
STREAMS: Final = (1, 16, 256)
BACKLOGS: Final = (1, 2, 4, 8)
PLANNED: Final = (10, 1_000, 10_000)
LONG_BYTES: Final = 400_000_000
"""Bytes of all values that are read, and in a full run written as well: with fewer, what a job
costs by itself is a good part of the time."""
SHORT_BYTES: Final = 100_000_000
"""Bytes of all values that are written, which takes longer, and of the least backlog."""
COLUMNS_BYTES: Final = 200_000_000
"""Bytes of all columns, of which two are read; as JSON they take thrice as many."""
MEMORY_BYTES: Final = 1024 * 1024 * 1024

Measured = Callable[[Bench, Systems], Sequence[Outcome]]


@dataclass(frozen=True, slots=True)
class Scenario:
    """Something to measure: on which systems, with which shapes, and how.

    `full_shapes` are those that only a full run has; one that has no others is left out otherwise.
    """

    name: str
    systems: tuple[str, ...]
    shapes: tuple[Shape, ...]
    run: Measured
    full_shapes: tuple[Shape, ...] = ()


def shape(
    value_bytes: int, *, streams: int = 2, payload_bytes: int = SHORT_BYTES, rows: int = 0
) -> Shape:
    """Return a shape of `rows` rows, or of as many as fill the payload."""
    names = tuple(f"bench-{index}" for index in range(streams))
    return Shape(rows or max(1, payload_bytes // value_bytes), value_bytes, names)


def _rounds(name: str, kind: Measure, prepare: Prepare) -> Measured:
    """Return what runs the systems in turn, for one case."""

    def run(bench: Bench, systems: Systems) -> Sequence[Outcome]:
        return [measure(bench, Case(name, kind, bench.shape), systems, prepare)]

    return run


def _rate(
    name: str,
    systems: tuple[str, ...],
    prepare: Prepare,
    shapes: Sequence[Shape],
    full_shapes: Sequence[Shape] = (),
) -> Scenario:
    run = _rounds(name, Measure.RATE, prepare)
    return Scenario(name, systems, tuple(shapes), run, tuple(full_shapes))


def _delay(
    name: str, systems: tuple[str, ...], prepare: Prepare, shapes: Sequence[Shape]
) -> Scenario:
    return Scenario(name, systems, tuple(shapes), _rounds(name, Measure.DELAY, prepare))


_READERS: Final = (OURS, CEILING, KAFKA)
_LOGS: Final = (OURS, KAFKA)
_WRITERS: Final = (OURS, CEILING, KAFKA, KAFKA_SYNCED)
_STREAM_WRITERS: Final = (OURS, AT_LEAST_ONCE, CEILING, KAFKA, KAFKA_SYNCED)

_LONG: Final = tuple(shape(size, payload_bytes=LONG_BYTES) for size in VALUES)
_SHORT: Final = tuple(shape(size) for size in VALUES)
_USUAL_WRITES: Final = _SHORT[:2]
_FULL_WRITES: Final = (*_SHORT[2:], *_LONG)
_ONE: Final = (shape(100, streams=1, rows=1),)
_DOUBLES: Final = shape(ROW_BYTES, streams=1, payload_bytes=COLUMNS_BYTES)
_SPREAD: Final = tuple(shape(1024, streams=count) for count in STREAMS)
_GROWING: Final = tuple(shape(1024, payload_bytes=SHORT_BYTES * times) for times in BACKLOGS)

SCENARIOS: Final = {
    scenario.name: scenario
    for scenario in (
        Scenario("memory", _LOGS, (), memory, (shape(1024, payload_bytes=MEMORY_BYTES),)),
        _rate("empty-read", _READERS, batch_read, [shape(100, rows=2)]),
        _rate("batch-read", _READERS, batch_read, _LONG[:2], _LONG[2:]),
        _rate("available-now-read", _READERS, available_now_read, _LONG[:2], _LONG[2:]),
        _rate("values-read", _LOGS, values_read, _LONG[:2], _LONG[2:]),
        _rate("batch-write", _WRITERS, batch_write, _USUAL_WRITES, _FULL_WRITES),
        _rate("streaming-write", _STREAM_WRITERS, streaming_write, _USUAL_WRITES, _FULL_WRITES),
        _rate("chatty-read", _LOGS, chatty_read, [], [shape(100, rows=200_000)]),
        _rate("merged-read", _LOGS, merged_read, [], [shape(100, rows=200_000)]),
        _rate("streams-read", _READERS, available_now_read, [], _SPREAD),
        _rate("streams-write", _WRITERS, batch_write, [], _SPREAD),
        _rate("backlog-read", _READERS, available_now_read, [], _GROWING),
        _delay("latency", _LOGS, at_once, _ONE),
        _delay("latency-steady", _LOGS, steady, _ONE),
        _delay("micro-batch", (OURS, CEILING), micro_batches, _ONE),
        _delay("planning", (OURS,), planning, [shape(1, streams=n, rows=1) for n in PLANNED]),
        Scenario("typed-read", _LOGS, _ONE, typed_read),
        Scenario("typed-write", _LOGS, _ONE, typed_write),
        Scenario("typed-bytes", (OURS,), _ONE, typed_bytes),
        Scenario("columns-read", _LOGS, (), columns_read, (_DOUBLES,)),
    )
}
