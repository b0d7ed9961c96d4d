"""Sampling while somebody looks: rates and lags over time, for the pages of the console.

Each client that a page was shown with in the last LOOKED_SECONDS is sampled every PERIOD_SECONDS.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from sbp_core.client import AsyncClient
from sbp_core.operating.samples import PERIOD_SECONDS, SPAN_SECONDS, Samples, Sampling

SIZES_SECONDS: Final = 60.0
LOOKED_SECONDS: Final = 30.0
SAMPLED_MAX: Final = 16
"""Clients that are sampled at a time."""
STALE_SECONDS: Final = 15.0
"""Samples older than this are said to be old."""


class _Looking:
    """Samples with one client, as long as somebody looks."""

    def __init__(self, client: AsyncClient, clock: Callable[[], float]) -> None:
        self.looked_at = clock()
        self._clock = clock
        self._sampling = Sampling(client, sizes_seconds=SIZES_SECONDS, clock=clock)
        self.task: asyncio.Task[None] | None = None

    def look(self) -> Samples:
        """Return what was seen, and go on."""
        self.looked_at = self._clock()
        if self.task is None or self.task.done():
            self.task = asyncio.create_task(self._run())
        return self._sampling.samples

    async def _run(self) -> None:
        while self._clock() - self.looked_at <= LOOKED_SECONDS:
            began = self._clock()
            await self._sampling.try_sample()
            await asyncio.sleep(max(PERIOD_SECONDS - (self._clock() - began), 0.1))


class Sampler:
    """Samples the cluster with the clients of those who look, until `stopping` is set."""

    def __init__(
        self, stopping: asyncio.Event, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stopping = stopping
        self._clock = clock
        self._samplings: dict[AsyncClient, _Looking] = {}
        self._ending: asyncio.Task[None] | None = None

    def look(self, client: AsyncClient) -> Samples:
        """Return what was seen with a client, and go on with it for a while."""
        if self._ending is None:
            self._ending = asyncio.create_task(self._end())
        self._forget_old()
        found = self._samplings.pop(client, None) or _Looking(client, self._clock)
        while len(self._samplings) >= SAMPLED_MAX:
            self._forget(next(iter(self._samplings)))
        self._samplings[client] = found  # behind all others: it was looked at last
        return found.look()

    async def _end(self) -> None:
        """End all sampling before the clients are closed."""
        await self._stopping.wait()
        for client in [*self._samplings]:
            self._forget(client)

    def _forget_old(self) -> None:
        now = self._clock()
        for client, each in [*self._samplings.items()]:
            if now - each.looked_at > SPAN_SECONDS:
                self._forget(client)

    def _forget(self, client: AsyncClient) -> None:
        task = self._samplings.pop(client).task
        if task is not None:
            task.cancel()
