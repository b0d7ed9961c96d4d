"""Appending while the next batches are made: for the blocking and the asyncio client."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Sequence
from types import TracebackType
from typing import Self

from sbp_core.client.append import GradualAppend
from sbp_core.client.types import AppendItem

Steps = Generator[None, Sequence[AppendItem] | None, None]
AsyncSteps = AsyncGenerator[None, Sequence[AppendItem] | None]


class Appender:
    """Appends batches as they are given, those of one stream in order (see `Client.appender`).

    For one thread. After an error it is over; so it is when it is closed before `finish`: then
    nobody knows what became of the batches that are `unacknowledged`.
    """

    def __init__(self, work: GradualAppend, steps: Steps) -> None:
        self._work = work
        self._steps = steps
        next(steps)

    @property
    def unacknowledged(self) -> list[AppendItem]:
        """The batches that are not known to be appended, and those after them in their streams."""
        return self._work.unacknowledged

    def append(self, items: Sequence[AppendItem]) -> None:
        """Send batches; return when all are sent, and most are answered. Raises SbpError."""
        self._steps.send(items)

    def finish(self) -> None:
        """Return when everything is appended. Raises SbpError."""
        for _ in self._steps:
            raise AssertionError("it is ready for more, but there is no more")

    def close(self) -> None:
        """Give up what is not appended."""
        self._steps.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class AsyncAppender:
    """The same for one task (see `AsyncClient.appender`)."""

    def __init__(self, work: GradualAppend, steps: AsyncSteps) -> None:
        self._work = work
        self._steps = steps
        self._is_begun = False

    @property
    def unacknowledged(self) -> list[AppendItem]:
        """The batches that are not known to be appended, and those after them in their streams."""
        return self._work.unacknowledged

    async def append(self, items: Sequence[AppendItem]) -> None:
        """Send batches; return when all are sent, and most are answered. Raises SbpError."""
        await self._begin()
        await self._steps.asend(items)

    async def finish(self) -> None:
        """Return when everything is appended. Raises SbpError."""
        await self._begin()
        async for _ in self._steps:
            raise AssertionError("it is ready for more, but there is no more")

    async def close(self) -> None:
        """Give up what is not appended."""
        await self._steps.aclose()

    async def __aenter__(self) -> Self:
        await self._begin()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def _begin(self) -> None:
        if not self._is_begun:
            self._is_begun = True
            await anext(self._steps)
