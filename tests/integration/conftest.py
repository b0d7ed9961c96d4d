"""The servers that a test runs in its own process are on the event loop of `sbp serve`."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def event_loop_of_servers() -> Iterator[None]:
    """Let `asyncio.run` take uvloop's loop, where there is one."""
    try:
        import uvloop
    except ImportError:
        yield
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons are to lose policies
        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
        yield
        asyncio.set_event_loop_policy(None)
