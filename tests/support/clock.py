"""Clocks that a test advances, and waiting for a condition."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from hypothesis import settings


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


def until(is_so: Callable[[], object], seconds: float = 180) -> None:
    """Return once `is_so` says so; fail if it does not for so long."""
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


settings.register_profile("untimed", deadline=None)  # a busy machine is no failure
settings.register_profile("quick", deadline=None, max_examples=25)


def examples(count: int) -> int:
    """Return `count`, and a quarter of it under the profile of quick runs."""
    return max(count * settings.default.max_examples // 100, 1)


@asynccontextmanager
async def counted_turns() -> AsyncIterator[Callable[[], int]]:
    """Count how often another task of the loop has had a turn since the body began."""
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(take_turns())
    try:
        yield lambda: turns
    finally:
        other.cancel()
