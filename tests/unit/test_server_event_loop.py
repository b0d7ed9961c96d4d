"""The event loop of servers: uvloop's where there is one, else asyncio's."""

import asyncio
import sys

import pytest

from sbp_core.server import runtime


async def loop_module():
    """Where the class of the running loop comes from, after it has done something."""
    await asyncio.sleep(0)
    return type(asyncio.get_running_loop()).__module__


def test_servers_run_on_uvloop():
    uvloop = pytest.importorskip("uvloop")
    assert runtime.run(loop_module()) == uvloop.Loop.__module__


def test_servers_run_without_uvloop(monkeypatch):
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert runtime.run(loop_module()).startswith("asyncio.")
