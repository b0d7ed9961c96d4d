"""Where a producer's callers and its worker wait for each other: a thread, or a task.

Both have the same methods, so that producers are written once. All but `start` and `join` are
called within `lock`, which tasks of one loop do not need.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, Final


class Gate:
    """For threads."""

    def __init__(self) -> None:
        self.lock: Final = threading.Lock()
        self._changed = threading.Condition(self.lock)
        self._worker: threading.Thread | None = None

    def notify(self) -> None:
        """Wake all that wait."""
        self._changed.notify_all()

    def wait(self, seconds: float | None) -> None:
        """Return when woken, or after some seconds; others have the lock in between."""
        self._changed.wait(seconds)

    def breathe(self) -> None:
        """Do nothing: threads take turns anyway."""

    def start(self, work: Callable[[], None]) -> None:
        """Let a worker do its work. It ends with the process, if it was not ended before."""
        self._worker = threading.Thread(target=work, name="sbp-worker", daemon=True)
        self._worker.start()

    def join(self) -> None:
        """Wait for the end of the worker."""
        if self._worker is not None:
            self._worker.join()

    def finish(self, seconds: float) -> None:
        """Let the worker finish what it has, before the process ends."""
        with self.lock:
            self.notify()
        if self._worker is not None:
            self._worker.join(max(0.0, seconds))


class AsyncGate:
    """For the tasks of one event loop."""

    def __init__(self) -> None:
        self.lock: Final[AbstractContextManager[None]] = nullcontext()
        self._changed = asyncio.Event()
        self._worker: asyncio.Task[None] | None = None

    def notify(self) -> None:
        """Wake all that wait."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait(self, seconds: float | None) -> None:
        """Return when woken, or after some seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()

    async def breathe(self) -> None:
        """Let other tasks of the loop run: work on a batch has held it for some ms."""
        await asyncio.sleep(0)

    def start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Let a worker do its work, on the running loop."""
        self._worker = asyncio.get_running_loop().create_task(work(), name="sbp-worker")

    async def join(self) -> None:
        """Wait for the end of the worker."""
        if self._worker is not None:
            await asyncio.wait([self._worker])

    def finish(self, seconds: float) -> None:
        """Return: when the process ends, no loop runs that could run the worker."""
