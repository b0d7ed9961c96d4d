"""Clients at work, and clients and servers that a test scripts."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
import types
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterator,
    Sequence,
)
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import pytest

from sbp_core.client import AsyncClient, Client, FetchItem, FetchOutcome, RetryPolicy, Writer
from sbp_core.client.io.aio_connection import AsyncConnection
from sbp_core.errors import SbpError
from tests.support.spark import append_values, numbered


class _TimedDriver:
    client: Client | AsyncClient

    @contextmanager
    def waiting_at_most(self, timeout_ms: int) -> Iterator[None]:
        """Set the timeout of the calls in the block, for calls with a known outcome."""
        client = self.client.on_loop if isinstance(self.client, Client) else self.client
        context = client._context
        client._context = replace(context, timeout_ms=timeout_ms)
        try:
            yield
        finally:
            client._context = context


class BlockingDriver(_TimedDriver):
    def __init__(self, endpoint: str, **options: Any) -> None:
        self.client = Client(endpoint, **options)

    def do(self, method: str, *arguments: Any, **options: Any) -> Any:
        return getattr(self.client, method)(*arguments, **options)

    def fetch(self, items: Sequence[FetchItem], **options: Any) -> list[FetchOutcome]:
        return list(self.client.fetch(items, **options))

    def fetch_first(self, items: Sequence[FetchItem], **options: Any) -> FetchOutcome:
        iterator = self.client.fetch(items, **options)
        outcome = next(iterator)
        iterator.close()  # type: ignore[attr-defined]
        return outcome

    def close(self) -> None:
        self.client.close()


class AsyncDriver(_TimedDriver):
    """Runs the loop in a thread of its own, so that it lives between calls too."""

    def __init__(self, endpoint: str, **options: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.client = AsyncClient(endpoint, **options)

    def do(self, method: str, *arguments: Any, **options: Any) -> Any:
        return self._run(getattr(self.client, method)(*arguments, **options))

    def fetch(self, items: Sequence[FetchItem], **options: Any) -> list[FetchOutcome]:
        async def collect() -> list[FetchOutcome]:
            return [outcome async for outcome in self.client.fetch(items, **options)]

        return self._run(collect())

    def fetch_first(self, items: Sequence[FetchItem], **options: Any) -> FetchOutcome:
        async def first() -> FetchOutcome:
            iterator = self.client.fetch(items, **options)
            outcome = await anext(iterator)
            await iterator.aclose()  # type: ignore[attr-defined]
            return outcome

        return self._run(first())

    def close(self) -> None:
        self._run(self.client.close())
        leaked = self._run(self._other_tasks())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()
        assert not leaked, leaked

    async def _other_tasks(self) -> list[str]:
        return [repr(task) for task in asyncio.all_tasks() - {asyncio.current_task()}]

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)


QUICK = RetryPolicy(budget_ms=5_000, backoff_ms=1, backoff_ms_max=5)
"""Retries without waiting, for clients of scripted servers."""


PROGRESS_SECONDS = 90


class ClientThreads:
    """A context manager that starts threads and stops them. An error in a thread fails the test.

    Each thread counts what was acknowledged to it in `acknowledged`, if it counts anything, ends
    soon when `stopping` is set, and puts what it raises into `failures`.
    """

    def __init__(self, counting: int) -> None:
        self.acknowledged = [0] * counting
        self.stopping = threading.Event()
        self.failures: list[BaseException] = []
        self.threads: Sequence[threading.Thread] = ()

    def __enter__(self) -> Self:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        for thread in self.threads:
            thread.join(PROGRESS_SECONDS)
            assert not thread.is_alive(), "a client hangs"
        assert not self.failures, self.failures

    def wait_for_progress(self, is_worth_it: Callable[[], bool] = lambda: True) -> None:
        """Wait until each that counts has counted on, or it is not worth it any more."""
        before = list(self.acknowledged)
        deadline = time.monotonic() + PROGRESS_SECONDS
        while is_worth_it() and any(map(int.__le__, self.acknowledged, before)):
            assert not self.failures, self.failures
            assert time.monotonic() < deadline, f"no progress within {PROGRESS_SECONDS} s"
            time.sleep(0.005)


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
    assert _sockets() <= before  # a connection of Spark may end in between


def _sockets() -> set[str]:
    links = set()
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            links.add(str(path.readlink()))
    return {link for link in links if link.startswith("socket:")}


@contextmanager
def producing(
    endpoint: str,
    rng: random.Random,
    streams: Sequence[str],
    *,
    sealed: Sequence[str],
    seal_share: float,
) -> Iterator[None]:
    """Append each number once, to one of the `streams`; seal one of `sealed` now and then."""
    is_over = threading.Event()
    failures: list[BaseException] = []

    def produce() -> None:
        number = 0
        writer = Writer()
        with Client(endpoint) as client:
            while not is_over.wait(rng.uniform(0, 0.1)):
                values = numbered(number, number + rng.randint(1, 40))
                append_values(client, rng.choice(streams), values, writer=writer)
                number += len(values)
                if rng.random() < seal_share:
                    (info,) = client.describe_streams([rng.choice(sealed)])
                    with suppress(SbpError):  # servers may be dead: then it is not sealed now
                        client.seal_streams([info.stream_id])

    def produce_or_tell() -> None:
        try:
            produce()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=produce_or_tell)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
    assert failures == []
