"""Coroutines that run at once up to where they first wait, and only then become tasks.

A request that needs no wait is answered as it arrives, without a task, and so before the request
behind it begins. Python 3.12 has that as `eager_start`; before it, `asyncio.timeout` and
`asyncio.current_task` are of no use in front of the first wait.
"""

from __future__ import annotations

import asyncio
import sys
import types
from collections.abc import Coroutine, Generator
from functools import partial
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
    return loop.create_task(_rest(work, awaited))


@types.coroutine
def _rest(work: Coroutine[Any, Any, None], awaited: Any) -> Generator[Any, Any, None]:
    """Go on with a coroutine that waits for a future already."""
    while True:
        try:
            sent = yield awaited
        except GeneratorExit:
            work.close()
            raise
        except BaseException as error:  # noqa: BLE001 - a cancellation, or the error of the future
            step = partial(work.throw, error)
        else:
            step = partial(work.send, sent)
        try:
            awaited = step()
        except StopIteration:
            return
