"""The waits that a server asks for on one connection: `throttle_time_ms` of its answers.

The server reads nothing for that time, so calls are held, and the deadlines of open calls move by
the wait, for all callers that share the connection. Nothing fails, so long waits are logged as
warnings: otherwise a client would be slow without a visible reason.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Final

from sbp_core import limits

_LOG: Final = logging.getLogger(__name__)

_WAIT_SECONDS_MAX: Final = limits.IDLE_CONNECTION_MS / 2000
"""A longer wait is not honoured: after that time the next call uses another connection."""
_EPISODE_SECONDS: Final = 60.0
"""Time without a wait after which the next one begins an episode."""
_LONG_MS: Final = 5_000
"""Waits of an episode, in all, from which on they are logged as warnings."""
_WARNING_SECONDS: Final = 60.0
"""Time between two warnings."""


class Throttling:
    """When calls may be sent to a server again, by its answers.

    `clock` gives seconds that never go back. `identity` names the client in the log.
    """

    def __init__(self, endpoint: str, identity: str, clock: Callable[[], float]) -> None:
        self._endpoint = endpoint
        self._identity = identity
        self._clock = clock
        self.is_on = False
        """Whether calls are held, until `end`."""
        self.until = -math.inf
        """When the server reads again, by the clock."""
        self._total_ms = 0.0
        self._episode_mark_ms = 0.0
        """The waits before the episode."""
        self._episode_at = self._warned_at = -math.inf

    @property
    def maybe_seconds_left(self) -> float | None:
        """The time for which calls are held, 0 if it is over; None if no calls are held."""
        return max(self.until - self._clock(), 0.0) if self.is_on else None

    @property
    def is_over(self) -> bool:
        """Whether held calls should be sent now."""
        return self.is_on and self.until <= self._clock()

    def told(self, wait_ms: int) -> None:
        """Handle the wait that an answer of the server asks for."""
        if not wait_ms:
            return
        now = self._clock()
        if now - self.until > _EPISODE_SECONDS:
            self._episode_mark_ms, self._episode_at = self._total_ms, now
            _LOG.info("throttled by the server server=%s wait_ms=%d", self._endpoint, wait_ms)
        until = now + min(wait_ms / 1000, _WAIT_SECONDS_MAX)
        self._total_ms += 1000 * max(until - max(self.until, now), 0.0)
        self.until = max(self.until, until)
        self.is_on = True
        self._warn_if_long(now)

    def _warn_if_long(self, now: float) -> None:
        waits_ms = self._total_ms - self._episode_mark_ms
        if waits_ms < _LONG_MS or now - self._warned_at < _WARNING_SECONDS:
            return
        self._warned_at = now
        _LOG.warning(
            "throttled by the server for long server=%s identity=%s waits_ms=%d in_ms=%d: calls"
            " wait as the server asks; its quota for this identity, or its memory or disk, is used"
            " up: see the log of the server",
            *(self._endpoint, self._identity, waits_ms, 1000 * (self.until - self._episode_at)),
        )

    def end(self) -> None:
        """Hold calls no longer, because the held calls are being sent."""
        self.is_on = False

    def mark_ms(self) -> float:
        """Return the waits so far, without the rest of the present one, for a new call."""
        return self._total_ms - 1000 * (self.maybe_seconds_left or 0.0)

    def since_ms(self, mark_ms: float) -> tuple[float, float]:
        """Return the waits since a mark, and the next mark."""
        return self._total_ms - mark_ms, self._total_ms
