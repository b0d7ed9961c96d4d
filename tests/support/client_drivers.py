"""The blocking and the asyncio client behind one face, so that one suite runs on both."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from sbp_core.client import AsyncClient, Client, FetchItem, FetchOutcome


class _TimedDriver:
    client: Client | AsyncClient

    @contextmanager
    def waiting_at_most(self, timeout_ms: int) -> Iterator[None]:
        """Set the timeout of the calls in the block, for calls with a known outcome."""
        context = self.client._context
        self.client._context = replace(context, timeout_ms=timeout_ms)
        try:
            yield
        finally:
            self.client._context = context


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


Driver = BlockingDriver | AsyncDriver
