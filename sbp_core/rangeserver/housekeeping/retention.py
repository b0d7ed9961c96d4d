"""How long records are kept: pure policy over the batches of the log, and a clock it can trust.

Records that are removed for their age cannot be brought back, and a wall clock may be wrong: a bad
time server, a dead battery, an operator. So the wall clock decides only after it has kept pace with
the monotonic clock for CLOCK_EVEN_MS, give or take CLOCK_LEAP_MS. Looks at it do not count, only
time: a server that looks often would believe it within seconds. None of this survives a
restart. The time begins again then, so a server that starts with a wrong clock removes nothing
before an operator had the same time to notice.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from sbp_core import limits
from sbp_core.log.segment_rows import Slot
from sbp_core.server.runtime import Clock


@dataclass(frozen=True, slots=True)
class Retention:
    """How long the records of a stream are kept, and how many bytes of them; 0 is no limit."""

    period_ms: int = 0
    size_bytes: int = 0
    created_at_ms: int = -1
    """When the stream was created, which distinguishes it from another one with the same id."""

    @property
    def is_for_ever(self) -> bool:
        """Whether nothing ever goes."""
        return not self.period_ms and not self.size_bytes


@dataclass(frozen=True, slots=True)
class Held:
    """The records of a stream on this server, up to `next_offset`, and their bytes."""

    start_offset: int
    next_offset: int
    size_bytes: int


def expired_below(held: Held, batches: Iterable[Slot], retention: Retention, now_ms: int) -> int:
    """Return the offset below which the records of a stream may go.

    `batches` are all that the server holds, oldest first; only those that may go are read, and one
    more. A batch goes when its time is over, or while all that are left exceed the size; what is
    newer than a batch that stays, stays. The newest batch never goes for its size.
    """
    offset, left_bytes = held.start_offset, held.size_bytes
    for batch in batches:
        is_too_old = retention.period_ms and batch.time_ms + retention.period_ms < now_ms
        is_too_much = (
            retention.size_bytes
            and left_bytes > retention.size_bytes
            and batch.end_offset < held.next_offset
        )
        if not (is_too_old or is_too_much):
            break
        offset = max(offset, batch.end_offset)
        left_bytes -= batch.location.length
    return min(offset, held.next_offset)


_LOG: Final = logging.getLogger(__name__)


class SteadyTime:
    """The wall clock, believed once it has gone evenly; one thread uses it at a time.

    `newest_ms` is the latest time that this server's log knows, 0 if none. A clock that is far from
    it when the server starts is logged.
    """

    def __init__(
        self, clock: Clock, newest_ms: int = 0, *, even_ms: int = limits.CLOCK_EVEN_MS
    ) -> None:
        self._clock = clock
        self._even_ms = even_ms
        self._newest_ms = newest_ms
        self._ahead_ms: int | None = None
        """How far the wall clock was ahead of the monotonic one at `_since_ms`."""
        self._since_ms = 0
        self._is_believed = False

    def maybe_now_ms(self) -> int | None:
        """Return the wall clock, in ms since the epoch, None while it is not believed."""
        now_ms = self._clock.wall_ms()
        monotonic_ms = round(1000 * self._clock.monotonic())
        ahead_ms = now_ms - monotonic_ms
        before_ms = self._ahead_ms
        if before_ms is None:
            self._compare_with_log(now_ms)
            self._begin(monotonic_ms, ahead_ms)
        elif abs(ahead_ms - before_ms) > limits.CLOCK_LEAP_MS:
            _LOG.warning(
                "clock leapt leap_s=%d: no record is removed for its age until the clock has gone"
                " evenly for %d s; if it is wrong, set it right",
                (ahead_ms - before_ms) // 1000,
                self._even_ms // 1000,
            )
            self._begin(monotonic_ms, ahead_ms)
        elif monotonic_ms - self._since_ms >= self._even_ms:
            # From here on it is compared with what it is now: clocks are adjusted all the time.
            self._begin(monotonic_ms, ahead_ms, is_believed=True)
        return now_ms if self._is_believed else None

    def _begin(self, monotonic_ms: int, ahead_ms: int, *, is_believed: bool = False) -> None:
        self._since_ms, self._ahead_ms = monotonic_ms, ahead_ms
        self._is_believed = is_believed

    def _compare_with_log(self, now_ms: int) -> None:
        off_ms = now_ms - self._newest_ms
        if not self._newest_ms or -limits.CLOCK_LEAP_MS <= off_ms <= limits.CLOCK_SUSPICIOUS_MS:
            return
        _LOG.warning(
            "clock in doubt off_s=%d: it is %s the newest entry of the log; no record is removed"
            " for its age until the clock has gone evenly for %d s; if it is wrong, set it right",
            off_ms // 1000,
            "after" if off_ms > 0 else "before",
            self._even_ms // 1000,
        )
