"""When a failed call is tried again, and after which wait. Pure: time and chance come in."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from sbp_core import limits
from sbp_core.errors import ConfigurationError, Outcome, SbpError, StatusError


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long (ms) and how fast an operation is tried again while it makes no progress.

    The wait before try n is uniform in [0, min(backoff_ms * 2**n, backoff_ms_max)]. Where a server
    asks for a wait, it comes on top of that, spread over as long again at least: those whom it
    refused together do not come back together. `budget_ms` 0 disables retries. Raises
    ConfigurationError for negative or contradictory values.
    """

    budget_ms: int = limits.RETRY_BUDGET_MS
    backoff_ms: int = limits.RETRY_BACKOFF_MS
    backoff_ms_max: int = limits.RETRY_BACKOFF_MS_MAX

    def __post_init__(self) -> None:
        if self.budget_ms < 0 or not 0 <= self.backoff_ms <= self.backoff_ms_max:
            raise ConfigurationError(
                f"{self}: expected budget_ms >= 0 and 0 <= backoff_ms <= backoff_ms_max"
            )

    def maybe_wait_ms(
        self,
        error: SbpError,
        *,
        is_repeatable: bool,
        attempt_count: int,
        elapsed_ms: float,
        random: Random,
    ) -> float | None:
        """Return the wait before the next try, None to give up.

        `is_repeatable`: doing it twice does no harm (a read, or an append whose caller accepts
        duplicates); otherwise only what surely had no effect is tried again. `attempt_count` tries
        failed so far, in `elapsed_ms` since the last progress.
        """
        if not error.retriable:
            return None
        if not is_repeatable and error.outcome is not Outcome.NOT_APPLIED:
            return None
        doublings = min(max(attempt_count - 1, 0), 30)
        throttle_ms = error.throttle_time_ms if isinstance(error, StatusError) else 0
        spread_ms = max(self.backoff_ms << doublings, throttle_ms)
        wait_ms = throttle_ms + random.uniform(0, min(spread_ms, self.backoff_ms_max))
        return wait_ms if elapsed_ms + wait_ms < self.budget_ms else None
