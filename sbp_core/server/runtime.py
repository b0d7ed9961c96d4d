"""The clock, the event loop of a server, and turns and tasks on it.

Connections that have frames to be handled take turns, and so does the rest of the server. In one
turn of the event loop FRAMES_PER_TURN_MAX frames are handled, one of each connection after the
other, or as many as take TURN_MS. The rest waits for the next turn, behind the requests in
progress, so an overloaded server finishes requests before it begins more of them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from itertools import zip_longest
from typing import Any, Final, Protocol, TypeVar

from sbp_core import limits

T = TypeVar("T")
Step = Callable[[], bool]

_LOG: Final = logging.getLogger(__name__)


class Clock(Protocol):
    """Where a server gets the time, so that tests can hold it still."""

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


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` to its end, as `asyncio.run` does; on asyncio's loop where uvloop is not.

    With uvloop a small append takes a fifth less time.
    """
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    return uvloop.run(main)


class Turns:
    """Runs steps, each again and again until it returns False."""

    def __init__(self) -> None:
        self._steps: deque[Step] = deque()
        self._left_count = limits.FRAMES_PER_TURN_MAX
        self._over_at: float | None = None
        """When the turn ends, once a frame was handled in it."""
        self._is_next_due = False
        self._is_running = False

    def enter(self, step: Step) -> None:
        """Run a step, in this turn if it is not over."""
        self._steps.append(step)
        if not self._is_running:
            self._run()

    def _run(self) -> None:
        self._is_running = True
        if self._over_at is None:
            self._over_at = time.thread_time() + limits.TURN_MS / 1000
        try:
            while self._steps and self._left_count:
                step = self._steps.popleft()
                self._left_count -= 1
                if time.thread_time() > self._over_at:
                    self._left_count = 0  # after this one
                if step():
                    self._steps.append(step)
        finally:
            self._is_running = False
            if not self._is_next_due:
                self._is_next_due = True
                asyncio.get_running_loop().call_soon(self._begin_next)

    def _begin_next(self) -> None:
        self._is_next_due = False
        self._left_count = limits.FRAMES_PER_TURN_MAX
        self._over_at = None
        if self._steps:
            self._run()


class LogTally:
    """Adds up what may happen often, for a line of the log now and then.

    One is due at once, and then every `interval_ms` at most.
    """

    def __init__(self, clock: Clock, interval_ms: int) -> None:
        self._clock = clock
        self._interval_ms = interval_ms
        self._sums: list[int] = []
        self._due_at = clock.monotonic()

    def add(self, *counts: int) -> tuple[int, ...] | None:
        """Add counts, the same number of them each time; return their sums when a line is due."""
        self._sums = [sum(pair) for pair in zip_longest(self._sums, counts, fillvalue=0)]
        now = self._clock.monotonic()
        if now < self._due_at:
            return None
        self._due_at = now + self._interval_ms / 1000
        sums, self._sums = tuple(self._sums), []
        return sums


async def cancel_all(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait for their end, HANDLER_CANCEL_MS at most. Their exceptions are dropped.

    A task that takes longer is abandoned and logged, so that a stop always ends.
    """
    cancelled = set(tasks)
    for task in cancelled:
        task.cancel()
    if not cancelled:
        return
    done, late = await asyncio.wait(cancelled, timeout=limits.HANDLER_CANCEL_MS / 1000)
    for task in done:
        if not task.cancelled():
            task.exception()
    for task in late:
        _LOG.error("task abandoned, it ignores cancellation: %r", task)
