"""Cancels a task at every moment at which it may be cancelled, one run for each.

A moment is: a task of the operation begins to wait, or what it waits for happens (the task has not
gone on yet), or the event loop calls a connection back, before and after. All are needed: a task
that is cancelled as its future is done takes another way than one that still waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import types
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from sbp_core.client import AsyncClient
from sbp_core.client.io.aio_transport import AsyncConnection

Operation = Callable[[AsyncClient], Awaitable[None]]

_CALLBACKS = ("connection_made", "buffer_updated", "connection_lost")
_ENDS_WITHIN_SECONDS = 20


class Moments:
    """Counts moments, and cancels the task `victim` at number `at`."""

    def __init__(self, at: int) -> None:
        self.count = 0
        self.victim: asyncio.Task[None] | None = None
        self._at = at

    @property
    def was_reached(self) -> bool:
        return self.count >= self._at

    def tick(self, _: object = None) -> None:
        if self.victim is None or self.victim.done():
            return
        self.count += 1
        if self.count == self._at:
            self.victim.cancel()

    def make_task(self, loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> Any:
        """A task factory: the tasks of the loop report their moments."""
        task = asyncio.Task(self._told(coro), loop=loop, **options)
        task.add_done_callback(lambda _: coro.close())  # if it was cancelled before it began
        return task

    async def _told(self, coro: Coroutine[Any, Any, Any]) -> Any:
        return await self._steps(coro)

    @types.coroutine
    def _steps(self, coro: Coroutine[Any, Any, Any]) -> Generator[Any, Any, Any]:
        error: BaseException | None = None
        while True:
            try:
                awaited = coro.send(None) if error is None else coro.throw(error)
            except StopIteration as stop:
                return stop.value
            if awaited is not None:
                awaited.add_done_callback(self.tick)
            self.tick()
            error = None
            try:
                yield awaited
            except BaseException as thrown:
                error = thrown

    def watch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Count what the event loop calls, too."""
        for name in _CALLBACKS:
            called = getattr(AsyncConnection, name)

            def callback(connection: Any, argument: Any, called: Any = called) -> Any:
                self.tick()
                try:
                    return called(connection, argument)
                finally:
                    self.tick()

            monkeypatch.setattr(AsyncConnection, name, callback)


def cancel_everywhere(
    operation: Operation, endpoint: str, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> int:
    """Run an operation, cancelled at the first moment, at the second, ..., until it ends before.

    Afterwards its client closes, and no task and no socket is left. Return how many moments there
    were.
    """
    at = 0
    while True:
        at += 1
        moments = Moments(at)
        with (
            pytest.MonkeyPatch.context() as monkeypatch,
            asyncio.Runner(loop_factory=new_loop) as runner,
        ):
            moments.watch(monkeypatch)
            runner.run(_run(moments, operation, endpoint))
        if not moments.was_reached:
            return at - 1
        assert at < 2_000, "it does not end"


async def _run(moments: Moments, operation: Operation, endpoint: str) -> None:
    loop = asyncio.get_running_loop()
    loop.set_task_factory(moments.make_task)
    async with _nothing_left():
        client = AsyncClient(endpoint)
        moments.victim = loop.create_task(_whole(operation, client))
        await _ended(moments.victim, "the operation")
        with contextlib.suppress(asyncio.CancelledError):
            moments.victim.result()
        moments.victim = None
        closing = loop.create_task(client.close())
        await _ended(closing, "close")
        closing.result()


async def _whole(operation: Operation, client: AsyncClient) -> None:
    async with client:
        await operation(client)


async def _ended(task: asyncio.Task[None], what: str) -> None:
    await asyncio.wait({task}, timeout=_ENDS_WITHIN_SECONDS)
    assert task.done(), f"{what} waits for ever: {task}"


@asynccontextmanager
async def _nothing_left() -> AsyncIterator[None]:
    before = _sockets()
    yield
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert _sockets() == before


def _sockets() -> set[str]:
    links = set()
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            links.add(str(path.readlink()))
    return {link for link in links if link.startswith("socket:")}
