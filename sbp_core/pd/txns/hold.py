"""A pause in what many do: while it lasts none is inside, and those that come wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Hold:
    """Lets many pass at a time, or one hold them all up; on one event loop."""

    def __init__(self) -> None:
        self._passing_count = 0
        self._is_held = False
        self._has_changed = asyncio.Condition()

    @asynccontextmanager
    async def passing(self) -> AsyncIterator[None]:
        """Pass, after a hold that lasts now."""
        async with self._has_changed:
            await self._has_changed.wait_for(lambda: not self._is_held)
            self._passing_count += 1
        try:
            yield
        finally:
            self._passing_count -= 1
            await self._notify()

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Let nobody pass in the body, which begins when nobody is passing any longer."""
        async with self._has_changed:
            await self._has_changed.wait_for(lambda: not self._is_held)
            self._is_held = True
        try:
            async with self._has_changed:
                await self._has_changed.wait_for(lambda: not self._passing_count)
            yield
        finally:
            self._is_held = False
            await self._notify()

    async def _notify(self) -> None:
        async with self._has_changed:
            self._has_changed.notify_all()
