"""Doing many small things at once: what is asked for while others are done is done together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from sbp_core.server.runtime import cancel_all

T = TypeVar("T")
R = TypeVar("R")


class Combiner(Generic[T, R]):
    """Hands items to `work`, up to `count_max` at a time, and never begins it twice at once.

    `work` returns a result for each item, in their order. What it raises, it raises for all.
    """

    def __init__(
        self, work: Callable[[Sequence[T]], Awaitable[Sequence[R]]], count_max: int
    ) -> None:
        self._work = work
        self._count_max = count_max
        self._waiting: list[tuple[T, asyncio.Future[R]]] = []
        self._task: asyncio.Task[None] | None = None

    async def submit(self, item: T) -> R:
        """Return the result of an item."""
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        return await future

    async def stop(self) -> None:
        """Give up what is under way; who waits for it is cancelled."""
        if self._task is not None:
            await cancel_all([self._task])

    async def _run(self) -> None:
        batch: list[tuple[T, asyncio.Future[R]]] = []
        try:
            while self._waiting:
                batch = self._waiting[: self._count_max]
                del self._waiting[: self._count_max]
                try:
                    results = await self._work([item for item, _ in batch])
                except Exception as error:  # noqa: BLE001 - whoever waits must be told
                    for _, future in batch:
                        if not future.done():
                            future.set_exception(error)
                else:
                    for (_, future), result in zip(batch, results, strict=True):
                        if not future.done():
                            future.set_result(result)
        finally:
            self._task = None
            for _, future in (*batch, *self._waiting):
                future.cancel()
            self._waiting = []
