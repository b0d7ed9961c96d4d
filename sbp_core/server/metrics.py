"""Metrics of servers: what each is, and the numbers that it is read from.

A metric is declared once, in a `Catalog`: its name, unit and meaning, from which `/metrics` and
docs/reference/metrics.md follow. Names are those of Prometheus: the unit is a part of them, base
units only, and a counter ends with `_total`.

Requests add to plain numbers (`Histogram`, `RequestTimes`), which belong to the thread of the
server's loop. A reading copies them; nothing is rendered, and nothing waits, on that thread.
"""

from __future__ import annotations

import enum
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from sbp_core.wire.opcodes import Opcode


class Kind(enum.Enum):
    """The types of metrics that Prometheus knows, and that there are here."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""Upper bounds of the buckets of times."""
SIZES: Final = tuple(float(4**power) for power in range(4, 14))
"""Upper bounds of the buckets of bytes: from 256 bytes to 64 MiB."""
COUNTS: Final = tuple(float(2**power) for power in range(13))
"""Upper bounds of the buckets of small numbers: from 1 to 4096."""


class Histogram:
    """How many values there were up to each of `bounds`, with the last bucket for the rest."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        """The sum of all values."""

    def add(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        """How many values there were."""
        return sum(self.counts)

    def copy(self) -> Histogram:
        """Return a copy, which does not change."""
        copied = Histogram(self.bounds)
        copied.counts, copied.total = self.counts.copy(), self.total
        return copied


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric, which has a series for each combination of the values of its `labels`."""

    name: str
    kind: Kind
    doc: str
    labels: tuple[str, ...] = ()

    def of(self, value: float | Histogram, *labels: str) -> Reading:
        """Return one of its series as it is now."""
        assert len(labels) == len(self.labels)
        return Reading(self, value.copy() if isinstance(value, Histogram) else value, labels)


class Reading(NamedTuple):
    """One series of a metric at some time."""

    metric: Metric
    value: float | Histogram
    labels: tuple[str, ...]


class Catalog(list[Metric]):
    """The metrics of a part of a server, in the order in which they are shown."""

    def counter(self, name: str, doc: str, *labels: str) -> Metric:
        """Declare a number that only grows while the process runs."""
        assert name.endswith("_total")
        return self._add(name, Kind.COUNTER, doc, labels)

    def gauge(self, name: str, doc: str, *labels: str) -> Metric:
        """Declare a number that goes up and down."""
        return self._add(name, Kind.GAUGE, doc, labels)

    def histogram(self, name: str, doc: str, *labels: str) -> Metric:
        """Declare a distribution."""
        return self._add(name, Kind.HISTOGRAM, doc, labels)

    def _add(self, name: str, kind: Kind, doc: str, labels: tuple[str, ...]) -> Metric:
        metric = Metric(name, kind, doc, labels)
        self.append(metric)
        return metric


COMMON: Final = Catalog()
"""The metrics that placement drivers and range servers share; `role` says which it is."""

_REQUEST_SECONDS: Final = COMMON.histogram(
    "sbp_request_seconds",
    "Time from a request to the last frame of its answer. A FETCH waits for records for as long as"
    " its client asked.",
    *("role", "operation"),
)
_FAILURES: Final = COMMON.counter(
    "sbp_request_failures_total",
    "Requests that were answered with an error as a whole; they are in `sbp_request_seconds` too.",
    *("role", "operation"),
)


class RequestTimes:
    """How long the requests of a listener took, by operation."""

    def __init__(self) -> None:
        self._seconds: Final = {each: Histogram(SECONDS) for each in Opcode}
        self._failures: Final = dict.fromkeys(Opcode, 0)

    def add(self, operation: Opcode, seconds: float) -> None:
        """Count a request that was answered."""
        self._seconds[operation].add(seconds)

    def add_failed(self, operation: Opcode, seconds: float) -> None:
        """Count a request that was answered with an error."""
        if operation in self._failures:  # a peer may send unknown opcodes
            self._seconds[operation].add(seconds)
            self._failures[operation] += 1

    def read(self, role: str) -> Iterator[Reading]:
        """Yield the series of the operations that there were."""
        for operation, seconds in self._seconds.items():
            if seconds.count:
                name = operation.name.lower()
                yield _REQUEST_SECONDS.of(seconds, role, name)
                yield _FAILURES.of(self._failures[operation], role, name)
