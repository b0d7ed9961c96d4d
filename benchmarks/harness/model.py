"""The results of a run: cases, the rounds of each system, and ratios between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import median
from typing import Final

OURS: Final = "sbp"
"""The system that the others are compared with."""


class BenchmarkError(Exception):
    """A run did not do the work that it was measured for."""


class Measure(Enum):
    """The unit of the numbers of a case."""

    RATE = "rate"
    """Seconds that all the rows of the case took: one number."""
    DELAY = "delay"
    """Seconds that single records, micro-batches or looks took: many numbers."""
    BYTES = "bytes"
    """Bytes in the log: one number."""
    MEMORY = "memory"
    """Resident bytes of processes: one number."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Rows over all streams, bytes of each value, and the streams: a partition each."""

    rows: int
    value_bytes: int
    streams: tuple[str, ...]

    @property
    def payload_bytes(self) -> int:
        """Bytes of all values."""
        return self.rows * self.value_bytes


@dataclass(frozen=True, slots=True)
class Case:
    """One line of the results: a scenario with what it was done with.

    `detail` distinguishes cases of one scenario and shape.
    """

    scenario: str
    measure: Measure
    shape: Shape
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Series:
    """The results of a system in each round; without rounds, `absent` is the reason.

    `processor` has the core-seconds of each round, by process.
    """

    system: str
    rounds: tuple[tuple[float, ...], ...] = ()
    absent: str = ""
    processor: tuple[Mapping[str, float], ...] = ()

    @property
    def typical(self) -> float:
        """The median of the rounds' medians."""
        return median(median(numbers) for numbers in self.rounds)

    def core_seconds(self, part: str) -> float:
        """Return the median of a part of the processor time."""
        return median(each[part] for each in self.processor)

    def percentile(self, percent: float) -> float:
        """Return a percentile of the numbers of all rounds; 100 is the highest."""
        numbers = sorted(number for numbers in self.rounds for number in numbers)
        return numbers[min(len(numbers) - 1, int(len(numbers) * percent / 100))]


@dataclass(frozen=True, slots=True)
class Ratio:
    """The median over the rounds of another system's number over ours, and its extremes.

    All numbers are times or sizes, so above 1.0 ours is the better one.
    """

    typical: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """A case with what each of its systems gave. Rounds of the same number ran back to back."""

    case: Case
    series: tuple[Series, ...]

    @property
    def ours(self) -> Series:
        """The series of the connector."""
        return next(each for each in self.series if each.system == OURS)

    def ratio(self, other: Series) -> Ratio | None:
        """Return how much better ours is than another; None for ours, and without rounds."""
        if other.system == OURS or not other.rounds:
            return None
        ratios = _ratios(self.ours.rounds, other.rounds)
        return Ratio(median(ratios), min(ratios), max(ratios))


def _ratios(ours: Sequence[Sequence[float]], others: Sequence[Sequence[float]]) -> list[float]:
    return [median(theirs) / median(own) for own, theirs in zip(ours, others, strict=True)]
