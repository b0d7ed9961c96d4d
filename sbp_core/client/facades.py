"""Blocking classes as facades of asyncio classes, over one event loop on a thread of the process.

A call of a blocking client is a coroutine on that loop, and the caller's thread waits for it. The
loop polls with `poll`, which has no state in the kernel that a fork would share. The child of a
fork lacks the thread: it starts a loop of its own at its first call, and leaves the connections of
its parent alone.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import os
import queue
import selectors
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from concurrent.futures import Executor
from functools import partial, wraps
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar

A = TypeVar("A")
B = TypeVar("B")
F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
T = TypeVar("T")

_CANCEL_SECONDS: Final = 1.0
"""How long an interrupted caller waits for the end of its call."""

_LEFT: Final[list[object]] = []
"""The loops of parents of this process, and their tasks: collected here, they would close files of
the parents."""


class _Loop(asyncio.SelectorEventLoop):
    """Runs blocking work, such as the look-up of a host name, on a thread for each call.

    The executors of `concurrent.futures` refuse work once the main thread has ended.
    """

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Run a function; the executor None stands for a new thread."""
        if executor is not None:
            return super().run_in_executor(executor, func, *args)
        done: concurrent.futures.Future[T] = concurrent.futures.Future()

        def work() -> None:
            try:
                done.set_result(func(*args))
            except BaseException as error:  # noqa: BLE001 - it is raised where the result is awaited
                done.set_exception(error)

        try:
            threading.Thread(target=work, name="sbp-client-call", daemon=True).start()
        except RuntimeError:  # the interpreter ends
            work()
        return asyncio.wrap_future(done, loop=self)


class Callbacks:
    """Runs the callbacks of a call on the thread that waits for the call.

    On that thread a callback may use a blocking client. On the loop it would wait for itself.
    """

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], object] | concurrent.futures.Future[Any]]
        self._calls = queue.SimpleQueue()

    def of(self, callback: Callable[P, object]) -> Callable[P, None]:
        """Return a function for the loop, which hands each call to the waiting thread."""

        def call(*args: P.args, **kwargs: P.kwargs) -> None:
            self._calls.put(partial(callback, *args, **kwargs))

        return call

    def run_until(self, ended: concurrent.futures.Future[Any]) -> None:
        """Run callbacks until the call has ended, and all of its callbacks have run."""
        ended.add_done_callback(self._calls.put)
        while (call := self._calls.get()) is not ended:
            if callable(call):
                call()


class LoopThread:
    """An event loop that runs until the process ends."""

    def __init__(self) -> None:
        self.loop: Final = _Loop(selectors.PollSelector())
        run = self.loop.run_forever
        self._thread = threading.Thread(target=run, name="sbp-client", daemon=True)
        self._thread.start()

    def run(
        self,
        work: Coroutine[Any, Any, T],
        seconds: float | None = None,
        callbacks: Callbacks | None = None,
    ) -> T:
        """Return the result of a coroutine; `callbacks` run on this thread before that.

        The coroutine is cancelled if its caller is interrupted, or a callback raises. Raises
        TimeoutError, and cancels it, after some `seconds`.
        """
        self._check_caller(work.close)
        ended = threading.Event()

        async def watched() -> T:
            try:
                return await work
            finally:
                ended.set()

        future = asyncio.run_coroutine_threadsafe(watched(), self.loop)
        try:
            if callbacks is not None:
                callbacks.run_until(future)
            return future.result(seconds)
        except BaseException:
            if future.cancel():  # the next call of the caller must not meet a call half way
                ended.wait(_CANCEL_SECONDS)
                if callbacks is not None:
                    callbacks.run_until(future)
            raise

    def _check_caller(self, give_up: Callable[[], object]) -> None:
        if threading.current_thread() is self._thread:
            give_up()
            raise RuntimeError(
                "code on the event loop of the blocking clients called a blocking client, and"
                " would wait for itself: hand the work to another thread"
            )

    def iterate(self, items: AsyncGenerator[T]) -> Generator[T, None, None]:
        """Yield the items of an asynchronous generator, which runs ahead of the caller.

        The caller does not wait for the loop at each item. Closing this generator closes `items`.
        """
        self._check_caller(lambda: None)
        arrived: queue.SimpleQueue[tuple[T] | BaseException | None] = queue.SimpleQueue()

        async def pump() -> None:
            try:
                async for item in items:
                    arrived.put((item,))
                arrived.put(None)
            except Exception as error:  # noqa: BLE001 - it is raised where the items are consumed
                arrived.put(error)
            finally:
                await items.aclose()

        future = asyncio.run_coroutine_threadsafe(pump(), self.loop)
        try:
            while (found := arrived.get()) is not None:
                if isinstance(found, BaseException):
                    raise found
                yield found[0]
        finally:
            future.cancel()


def leave_task(task: asyncio.Task[Any]) -> None:
    """Prevent a warning, in the child of a fork, about a task that goes on in the parent."""
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001


class _Current:
    """The loop of this process, once there is one."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.running: LoopThread | None = None

    def get(self) -> LoopThread:
        """Return the loop; start it if there is none."""
        with self.lock:
            if self.running is None:
                self.running = LoopThread()
            return self.running

    def leave(self) -> None:
        """Forget the loop of the parent, in the child of a fork."""
        if self.running is not None:
            tasks = asyncio.all_tasks(self.running.loop)
            for each in tasks:
                leave_task(each)
            _LEFT.append((self.running, tasks))
        self.lock, self.running = threading.Lock(), None


_CURRENT: Final = _Current()
os.register_at_fork(after_in_child=_CURRENT.leave)


def loop_thread() -> LoopThread:
    """Return the loop of this process."""
    return _CURRENT.running or _CURRENT.get()


class Facade(Protocol[A]):
    """A blocking object. The object `on_loop` does its work, on the loop of `loop_thread`."""

    on_loop: A


def blocking(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Facade[A], P], T]:
    """Return a method of a facade that waits for the same method of the asyncio class."""

    @wraps(method)
    def call(self: Facade[A], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return loop_thread().run(method(self.on_loop, *args, **kwargs))

    return call


def making(
    method: Callable[Concatenate[A, P], T], facade: Callable[[T], B]
) -> Callable[Concatenate[Facade[A], P], B]:
    """Return a method that makes a facade of the object that the asyncio class makes."""

    @wraps(method)
    def make(self: Facade[A], /, *args: P.args, **kwargs: P.kwargs) -> B:
        return facade(method(self.on_loop, *args, **kwargs))

    signature = inspect.signature(method).replace(return_annotation=getattr(facade, "__name__", ""))
    make.__signature__ = signature  # type: ignore[attr-defined]
    return make


def documented_as(method: Callable[..., Any]) -> Callable[[F], F]:
    """Copy the docstring of the asyncio method. The source of the facade has its first line."""

    def documented(facade: F) -> F:
        facade.__doc__ = method.__doc__
        return facade

    return documented


def internal(method: F) -> F:
    """Mark a method for facades only: the reference pages leave it out."""
    method.is_internal = True  # type: ignore[attr-defined]
    return method
