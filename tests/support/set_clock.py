"""The machine's clock, but for a wall time that a test sets, also back."""

from __future__ import annotations

from sbp_core.server.runtime import SystemClock


class SetClock(SystemClock):
    """A server clock whose wall stands still until it is set."""

    def __init__(self, now_ms: int = 1_000) -> None:
        self.now_ms = now_ms

    def wall_ms(self) -> int:
        return self.now_ms
