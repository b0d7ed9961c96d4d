"""How many records a micro-batch may take, so that it takes about as long as it should.

Spark tells a source nothing of how long its micro-batches take. But it asks for the next one when
the last one is over, or later, if the query has a trigger interval: then at a multiple of that.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from sbp_spark.log import LOG

RECORDS_FIRST: Final = 10_000
"""Of the first micro-batch: enough to learn from, few enough for the slowest of queries."""
RECORDS_MIN: Final = 1_000
"""What a micro-batch may always take, also where the time cannot be kept with any number."""
STEP_MAX: Final = 4
"""Most times that one micro-batch takes as much as the one before, or as little."""
LATE: Final = 1.1
"""Parts of the target from which on a micro-batch is too long."""
GROWTH_MIN: Final = 1.05
GROWTH_MAX: Final = 2.0
"""How many times as much is tried where nobody knows how long a micro-batch took."""
APART: Final = 2
"""How many times as much one micro-batch has to take as another, to tell what a record costs."""
RECORDS_PART: Final = 0.25
"""Of the fixed time of a micro-batch, as which its records may take: fewer gain hardly any time."""
_RECORD_MS_MIN: Final = 1e-6
_TICK_MS_MAX: Final = 100
_TICK_PARTS: Final = 50
"""Of an interval, as which asking after it may take: so that two micro-batches of which one takes
longer by GROWTH_MIN never both seem to end with it."""
_INTERVAL_STEP_MS: Final = 100


class Batch(NamedTuple):
    """What a micro-batch read, and how long it took."""

    record_count: int
    took_ms: float

    def maybe_costs(self, before: Batch) -> Costs | None:
        """Return what both cost, None if they are too much alike to tell."""
        few, many = sorted((self.record_count, before.record_count))
        if many < APART * max(1, few):
            return None
        slope_ms = (self.took_ms - before.took_ms) / (self.record_count - before.record_count)
        record_ms = max(slope_ms, _RECORD_MS_MIN)
        return Costs(max(0.0, self.took_ms - record_ms * self.record_count), record_ms)


class Costs(NamedTuple):
    """How long a micro-batch takes whatever it reads, and what each record adds to that."""

    fixed_ms: float
    record_ms: float

    @property
    def records_least(self) -> int:
        """With how few records a micro-batch is worth its fixed time."""
        return int(RECORDS_PART * self.fixed_ms / self.record_ms)


@dataclass(frozen=True, slots=True)
class Pace:
    """What the next micro-batch may take, learned from those before it.

    A micro-batch that was too long tells how many records fit. One that was in time tells that no
    fewer do, and perhaps more. While Spark waited for its trigger nobody knows how long it took:
    then more is tried, `growth` times as much, more boldly each time in a row. One that took
    fewer records than another `before`, and hardly less time, was not worth it: more are tried.
    """

    target_ms: int
    records_max: int = RECORDS_FIRST
    growth: float = GROWTH_MIN
    before: Batch | None = None
    maybe_costs: Costs | None = None

    def after(
        self, record_count: int, took_ms: float, *, is_idle: bool = False, interval_ms: int = 0
    ) -> Pace:
        """Return the pace after a micro-batch of so many records.

        `is_idle`: Spark waited for its trigger then, so it took `took_ms` or less. A trigger
        interval that is longer than the target is the target: nothing shorter can be seen.
        """
        target_ms = max(self.target_ms, interval_ms)
        fitting = int(record_count * target_ms / max(took_ms, 1))
        growth = GROWTH_MIN
        batch = Batch(record_count, took_ms)
        before = self.before or batch
        costs = None if is_idle else batch.maybe_costs(before)
        if is_idle or took_ms <= LATE * target_ms:
            fitting = max(fitting, self.records_max)
        elif costs is not None:
            fitting = max(fitting, min(costs.records_least, int(self.records_max * GROWTH_MAX)))
        if is_idle and record_count >= self.records_max:
            fitting = max(fitting, int(self.records_max * self.growth))
            growth = min(2 * self.growth - 1, GROWTH_MAX)
        low = max(RECORDS_MIN, self.records_max // STEP_MAX)
        records_max = min(max(fitting, low), self.records_max * STEP_MAX)
        return replace(
            self,
            records_max=records_max,
            growth=growth,
            before=before if costs is None else batch,
            maybe_costs=costs,
        )


class Ticks:
    """Tells whether Spark asks because its trigger interval is over, not the last micro-batch.

    Triggers fire when the time since 1970 is a multiple of the interval, and at once where a
    micro-batch took longer. Nobody tells the interval. Two questions at multiples of the time
    between them suggest it, a third one makes it known, and one that comes too early refutes it.
    """

    def __init__(self) -> None:
        self.interval_ms = 0
        """The interval as far as it is known, 0 for none."""
        self._suggested_ms = 0
        self._maybe_last_ms: float | None = None

    def is_tick(self, now_ms: float) -> bool:
        """Whether Spark seems to have waited before it asks now (UTC). To be called each time."""
        last_ms, self._maybe_last_ms = self._maybe_last_ms, now_ms
        if last_ms is None:
            return False
        if self.interval_ms and now_ms < (last_ms // self.interval_ms + 1) * self.interval_ms:
            self.interval_ms = 0
        interval_ms = self.interval_ms or _suggest_ms(last_ms, now_ms)
        is_next = now_ms - last_ms <= interval_ms + _slack_ms(interval_ms)
        is_tick = interval_ms > 0 and is_next and _is_multiple(now_ms, interval_ms)
        if is_tick and interval_ms == self._suggested_ms:
            self.interval_ms = interval_ms
        self._suggested_ms = interval_ms if is_tick else 0
        return is_tick


class PaceMaker:
    """Keeps the pace of one run of a query: it is told when Spark asks, and what it gets."""

    def __init__(
        self,
        target_ms: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._pace = Pace(target_ms)
        self._clock = clock
        self._wall = wall
        self._ticks = Ticks()
        self._maybe_running: tuple[int, float] | None = None
        self._is_told = False

    @property
    def records_max(self) -> int:
        """What the next micro-batch may take."""
        return self._pace.records_max

    def on_asked(self) -> None:
        """Spark asks for a micro-batch: the last one is over."""
        is_idle = self._ticks.is_tick(self._wall() * 1000)
        if self._maybe_running is not None:
            record_count, began_s = self._maybe_running
            took_ms = (self._clock() - began_s) * 1000
            self._pace = self._pace.after(
                record_count, took_ms, is_idle=is_idle, interval_ms=self._ticks.interval_ms
            )
            self._warn()
        self._maybe_running = None

    def _warn(self) -> None:
        """Say once that no number of records keeps the target."""
        target_ms = max(self._pace.target_ms, self._ticks.interval_ms)
        costs = self._pace.maybe_costs
        if costs is not None and costs.fixed_ms > target_ms and not self._is_told:
            LOG.warning(
                "targetBatchDuration cannot be kept: micro-batches take about %.1f s whatever they"
                " read, and the target is %.1f s",
                costs.fixed_ms / 1000,
                target_ms / 1000,
            )
            self._is_told = True

    def on_admitted(self, record_count: int) -> None:
        """A micro-batch of so many records begins, none if there are none."""
        self._maybe_running = (record_count, self._clock()) if record_count else None


def _suggest_ms(last_ms: float, now_ms: float) -> int:
    """Return the interval of which both times seem to be multiples that follow on each other."""
    interval_ms = round((now_ms - last_ms) / _INTERVAL_STEP_MS) * _INTERVAL_STEP_MS
    are_multiples = interval_ms > 0 and all(
        _is_multiple(each, interval_ms) for each in (last_ms, now_ms)
    )
    return interval_ms if are_multiples else 0


def _is_multiple(time_ms: float, interval_ms: int) -> bool:
    """Whether a time is a multiple of the interval, or little later: Spark takes a while to ask."""
    return time_ms % interval_ms <= _slack_ms(interval_ms)


def _slack_ms(interval_ms: int) -> float:
    return min(_TICK_MS_MAX, interval_ms / _TICK_PARTS)
