"""Where tasks wait for each other, and where a producer settles its batches."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final

from sbp_core.client.facades import leave_task, loop_thread

_LOG: Final = logging.getLogger("sbp_core.app")


class Gate:
    """Lets the tasks of one event loop wait for changes, and holds the worker that makes them."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()
        self._worker: asyncio.Task[None] | None = None

    def notify(self) -> None:
        """Wake all waiting tasks. For the thread of the loop only."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait(self, seconds: float | None) -> None:
        """Return when woken, or after some seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()

    def start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start the worker, on the running loop."""
        self._worker = asyncio.get_running_loop().create_task(work(), name="sbp-worker")

    def leave(self) -> None:
        """Forget the worker, in the child of a fork."""
        if self._worker is not None:
            leave_task(self._worker)
            self._worker = None

    async def join(self) -> None:
        """Wait for the end of the worker."""
        if self._worker is not None:
            await asyncio.wait([self._worker])


class OnLoop:
    """Settles the batches of a producer whose callers are tasks of its loop: on that loop."""

    def begin(self) -> None:
        """Get ready to settle batches."""

    def notify(self, gate: Gate) -> None:
        """Wake the tasks that wait at a gate."""
        gate.notify()

    def settle(self, action: Callable[[], None]) -> None:
        """Settle a batch: `action` calls the callbacks."""
        action()

    async def drain(self) -> None:
        """Return when all batches given to `settle` are settled."""

    def finish(self, gate: Gate, seconds: float) -> None:
        """Do nothing: when the process ends, no loop runs that could run the worker."""

    def close(self) -> None:
        """Settle nothing more."""


class OnThreads(OnLoop):
    """Settles the batches of a producer whose callers are on other threads than its loop.

    Batches are settled on a thread of the producer, so a callback may use a blocking client, and a
    slow callback delays no other producer. The loop is looked up for each use, because a producer
    may be made before a fork and used after it.
    """

    def __init__(self) -> None:
        self._actions: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._is_running = False

    def begin(self) -> None:
        """Start the thread: it cannot be started once the interpreter ends."""
        self._is_running = True
        threading.Thread(target=self._run, name="sbp-deliveries", daemon=True).start()

    def notify(self, gate: Gate) -> None:
        """Wake the tasks that wait at a gate. For any thread."""
        loop_thread().loop.call_soon_threadsafe(gate.notify)

    def settle(self, action: Callable[[], None]) -> None:
        """Settle a batch on the thread of the producer, after the batches before it."""
        self._actions.put(action)

    async def drain(self) -> None:
        """Return when all batches given to `settle` are settled."""
        if not self._is_running:
            return
        loop = asyncio.get_running_loop()
        drained = asyncio.Event()

        def report() -> None:
            loop.call_soon_threadsafe(drained.set)

        self._actions.put(report)
        await drained.wait()

    def finish(self, gate: Gate, seconds: float) -> None:
        """Wait until the worker has sent its batches, before the process ends."""

        async def end() -> None:
            gate.notify()
            await gate.join()
            await self.drain()

        with suppress(TimeoutError):
            loop_thread().run(end(), max(0.0, seconds))

    def close(self) -> None:
        """End the thread."""
        self._is_running = False
        self._actions.put(None)

    def _run(self) -> None:
        while (action := self._actions.get()) is not None:
            try:
                action()
            except BaseException:  # noqa: BLE001 - such as GreenletExit: others wait for the thread
                _LOG.exception("callback failed; the producer goes on")
