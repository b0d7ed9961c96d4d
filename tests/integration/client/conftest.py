"""Clients of scripted servers."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module", autouse=True)
def event_loop_of_servers() -> None:
    """Leave asyncio's own event loop: it is what most programs run their clients on."""
