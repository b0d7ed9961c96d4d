"""How far one micro-batch goes of what lies ahead: the limits, whose turn it is, the pace."""

from __future__ import annotations

import time
from collections.abc import Callable

from sbp_spark.options import TriggerLimits
from sbp_spark.options.declaring import INT64_MAX
from sbp_spark.reading.record_sizes import RecordSizes
from sbp_spark.streaming.admission import admit
from sbp_spark.streaming.micro_batch import Way
from sbp_spark.streaming.pace import PaceMaker


class Trigger:
    """Decides how far each micro-batch of a running query goes.

    It remembers whose turn it is and when the last micro-batch was; a restart forgets both.
    """

    def __init__(
        self,
        limits: TriggerLimits,
        sizes: RecordSizes,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limits = limits
        self._sizes = sizes
        self._clock = clock
        self._maybe_pace = None if limits.target_ms is None else PaceMaker(limits.target_ms)
        self._turn = 0
        self._maybe_last_s: float | None = None

    def on_asked(self) -> None:
        """Spark asks for a micro-batch: the last one is over."""
        if self._maybe_pace is not None:
            self._maybe_pace.on_asked()

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
        if self._maybe_pace is not None:
            self._maybe_pace.on_admitted(record_count)
        return ends

    def _admit(self, way: Way) -> dict[int, int]:
        """Return how far the limits let the next micro-batch go in each stream."""
        limits = self._limits
        sizes = None
        if limits.bytes_max is not None:
            sizes = self._sizes.estimate(way.starts, way.tails)
        records_max = limits.records_max
        if self._maybe_pace is not None:
            records_max = min(records_max or INT64_MAX, self._maybe_pace.records_max)
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

        Where other limits let not even these into one (`is_cut`), waiting would bring no more.
        """
        records_min = self._limits.records_min
        if records_min is None:
            return True
        now_s = self._clock()
        is_long_ago = (
            self._maybe_last_s is None
            or (now_s - self._maybe_last_s) * 1000 >= self._limits.delay_ms_max
        )
        if record_count >= records_min or is_cut or is_long_ago:
            self._maybe_last_s = now_s
            return True
        return False
