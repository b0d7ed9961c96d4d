"""The clock port: servers take their time from here, so that tests can hold it still."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Where a server gets the time."""

    def monotonic(self) -> float:
        """Return seconds that never go back; for deadlines and liveness."""

    def wall_ms(self) -> int:
        """Return milliseconds since the epoch, UTC; for timestamps that people see."""


class SystemClock:
    """The machine's clock."""

    def monotonic(self) -> float:
        """Return seconds that never go back."""
        return time.monotonic()

    def wall_ms(self) -> int:
        """Return milliseconds since the epoch, UTC."""
        return time.time_ns() // 1_000_000
