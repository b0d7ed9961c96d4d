"""The wall clock, believed once it has gone evenly for CLOCK_EVEN_MS.

Records that are removed for their age cannot be brought back, and a wall clock may be wrong: a bad
time server, a dead battery, an operator. So it decides about that only after it has kept pace with
the monotonic clock for CLOCK_EVEN_MS, give or take CLOCK_LEAP_MS. Looks at it do not count, only
time: a server that looks often would believe it within seconds. Nothing of this is kept over a
restart. The time begins again then, so a server that starts with a wrong clock removes nothing
before an operator had the same time to notice.
"""

from __future__ import annotations

import logging
from typing import Final

from sbp_core import limits
from sbp_core.server.runtime import Clock

_LOG: Final = logging.getLogger(__name__)


class SteadyTime:
    """Looks at a clock now and then; one thread uses it at a time.

    `newest_ms` is the latest time that this server's log knows, 0 if none. A clock that is far from
    it when the server starts is logged.
    """

    def __init__(self, clock: Clock, newest_ms: int = 0) -> None:
        self._clock = clock
        self._newest_ms = newest_ms
        self._maybe_ahead_ms: int | None = None
        """How far the wall clock was ahead of the monotonic one at `_since_ms`."""
        self._since_ms = 0
        self._is_believed = False

    def maybe_now_ms(self) -> int | None:
        """Return the wall clock, in ms since the epoch, None while it is not believed."""
        now_ms = self._clock.wall_ms()
        monotonic_ms = round(1000 * self._clock.monotonic())
        ahead_ms = now_ms - monotonic_ms
        before_ms = self._maybe_ahead_ms
        if before_ms is None:
            self._compare_with_log(now_ms)
            self._begin(monotonic_ms, ahead_ms)
        elif abs(ahead_ms - before_ms) > limits.CLOCK_LEAP_MS:
            _LOG.warning(
                "the wall clock leapt by %d s: no record is removed for its age until the clock has"
                " gone evenly for %d s; if it is wrong, set it right",
                (ahead_ms - before_ms) // 1000,
                limits.CLOCK_EVEN_MS // 1000,
            )
            self._begin(monotonic_ms, ahead_ms)
        elif monotonic_ms - self._since_ms >= limits.CLOCK_EVEN_MS:
            # From here on it is compared with what it is now: clocks are adjusted all the time.
            self._begin(monotonic_ms, ahead_ms, is_believed=True)
        return now_ms if self._is_believed else None

    def _begin(self, monotonic_ms: int, ahead_ms: int, *, is_believed: bool = False) -> None:
        self._since_ms, self._maybe_ahead_ms = monotonic_ms, ahead_ms
        self._is_believed = is_believed

    def _compare_with_log(self, now_ms: int) -> None:
        off_ms = now_ms - self._newest_ms
        if not self._newest_ms or -limits.CLOCK_LEAP_MS <= off_ms <= limits.CLOCK_SUSPICIOUS_MS:
            return
        _LOG.warning(
            "the wall clock is %d s %s the newest entry of the log: no record is removed for its"
            " age until the clock has gone evenly for %d s; if it is wrong, set it right",
            abs(off_ms) // 1000,
            "after" if off_ms > 0 else "before",
            limits.CLOCK_EVEN_MS // 1000,
        )
