"""Coroutines that run at once up to where they first wait, and only then become tasks.

A request that needs no wait is answered as it arrives, without a task, and so before the request
behind it begins. Python 3.12 has that as `eager_start`; before it, `asyncio.timeout` and
`asyncio.current_task` are of no use in front of the first wait.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine, Generator
from typing import Any


def start(work: Coroutine[Any, Any, None]) -> asyncio.Task[None] | None:
    """Run a coroutine; return the task of what is left of it, None if nothing is.

    Raises what the coroutine raises before it waits.
    """
    loop = asyncio.get_running_loop()
    if sys.version_info >= (3, 12):
        task = asyncio.Task(work, loop=loop, eager_start=True)
        if not task.done():
            return task
        task.result()
        return None
    try:
        awaited = work.send(None)
    except StopIteration:
        return None
    return loop.create_task(_StartedCoroutine(work, awaited))


class _StartedCoroutine(Coroutine[Any, Any, None]):
    """A coroutine that has begun, and waits for `awaited`, which its task has to see first.

    An unstarted generator in its place would keep a cancellation before the first step from it.
    """

    def __init__(self, work: Coroutine[Any, Any, None], awaited: Any) -> None:
        self._work = work
        self._awaited = [awaited]

    def send(self, value: Any) -> Any:
        """Go on, up to the next wait."""
        return self._awaited.pop() if self._awaited else self._work.send(value)

    def throw(self, *error: Any) -> Any:
        """Go on with an error."""
        self._awaited.clear()
        return self._work.throw(*error)

    def close(self) -> None:
        """Let the coroutine end where it waits."""
        self._work.close()

    def __await__(self) -> Generator[Any, Any, None]:
        """Refuse: `Coroutine` declares this method, and a task calls `send` and `throw` only."""
        raise RuntimeError("only a task can go on with a coroutine that has begun")
