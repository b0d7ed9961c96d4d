"""The servers that a test runs in its own process are on the event loop of `sbp serve`."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def deprecations_ignored() -> Iterator[None]:
    """Policies of event loops are deprecated from Python 3.14 on."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


@pytest.fixture(scope="module", autouse=True)
def event_loop_of_servers() -> Iterator[None]:
    """Let `asyncio.run` take uvloop's loop, where there is one."""
    try:
        import uvloop
    except ImportError:
        yield
        return
    with deprecations_ignored():
        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    yield
    with deprecations_ignored():
        asyncio.set_event_loop_policy(None)
