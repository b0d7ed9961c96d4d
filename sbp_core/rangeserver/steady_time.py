"""The wall clock, believed once it has gone evenly for a while.

What is removed for its age is gone for good. So a wall clock that leaps, or of a server that just
started, decides about that only after it has gone as the monotonic clock does for CLOCK_EVEN_LOOKS
looks, or for CLOCK_EVEN_MS.
"""

from __future__ import annotations

import logging
from typing import Final

from sbp_core import limits
from sbp_core.server.clock import Clock

_LOG: Final = logging.getLogger(__name__)


class SteadyTime:
    """Looks at a clock now and then; one thread uses it at a time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._maybe_ahead_ms: int | None = None
        self._even_since_ms = 0
        self._even_look_count = 0

    def maybe_now_ms(self) -> int | None:
        """Return the time of the wall clock, None while it is not to be believed."""
        now_ms = self._clock.wall_ms()
        monotonic_ms = round(1000 * self._clock.monotonic())
        ahead_ms = now_ms - monotonic_ms
        before_ms, self._maybe_ahead_ms = self._maybe_ahead_ms, ahead_ms
        if before_ms is None or abs(ahead_ms - before_ms) > limits.CLOCK_LEAP_MS:
            if before_ms is not None:
                _LOG.warning(
                    "the wall clock leapt by %d s: nothing goes for its age until it goes evenly",
                    (ahead_ms - before_ms) // 1000,
                )
            self._even_since_ms = monotonic_ms
            self._even_look_count = 0
            return None
        self._even_look_count += 1
        is_believed = (
            self._even_look_count >= limits.CLOCK_EVEN_LOOKS
            or monotonic_ms - self._even_since_ms >= limits.CLOCK_EVEN_MS
        )
        return now_ms if is_believed else None
