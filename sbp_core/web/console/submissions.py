"""Forms that were sent: what each asks for is done once, also after a double click or a reload."""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from sbp_core.errors import ConfigurationError, InvalidRequestError

KEPT_MAX: Final = 1_000
"""Actions that are remembered; the oldest one that is over is forgotten for one more."""
_KEY_LENGTH: Final = 32


@dataclass(frozen=True, slots=True)
class Done:
    """An action that was done: the page that follows, and what is said there, a line each."""

    path: str
    notice: tuple[str, ...]


class Submissions:
    """The actions of this console's forms. Each form has a key of its own, from `new_key`."""

    def __init__(self) -> None:
        self._tasks: OrderedDict[str, asyncio.Task[Done]] = OrderedDict()

    @staticmethod
    def new_key() -> str:
        """Return a key that nobody can guess."""
        return secrets.token_hex(_KEY_LENGTH // 2)

    async def once(self, key: str, act: Callable[[], Awaitable[Done]]) -> Done:
        """Return what the action of a form comes to; one that runs or ran is not begun again.

        An action that failed may be tried again with the same form. It goes on if the caller
        leaves. Raises what the action raises, InvalidRequestError without a key.
        """
        if len(key) != _KEY_LENGTH:
            raise InvalidRequestError.of("the form has no key: go back, and reload the page")
        task = self._tasks.get(key)
        if task is None:
            task = asyncio.create_task(self._run(key, act))
            self._tasks[key] = task
            self._forget_old()
        return await asyncio.shield(task)

    def maybe_notice(self, key: str) -> tuple[str, ...]:
        """Return what is to be said about the action of a form; nothing if it is not known."""
        task = self._tasks.get(key)
        is_done = task is not None and task.done() and not task.cancelled()
        if task is None or not is_done or task.exception() is not None:
            return ()
        return task.result().notice

    async def close(self) -> None:
        """Wait until the actions that were begun are over."""
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _run(self, key: str, act: Callable[[], Awaitable[Done]]) -> Done:
        try:
            return await act()
        except BaseException:
            del self._tasks[key]
            raise

    def _forget_old(self) -> None:
        over = (key for key, task in self._tasks.items() if task.done())
        if len(self._tasks) > KEPT_MAX:
            oldest = next(over, None)
            if oldest is not None:
                del self._tasks[oldest]


def check_typed(expected: str, typed: str) -> None:
    """Raise ConfigurationError unless the name that an action asks for was typed."""
    if typed.strip() != expected:
        raise ConfigurationError(f"nothing was done: type {expected} to confirm")
