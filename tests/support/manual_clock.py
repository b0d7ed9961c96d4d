"""A clock that stands still until a test advances it."""

from __future__ import annotations


class ManualClock:
    """A server clock for tests; both of its times go on together."""

    def __init__(self, *, wall_ms: int = 1_700_000_000_000) -> None:
        self._elapsed_ms = 0
        self._wall_ms = wall_ms

    def monotonic(self) -> float:
        return self._elapsed_ms / 1000

    def wall_ms(self) -> int:
        return self._wall_ms + self._elapsed_ms

    def advance(self, ms: int) -> None:
        self._elapsed_ms += ms
