"""Where tasks wait for each other, and how a producer is driven by the threads of its callers."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final

from sbp_core.client.io.loop_thread import LoopThread


class Gate:
    """Lets the tasks of one event loop wait for a change, and has the worker that makes some."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()
        self._worker: asyncio.Task[None] | None = None

    def notify(self) -> None:
        """Wake all that wait. For the thread of the loop."""
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


class OnLoop:
    """A producer whose callers are tasks of its loop: callbacks run there."""

    def notify(self, gate: Gate) -> None:
        """Wake all that wait at a gate."""
        gate.notify()

    def settle(self, action: Callable[[], None]) -> None:
        """Settle a batch, which calls callbacks."""
        action()

    def finish(self, gate: Gate, seconds: float) -> None:
        """Return: when the process ends, no loop runs that could run the worker."""

    def close(self) -> None:
        """Do nothing."""


class OnThreads(OnLoop):
    """A producer whose callers are other threads than that of its loop.

    Batches are settled on a thread of its own: a callback may use a blocking client, and one that
    takes long delays no other producer.
    """

    def __init__(self, loop: LoopThread) -> None:
        self._loop: Final = loop
        self._actions: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def notify(self, gate: Gate) -> None:
        """Wake all that wait at a gate. For any thread."""
        self._loop.loop.call_soon_threadsafe(gate.notify)

    def settle(self, action: Callable[[], None]) -> None:
        """Settle a batch on the thread for that, after those before it."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="sbp-deliveries", daemon=True)
            self._thread.start()
        self._actions.put(action)

    def finish(self, gate: Gate, seconds: float) -> None:
        """Let the worker finish what it has, before the process ends."""
        self.notify(gate)
        with suppress(TimeoutError):
            self._loop.run(gate.join(), max(0.0, seconds))

    def close(self) -> None:
        """End the thread."""
        self._actions.put(None)

    def _run(self) -> None:
        while (action := self._actions.get()) is not None:
            action()
