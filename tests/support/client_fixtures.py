"""Fixtures of the client tests: scripted peers, and a client of either kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from client_drivers import AsyncDriver, BlockingDriver, Driver
from scripted_peer import (
    ScriptedPeer,
)

from sbp_core.client import (
    RetryPolicy,
)

QUICK = RetryPolicy(budget_ms=5_000, backoff_ms=1, backoff_ms_max=5)


@pytest.fixture
def peers() -> Iterator[Callable[[], ScriptedPeer]]:
    made: list[ScriptedPeer] = []

    def make() -> ScriptedPeer:
        made.append(ScriptedPeer())
        return made[-1]

    yield make
    for peer in made:
        peer.close()
        assert not peer.faults


@pytest.fixture
def peer(peers: Callable[[], ScriptedPeer]) -> ScriptedPeer:
    return peers()


@pytest.fixture(params=[BlockingDriver, AsyncDriver], ids=["blocking", "asyncio"])
def make(request: pytest.FixtureRequest) -> Iterator[Callable[..., Driver]]:
    made: list[Driver] = []

    def build(endpoint: str, **options: Any) -> Driver:
        made.append(request.param(endpoint, **{"retry": QUICK, **options}))
        return made[-1]

    yield build
    for driver in made:
        driver.close()
