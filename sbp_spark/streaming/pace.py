"""The pace of a query: how many records a micro-batch may take to keep targetBatchDuration.

Spark does not report to a source how long its micro-batches take. But Spark asks for the next
micro-batch when the last one is over, or, if the query has a trigger interval, at the next multiple
of the interval.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from sbp_spark.reporting import LOG

RECORDS_FIRST: Final = 10_000
"""Size of the first micro-batch: enough to learn from, few enough for the slowest of queries."""
RECORDS_MIN: Final = 1_000
"""The least limit of a micro-batch, also if no number of records keeps the target."""
STEP_MAX: Final = 4
"""Most times that one micro-batch takes as much as the one before, or as little."""
LATE: Final = 1.1
"""Parts of the target from which on a micro-batch is too long."""
GROWTH_MIN: Final = 1.05
GROWTH_MAX: Final = 2.0
"""The factor by which more is tried if it is not known how long a micro-batch took."""
APART: Final = 2
"""How many times as many records one of two micro-batches needs, to estimate the cost of each."""
RECORDS_PART: Final = 0.25
"""The part of the fixed time of a micro-batch that its records may take: fewer gain little time."""
_RECORD_MS_MIN: Final = 1e-6
_TICK_MS_MAX: Final = 100
_TICK_PARTS: Final = 50
"""The fraction of an interval by which a request may come late. Two micro-batches whose lengths
differ by GROWTH_MIN never both seem to end with the interval."""
_INTERVAL_STEP_MS: Final = 100


class TimedBatch(NamedTuple):
    """The records of a micro-batch, and how long it took."""

    record_count: int
    took_ms: float

    def maybe_costs(self, before: TimedBatch) -> Costs | None:
        """Return what both cost, None if they are too much alike."""
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
    """How many records the next micro-batch may read, learned from those before it.

    A micro-batch that was too long shows how many records fit. A micro-batch in time shows that at
    least its records fit. If Spark then waited for its trigger, nothing more is known, so the next
    micro-batch tries `growth` times as many, and the factor grows each time in a row. If a
    micro-batch took fewer records than the one `before` and hardly less time, more are tried.
    """

    target_ms: int
    records_max: int = RECORDS_FIRST
    growth: float = GROWTH_MIN
    before: TimedBatch | None = None
    costs: Costs | None = None

    def after(
        self, record_count: int, took_ms: float, *, is_idle: bool = False, interval_ms: int = 0
    ) -> Pace:
        """Return the pace after a micro-batch of `record_count` records.

        `is_idle`: Spark waited for its trigger then, so it took `took_ms` or less. A trigger
        interval that is longer than the target is the target: nothing shorter can be seen.
        """
        target_ms = max(self.target_ms, interval_ms)
        fitting = int(record_count * target_ms / max(took_ms, 1))
        growth = GROWTH_MIN
        batch = TimedBatch(record_count, took_ms)
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
            costs=costs,
        )


class Ticks:
    """Detects that Spark asks because its trigger interval is over, not the last micro-batch.

    Triggers fire when the time since 1970 is a multiple of the interval, and at once where a
    micro-batch took longer. Spark does not report the interval. Two requests at multiples of the
    time between them suggest the interval, a third request confirms it, and an early request
    refutes it.
    """

    def __init__(self) -> None:
        self.interval_ms = 0
        """The interval if it is known, else 0."""
        self._suggested_ms = 0
        self._last_ms: float | None = None

    def is_tick(self, now_ms: float) -> bool:
        """Whether Spark seems to have waited before it asks now (UTC). To be called each time."""
        last_ms, self._last_ms = self._last_ms, now_ms
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
    """Keeps the pace of one run; `on_asked` and `on_admitted` report its micro-batches."""

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
        self._running: tuple[int, float] | None = None
        self._has_warned = False

    @property
    def records_max(self) -> int:
        """How many records the next micro-batch may read."""
        return self._pace.records_max

    def on_asked(self) -> None:
        """Spark asks for a micro-batch: the last one is over."""
        is_idle = self._ticks.is_tick(self._wall() * 1000)
        if self._running is not None:
            record_count, began_s = self._running
            took_ms = (self._clock() - began_s) * 1000
            self._pace = self._pace.after(
                record_count, took_ms, is_idle=is_idle, interval_ms=self._ticks.interval_ms
            )
            self._warn()
        self._running = None

    def _warn(self) -> None:
        """Log once that no number of records keeps the target."""
        target_ms = max(self._pace.target_ms, self._ticks.interval_ms)
        costs = self._pace.costs
        if costs is not None and costs.fixed_ms > target_ms and not self._has_warned:
            LOG.warning(
                "targetBatchDuration cannot be kept fixed_s=%.1f target_s=%.1f: micro-batches take"
                " that long whatever they read; raise the target, or simplify the query",
                costs.fixed_ms / 1000,
                target_ms / 1000,
            )
            self._has_warned = True

    def on_admitted(self, record_count: int) -> None:
        """Start the time of a micro-batch of `record_count` records; with 0 there is none."""
        self._running = (record_count, self._clock()) if record_count else None


def _suggest_ms(last_ms: float, now_ms: float) -> int:
    """Return the interval if both times seem to be consecutive multiples of it, else 0."""
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
