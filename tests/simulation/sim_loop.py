"""An event loop in which time, threads and processes are simulated.

Nothing waits: if no callback is due, the time of the loop jumps to the next timer. All programs of
a cluster share the loop. Each callback belongs to the `Process` in whose context it was made, and
runs only while that is alive and not paused. Work for a thread is done in one step, at a later
time that the seed chooses: no other program runs within it.

It runs what the project uses of a loop, and raises NotImplementedError for all else.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import heapq
import itertools
import sys
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future
from contextvars import Context, ContextVar
from functools import partial
from random import Random
from typing import Any, TypeGuard

TURN_SECONDS = 1e-5
"""Time that each turn of the loop takes: whatever a program does, the time goes on."""
WORK_SECONDS_MAX = 30.0
TURNS_MAX = 200_000
"""A run takes some thousand turns, and 2 000 more for each second in which a slow disk works."""
TURNS_BETWEEN_LOOKS = 1_000
"""After how many turns the tasks that have ended are looked at, and forgotten."""


class ProcessDied(BaseException):
    """Ends what a process does in the middle of a step; nothing in it may catch this."""


class Process:
    """A program from its start to its end, at one address; `disk` is the one of its machine."""

    def __init__(self, name: str, address: str, disk: Any = None) -> None:
        self.name = name
        self.address = address
        self.disk = disk
        self.is_alive = True
        self.is_paused = False
        self.backlog: list[asyncio.Handle] = []
        """Callbacks that are due since it was paused."""
        self.slowness = 1.0
        self.ended: asyncio.Future[None]
        """For who waits until it is dead."""
        self.on_death: list[Callable[[], None]] = []
        self.context = NOBODY.copy()
        """In which all of it runs."""
        self.context.run(RUNNING.set, self)


RUNNING: ContextVar[Process | None] = ContextVar("running process", default=None)
NOBODY = Context()
"""For what is done by no process: the network, and who injects faults."""


class SimulatedTask(asyncio.Task):
    """A task with a hash that does not depend on its address: sets have an order."""

    def __new__(cls, *_: Any, loop: SimulatedLoop, **__: Any) -> SimulatedTask:
        task = super().__new__(cls)
        task._serial = next(loop.serials)
        return task

    def __hash__(self) -> int:
        return self._serial


class SimulatedFuture(asyncio.Future):
    """A future with a hash that does not depend on its address."""

    def __new__(cls, *, loop: SimulatedLoop) -> SimulatedFuture:
        future = super().__new__(cls)
        future._serial = next(loop.serials)
        return future

    def __hash__(self) -> int:
        return self._serial


class SimulatedLoop(asyncio.AbstractEventLoop):
    """The loop of one run. `network` makes its connections, `rng` decides how long work takes."""

    def __init__(self, rng: Random) -> None:
        self.network: Any = None
        self.serials = itertools.count()
        self.faults: list[str] = []
        """Exceptions that nobody caught."""
        self._rng = rng
        self._now = 0.0
        self._ready: deque[tuple[Process | None, asyncio.Handle]] = deque()
        self._timers: list[tuple[float, int, Process | None, asyncio.Handle]] = []
        self._tasks: list[asyncio.Task[Any]] = []
        """All tasks: one that a dead process leaves behind must not run its `finally` clauses."""
        self._executors: dict[Process | None, SimulatedExecutor] = {}
        self._is_closed = False

    # Time and turns

    def time(self) -> float:
        return self._now

    def run_until_complete(self, main: Coroutine[Any, Any, Any]) -> Any:
        """Run `main`, and all that it starts, until it ends."""
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(finalizer=self._finish_generator)
        asyncio._set_running_loop(self)
        try:
            task = self.create_task(main)
            for turn in range(TURNS_MAX):
                if task.done():
                    return task.result()
                self._turn()
                if turn % TURNS_BETWEEN_LOOKS == 0:
                    self._forget_ended()
            raise AssertionError(f"the run has not ended after {TURNS_MAX} turns of the loop")
        finally:
            asyncio._set_running_loop(None)
            sys.set_asyncgen_hooks(*hooks)

    def _turn(self) -> None:
        self._now += TURN_SECONDS
        timers = self._timers
        if not self._ready:
            assert timers, "everything waits, and nothing will ever happen"
            self._now = max(self._now, timers[0][0])
        while timers and timers[0][0] <= self._now:
            _, _, process, handle = heapq.heappop(timers)
            self._ready.append((process, handle))
        for _ in range(len(self._ready)):
            process, handle = self._ready.popleft()
            if handle.cancelled() or not (process is None or process.is_alive):
                continue
            if process is not None and process.is_paused:
                process.backlog.append(handle)
                continue
            handle._run()

    def _forget_ended(self) -> None:
        """Let go of the tasks that have ended; raise what is meant for the run as a whole."""
        ended = [task for task in self._tasks if task.done()]
        self._tasks = [task for task in self._tasks if not task.done()]
        for task in ended:
            error = None if task.cancelled() else task.exception()
            if is_meant_for_run(error):
                raise error

    def resume(self, process: Process) -> None:
        """Let a process that was paused go on, with what is due since then."""
        process.is_paused = False
        self._ready.extend((process, handle) for handle in process.backlog)
        process.backlog.clear()

    def _finish_generator(self, generator: Any) -> None:
        if not self._is_closed:
            self.call_soon(self.create_task, generator.aclose())

    def close(self) -> None:
        """Drop all that is left, without running any of it."""
        self._is_closed = True
        for task in self._tasks:
            task._log_destroy_pending = False
            coroutine = task.get_coro()
            if not task.done() and coroutine is not None:
                _close(coroutine)
        self._ready.clear()
        self._timers.clear()
        self._tasks.clear()

    # Callbacks

    def call_soon(
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        if not self._is_closed:
            self._ready.append((_owner(context), handle))
        return handle

    call_soon_threadsafe = call_soon

    def call_at(
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        if not self._is_closed:
            entry = when, next(self.serials), _owner(context), handle
            heapq.heappush(self._timers, entry)
        return handle

    def call_later(
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It is skipped when it is due."""

    def create_future(self) -> asyncio.Future[Any]:
        return SimulatedFuture(loop=self)

    def create_task(
        self,
        coro: Coroutine[Any, Any, Any],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[Any]:
        task = SimulatedTask(coro, loop=self, name=name, context=context)
        self._tasks.append(task)
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Note what nobody caught: that is a defect of the program, unless it ends the run."""
        error = context.get("exception")
        if is_meant_for_run(error):
            raise error
        if not self._is_closed and not isinstance(error, ProcessDied):
            self.faults.append(f"{context['message']}: {error!r}")

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return self._is_closed

    # Threads

    def run_in_executor(
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        chosen = executor or self._executors.get(RUNNING.get())
        if chosen is None:
            chosen = self._executors[RUNNING.get()] = SimulatedExecutor(4)
        return asyncio.wrap_future(chosen.submit(func, *args), loop=self)

    def work_seconds(self, process: Process | None) -> float:
        """Return how long the next work of a thread takes."""
        chance = self._rng.random()
        scale = 0.0005 if chance < 0.9 else 0.01 if chance < 0.995 else 0.2
        slowness = process.slowness if process is not None else 1.0
        return min(self._rng.random() * scale * slowness, WORK_SECONDS_MAX)

    # Network

    async def create_connection(
        self, factory: Callable[[], Any], host: str, port: int, **_: Any
    ) -> Any:
        return await self.network.connect(factory, host, port)

    async def connect_accepted_socket(self, factory: Callable[[], Any], sock: Any, **_: Any) -> Any:
        return sock.adopt(factory())


def is_meant_for_run(error: BaseException | None) -> TypeGuard[BaseException]:
    """Whether an error is not for a program to handle: the time limit of a test, for example."""
    return error is not None and not isinstance(
        error, (Exception, ProcessDied, asyncio.CancelledError)
    )


def _owner(context: Context | None) -> Process | None:
    return RUNNING.get() if context is None else context.get(RUNNING)


def _close(coroutine: Any) -> None:
    """End a coroutine in a context of its own, whatever it raises then."""
    with contextlib.suppress(BaseException):
        Context().run(coroutine.close)


class _Work:
    """Something for a thread."""

    def __init__(self, do: Callable[[], Any]) -> None:
        self.do = do
        self.context = contextvars.copy_context()
        self.future: Future[Any] = Future()
        self.timer: asyncio.TimerHandle

    def run(self) -> None:
        try:
            result = self.context.run(self.do)
        except Exception as error:
            self.future.set_exception(error)
        else:
            self.future.set_result(result)


class SimulatedExecutor(Executor):
    """A pool of threads that do one piece of work each in a single step, some time later."""

    def __init__(self, max_workers: int = 4, **_: Any) -> None:
        self._loop: Any = asyncio.get_running_loop()
        self._free = max_workers
        self._queue: deque[_Work] = deque()
        self._begun: dict[_Work, None] = {}

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        work = _Work(partial(fn, *args, **kwargs))
        self._queue.append(work)
        self._begin()
        return work.future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Do all that is left at once."""
        assert not cancel_futures
        while wait and self._begun:
            work = next(iter(self._begun))
            work.timer.cancel()
            self._do(work)

    def _begin(self) -> None:
        while self._free and self._queue:
            work = self._queue.popleft()
            if not work.future.set_running_or_notify_cancel():
                continue  # given up in time: a thread finishes only what it has begun
            self._free -= 1
            self._begun[work] = None
            seconds = self._loop.work_seconds(RUNNING.get())
            work.timer = self._loop.call_later(seconds, self._do, work)

    def _do(self, work: _Work) -> None:
        del self._begun[work]
        self._free += 1
        work.run()
        self._begin()
