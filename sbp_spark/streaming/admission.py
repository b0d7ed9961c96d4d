"""Admission: how far one micro-batch goes into the backlog.

Limits of records and bytes are shared over the streams. With targetBatchDuration the pace (`pace`)
is one more limit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from sbp_spark.options.declaring import INT64_MAX
from sbp_spark.options.source import TriggerLimits
from sbp_spark.reading.partition_planning import RecordSizeEstimates
from sbp_spark.streaming.backlog import Backlog
from sbp_spark.streaming.pace import PaceMaker


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


class Admission:
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

    def ends(self, backlog: Backlog, *, is_waiting_allowed: bool) -> dict[int, int]:
        """Return the end of a micro-batch in each stream, its start where nothing is admitted.

        A stream that is new to the query is not waited for: its start has to be kept.
        """
        ends = self._admit(backlog)
        record_count = sum(ends.values()) - sum(backlog.starts.values())
        is_due = self._is_due(backlog.record_count, is_cut=record_count < backlog.record_count)
        if is_waiting_allowed and not is_due and not backlog.bases:
            return dict(backlog.starts)
        self._turn += 1
        if self._pace is not None:
            self._pace.on_admitted(record_count)
        return ends

    def _admit(self, backlog: Backlog) -> dict[int, int]:
        """Return how far the limits let the next micro-batch go in each stream."""
        limits = self._limits
        sizes = None
        if limits.bytes_max is not None:
            sizes = self._sizes.estimate(backlog.starts, backlog.tails)
        records_max = limits.records_max
        if self._pace is not None:
            records_max = min(records_max or INT64_MAX, self._pace.records_max)
        return admit(
            backlog.starts,
            backlog.tails,
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
