"""How far one micro-batch goes of what lies ahead: the limits, whose turn it is, the pace.

Limits of records and bytes are shared over the streams. The pace is how many records a micro-batch
may take, so that it takes about as long as it should. Spark does not report to a source how long
its micro-batches take. But it asks for the next one when the last one is over, or, if the query has
a trigger interval, later, at a multiple of that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from sbp_spark.options.declaring import INT64_MAX
from sbp_spark.options.source import TriggerLimits
from sbp_spark.reading.planning import RecordSizeEstimates
from sbp_spark.reporting import LOG
from sbp_spark.streaming.micro_batch import Way


def admit(
    starts: Mapping[int, int],
    tails: Mapping[int, int],
    *,
    records_max: int | None = None,
    bytes_max: int | None = None,
    record_bytes: Mapping[int, int] | None = None,
    turn: int = 0,
) -> dict[int, int]:
    """Return the end offset of each stream of `starts` (stream id -> next offset to read).

    At most `records_max` records and, by what `record_bytes` says of one record of each stream,
    `bytes_max` bytes are admitted in all (None: no limit), in proportion to the backlogs. One
    record is always admitted, however long it is. `turn` is counted up by the caller: each of n
    streams that has records is served at least once in n consecutive turns. An end is never
    below its start nor above its tail; a stream whose tail is missing, or below its start (metadata
    may lag), stays where it is.
    """
    backlogs = {
        stream_id: max(0, tails.get(stream_id, start) - start)
        for stream_id, start in sorted(starts.items())
    }
    sizes = {stream_id: (record_bytes or {}).get(stream_id, 1) for stream_id in backlogs}
    room = _Room(records_max, bytes_max, backlogs, sizes)
    grants = backlogs if room.is_enough else _share(backlogs, sizes, room, turn)
    return {stream_id: starts[stream_id] + grant for stream_id, grant in grants.items()}


class _Room:
    """The rest of both limits."""

    def __init__(
        self,
        records_max: int | None,
        bytes_max: int | None,
        backlogs: Mapping[int, int],
        sizes: Mapping[int, int],
    ) -> None:
        records = sum(backlogs.values())
        size_bytes = sum(backlog * sizes[stream_id] for stream_id, backlog in backlogs.items())
        self._records = records if records_max is None else records_max
        self._bytes = size_bytes if bytes_max is None else bytes_max
        self.is_enough = records <= self._records and size_bytes <= self._bytes

    def count(self, size_bytes: int) -> int:
        """Return how many records of that size fit."""
        return max(0, min(self._records, self._bytes // size_bytes))

    def take(self, count: int, size_bytes: int) -> None:
        """Use capacity for `count` records of that size, even if there is none."""
        self._records -= count
        self._bytes -= count * size_bytes

    def share(self, records: int, size_bytes: int) -> tuple[int, int]:
        """Return the part of these records and bytes that fits, as a fraction below 1."""
        if self._records <= 0 or self._bytes <= 0:
            return 0, 1
        if self._records * size_bytes <= self._bytes * records:
            return self._records, records
        return self._bytes, size_bytes


def _share(
    backlogs: Mapping[int, int], sizes: Mapping[int, int], room: _Room, turn: int
) -> dict[int, int]:
    """Return how many records each stream gets, where not all of them fit."""
    stream_ids = list(backlogs)
    first = turn % len(stream_ids)
    unread = [each for each in stream_ids[first:] + stream_ids[:first] if backlogs[each]]
    grants = dict.fromkeys(stream_ids, 0)
    grants[unread[0]] = 1
    room.take(1, sizes[unread[0]])
    rest = {each: backlogs[each] - grants[each] for each in unread}
    size_bytes = sum(rest[each] * sizes[each] for each in unread)
    part, whole = room.share(sum(rest.values()), size_bytes)
    for each in unread:
        count = rest[each] * part // whole
        grants[each] += count
        room.take(count, sizes[each])
    later = unread[1:] + unread[:1]
    for each in later:  # the records that were rounded off
        count = min(1, backlogs[each] - grants[each], room.count(sizes[each]))
        grants[each] += count
        room.take(count, sizes[each])
    for each in later:  # the rest is too small for a record of a stream with long ones
        count = min(backlogs[each] - grants[each], room.count(sizes[each]))
        grants[each] += count
        room.take(count, sizes[each])
    return grants


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
"""The fraction of an interval that a request after it may be late: small enough that of two
micro-batches, one longer by GROWTH_MIN, never both seem to end with it."""
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

    A micro-batch that was too long shows how many records fit. One that was in time shows that no
    fewer do, and perhaps more. While Spark waited for its trigger that is not known:
    then more is tried, `growth` times as much, more boldly each time in a row. One that took
    fewer records than another `before`, and hardly less time, was not worth it: more are tried.
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
    micro-batch took longer. Spark does not report the interval. Two questions at multiples of the
    time between them suggest it, a third one makes it known, and one that comes too early refutes
    it.
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


class Trigger:
    """Decides how far each micro-batch of a running query goes.

    It remembers whose turn it is and when the last micro-batch was; a restart forgets both.
    """

    def __init__(
        self,
        limits: TriggerLimits,
        sizes: RecordSizeEstimates,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._limits = limits
        self._sizes = sizes
        self._clock = clock
        self._pace = None
        if limits.target_ms is not None:
            self._pace = PaceMaker(limits.target_ms, clock=clock, wall=wall)
        self._turn = 0
        self._last_s: float | None = None

    def on_asked(self) -> None:
        """Spark asks for a micro-batch: the last one is over."""
        if self._pace is not None:
            self._pace.on_asked()

    def ends(self, way: Way, *, is_waiting_allowed: bool) -> dict[int, int]:
        """Return the end of a micro-batch in each stream, its start where nothing is admitted.

        A stream that is new to the query is not waited for: its start has to be kept.
        """
        ends = self._admit(way)
        record_count = sum(ends.values()) - sum(way.starts.values())
        is_due = self._is_due(way.record_count, is_cut=record_count < way.record_count)
        if is_waiting_allowed and not is_due and not way.bases:
            return dict(way.starts)
        self._turn += 1
        if self._pace is not None:
            self._pace.on_admitted(record_count)
        return ends

    def _admit(self, way: Way) -> dict[int, int]:
        """Return how far the limits let the next micro-batch go in each stream."""
        limits = self._limits
        sizes = None
        if limits.bytes_max is not None:
            sizes = self._sizes.estimate(way.starts, way.tails)
        records_max = limits.records_max
        if self._pace is not None:
            records_max = min(records_max or INT64_MAX, self._pace.records_max)
        return admit(
            way.starts,
            way.tails,
            records_max=records_max,
            bytes_max=limits.bytes_max,
            record_bytes=sizes,
            turn=self._turn + 1,
        )

    def _is_due(self, record_count: int, *, is_cut: bool) -> bool:
        """Whether there are records enough, or the last micro-batch is long ago.

        If other limits admit not even these (`is_cut`), waiting would not help.
        """
        records_min = self._limits.records_min
        if records_min is None:
            return True
        now_s = self._clock()
        is_long_ago = (
            self._last_s is None or (now_s - self._last_s) * 1000 >= self._limits.delay_ms_max
        )
        if record_count >= records_min or is_cut or is_long_ago:
            self._last_s = now_s
            return True
        return False
