"""A loop that works for a bounded share of the time, whatever it is asked.

Threads of one process take turns at the interpreter. A thread that is flooded with requests would
take every second turn of the thread that serves appends. So this loop sleeps, before it looks for
the next events, in proportion to the processor time that it has used: parsing and TLS count too,
and requests that wait cost nothing. A lower priority of the thread would not do: while the system
lets it wait it may hold the interpreter, and all other threads wait with it.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable
from typing import Final

SHARE: Final = 0.05
"""Processor time of the loop, as a part of the time that passes."""
BURST_SECONDS: Final = 0.05
"""Processor time that it may use at once, after a rest: a request or two do not wait."""


class Pace:
    """How long a thread has to sleep, from the processor time that it uses.

    `used` and `now` return the thread's processor time and a clock, in seconds.
    """

    def __init__(
        self,
        share: float = SHARE,
        burst_seconds: float = BURST_SECONDS,
        *,
        used: Callable[[], float] = time.thread_time,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._share = share
        self._burst_seconds = burst_seconds
        self._used = used
        self._now = now
        self._debt_seconds = 0.0
        """Processor time that was used, less what the share has allowed since."""
        self._used_before: float | None = None
        self._looked_at = 0.0

    def pause_seconds(self) -> float:
        """Return how long to sleep now."""
        used, now = self._used(), self._now()
        if self._used_before is None:
            self._used_before, self._looked_at = used, now
        allowed = self._share * (now - self._looked_at)
        self._debt_seconds = max(0.0, self._debt_seconds - allowed) + used - self._used_before
        self._used_before, self._looked_at = used, now
        return max(0.0, self._debt_seconds - self._burst_seconds) / self._share


class _PacedSelector(selectors.DefaultSelector):
    def __init__(self) -> None:
        super().__init__()
        self._pace = Pace()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        pause = self._pace.pause_seconds()
        if pause > 0.0:
            time.sleep(pause)
        return super().select(timeout)


def paced_loop() -> asyncio.AbstractEventLoop:
    """Return a loop that works for SHARE of the time; not uvloop, which has no selector."""
    return asyncio.SelectorEventLoop(_PacedSelector())
