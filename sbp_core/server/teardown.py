"""Ending background work for good, and not waiting for what does not end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Any, Final

from sbp_core import limits

_LOG: Final = logging.getLogger(__name__)


async def cancel_all(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait for their end, HANDLER_CANCEL_MS at most. What they raise is dropped.

    One that takes longer is left to itself, and the log says so: a stop must come to its end.
    """
    cancelled = set(tasks)
    for task in cancelled:
        task.cancel()
    if not cancelled:
        return
    done, late = await asyncio.wait(cancelled, timeout=limits.HANDLER_CANCEL_MS / 1000)
    for task in done:
        if not task.cancelled():
            task.exception()
    for task in late:
        _LOG.error("left to itself, it does not end by being cancelled: %r", task)
