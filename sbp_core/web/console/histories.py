"""Sampling for the pages of the console: rates and lags over time, a history for each client.

A client is sampled every PERIOD_SECONDS while somebody looks at pages. While nobody does, the
client is sampled every HISTORY_SECONDS if its history is wanted: the client of the console itself
for ever, the client of a session as long as the session is open.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Final

from sbp_core.client import AsyncClient
from sbp_core.operating.samples import HISTORY_SECONDS, PERIOD_SECONDS, Samples, Sampling

SIZES_SECONDS: Final = 60.0
LOOKED_SECONDS: Final = 30.0
"""Pages ask again every few seconds: somebody has looked if a page asked within this time."""
SAMPLED_MAX: Final = 8
"""Clients that are sampled at a time: each has a history of its own, which takes memory."""
STALE_SECONDS: Final = 15.0
"""Samples older than this are said to be old."""


class _History:
    """The samples of one client, and the task that adds to them."""

    def __init__(
        self, client: AsyncClient, hold: AbstractContextManager[None], clock: Callable[[], float]
    ) -> None:
        self._clock = clock
        self._sampling = Sampling(client, sizes_seconds=SIZES_SECONDS, clock=clock)
        self._is_wanted: Callable[[], bool] = lambda: True
        self._looked_at = clock()
        self._awake = asyncio.Event()
        held = ExitStack()
        held.enter_context(hold)
        self.task = asyncio.create_task(self._run())
        self.task.add_done_callback(lambda _: held.close())

    def look(self, is_wanted: Callable[[], bool]) -> Samples:
        """Return the samples, and take more while somebody looks or `is_wanted` says so."""
        self._looked_at = self._clock()
        self._is_wanted = is_wanted
        self._awake.set()
        return self._sampling.samples

    @property
    def _is_looked_at(self) -> bool:
        return self._clock() - self._looked_at <= LOOKED_SECONDS

    @property
    def is_needed(self) -> bool:
        """Whether the client is sampled."""
        return self._is_looked_at or self._is_wanted()

    async def _run(self) -> None:
        while self.is_needed:
            began = self._clock()
            self._awake.clear()
            await self._sampling.try_sample()
            await self._pause(PERIOD_SECONDS - (self._clock() - began))
            if not self._is_looked_at:
                await self._pause(HISTORY_SECONDS - (self._clock() - began), self._awake)

    @staticmethod
    async def _pause(seconds: float, until: asyncio.Event | None = None) -> None:
        """Wait for some time, or until somebody looks."""
        try:
            async with asyncio.timeout(max(seconds, 0.1)):
                await (until or asyncio.Event()).wait()
        except TimeoutError:
            pass


class Sampler:
    """Samples the cluster with clients until `stopping` is set, SAMPLED_MAX of them at most.

    The client that was looked with longest ago makes room for another one. `hold` keeps a client
    open while it is sampled.
    """

    def __init__(
        self,
        stopping: asyncio.Event,
        clock: Callable[[], float] = time.monotonic,
        hold: Callable[[AsyncClient], AbstractContextManager[None]] = lambda _: nullcontext(),
    ) -> None:
        self._stopping = stopping
        self._clock = clock
        self._hold = hold
        self._histories: dict[AsyncClient, _History] = {}
        self._ending: asyncio.Task[None] | None = None

    def look(self, client: AsyncClient, is_wanted: Callable[[], bool] = lambda: True) -> Samples:
        """Return the samples of a client. `is_wanted` says how long its history is kept."""
        if self._ending is None:
            self._ending = asyncio.create_task(self._end())
        for other, each in [*self._histories.items()]:
            if other is not client and not each.is_needed:
                self._forget(other)
        found = self._histories.pop(client, None)
        if found is None or found.task.done():
            found = _History(client, self._hold(client), self._clock)
        while len(self._histories) >= SAMPLED_MAX:
            self._forget(next(iter(self._histories)))
        self._histories[client] = found  # behind all others: it was looked at last
        return found.look(is_wanted)

    async def _end(self) -> None:
        """End all sampling before the clients are closed."""
        await self._stopping.wait()
        for client in [*self._histories]:
            self._forget(client)

    def _forget(self, client: AsyncClient) -> None:
        self._histories.pop(client).task.cancel()
