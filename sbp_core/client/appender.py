"""Appending while the next batches are made: for the blocking and the asyncio client."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Sequence
from types import TracebackType
from typing import Self

from sbp_core.client.appends.appending import GradualAppend
from sbp_core.client.types import AppendItem
from sbp_core.errors import ConfigurationError

Steps = Generator[None, Sequence[AppendItem] | None, None]
AsyncSteps = AsyncGenerator[None, Sequence[AppendItem] | None]


class Appender:
    """Appends batches as they are given, those of one stream in order (see `Client.appender`).

    For one thread. After an error it is over, and raises ConfigurationError; so it does when it is
    closed before `finish`: then nobody knows what became of the batches that are `unacknowledged`.
    """

    def __init__(self, work: GradualAppend, steps: Steps) -> None:
        self._work = work
        self._steps = steps
        self._is_over = False
        next(steps)

    @property
    def unacknowledged(self) -> list[AppendItem]:
        """The batches that are not known to be appended, and those after them in their streams."""
        return self._work.unacknowledged

    def append(self, items: Sequence[AppendItem]) -> None:
        """Send batches; return when all are sent, and most are answered. Raises SbpError."""
        _check(self._is_over)
        try:
            self._steps.send(items)
        except BaseException:
            self._is_over = True
            raise

    def finish(self) -> None:
        """Return when everything is appended; it is over then. Raises SbpError."""
        _check(self._is_over)
        self._is_over = True
        for _ in self._steps:
            raise AssertionError("it is ready for more, but there is no more")

    def close(self) -> None:
        """Give up what is not appended. Idempotent."""
        self._is_over = True
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
        self._is_over = False

    @property
    def unacknowledged(self) -> list[AppendItem]:
        """The batches that are not known to be appended, and those after them in their streams."""
        return self._work.unacknowledged

    async def append(self, items: Sequence[AppendItem]) -> None:
        """Send batches; return when all are sent, and most are answered. Raises SbpError."""
        _check(self._is_over)
        try:
            await self._begin()
            await self._steps.asend(items)
        except BaseException:
            self._is_over = True
            raise

    async def finish(self) -> None:
        """Return when everything is appended; it is over then. Raises SbpError."""
        _check(self._is_over)
        self._is_over = True
        await self._begin()
        async for _ in self._steps:
            raise AssertionError("it is ready for more, but there is no more")

    async def close(self) -> None:
        """Give up what is not appended. Idempotent."""
        self._is_over = True
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


def _check(is_over: bool) -> None:  # noqa: FBT001
    if is_over:
        raise ConfigurationError(
            "this appender is over: it was finished or closed, or raised an error; begin another"
        )
