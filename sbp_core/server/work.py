"""The requests of one connection that are being served, and since when it is of no use."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from sbp_core import limits
from sbp_core.server.dispatch import Deferred, Serving
from sbp_core.server.intake import Held
from sbp_core.server.runtime import Clock


class Work:
    """What is served for one connection; `on_ended` is called with what ended a piece of it.

    That is None, or the error with which its answer could not be sent.
    """

    def __init__(self, clock: Clock, on_ended: Callable[[BaseException | None], None]) -> None:
        self._clock = clock
        self._on_ended = on_ended
        self._tasks: dict[asyncio.Task[None], Held] = {}
        self._deferred_count = 0
        self._used_at = clock.monotonic()
        self._was_used = False

    @property
    def has_tasks(self) -> bool:
        """Whether tasks are running."""
        return bool(self._tasks)

    @property
    def is_going_on(self) -> bool:
        """Whether anything is being served."""
        return bool(self._tasks) or self._deferred_count > 0

    def go_on(self, rest: Serving | None, held: Held, *, is_use: bool) -> None:
        """Do what is left of a request that counts for what is `held`."""
        if rest is None:
            held.end()
        elif isinstance(rest, Deferred):
            self._deferred_count += 1
            rest.when_due(partial(self._on_due, rest, held))
        else:
            task = asyncio.create_task(rest)
            self._tasks[task] = held
            task.add_done_callback(partial(self._on_done, is_use))

    def cancel(self) -> None:
        """Cancel the tasks; calls without one end in their own time."""
        for task in self._tasks:
            task.cancel()

    def forsake(self) -> list[asyncio.Task[Any]]:
        """Give back what tasks count for that did not end; return those."""
        for held in self._tasks.values():
            held.end()
        return list(self._tasks)

    def note_use(self) -> None:
        """A request begins or ends. PING and the HEARTBEAT of a client are no use."""
        self._used_at = self._clock.monotonic()
        self._was_used = True

    def idle_ms(self, now: float) -> float:
        """Return for how long nothing was asked for, in ms."""
        return 1000 * (now - self._used_at)

    def spare_ms(self, now: float) -> float:
        """Return for how long a newcomer could have had the place, in ms; negative before that."""
        spared_ms = limits.SPARED_CONNECTION_MS if self._was_used else limits.UNUSED_CONNECTION_MS
        return self.idle_ms(now) - spared_ms

    def _on_due(self, deferred: Deferred, held: Held) -> None:
        rest = deferred.finish()
        self._deferred_count -= 1
        self.go_on(rest, held, is_use=True)
        self.note_use()
        self._on_ended(None)

    def _on_done(self, is_use: bool, task: asyncio.Task[None]) -> None:  # noqa: FBT001
        self._tasks.pop(task).end()
        if is_use:
            self.note_use()
        self._on_ended(None if task.cancelled() else task.exception())
