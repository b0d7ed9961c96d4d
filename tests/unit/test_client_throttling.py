"""Clients wait and retry when a server throttles them; the tests control their clock."""

from __future__ import annotations

import asyncio
import queue
import selectors
from itertools import pairwise
from random import Random

import pytest

from sbp_core.client import AppendItem, RangeInfo, RetryPolicy
from sbp_core.client.io.aio_transport import AsyncRunner
from sbp_core.client.io.answer_limits import Ticket
from sbp_core.client.io.blocking_transport import BlockingRunner
from sbp_core.client.programs.appending import AppendKind, append
from sbp_core.client.programs.calls import Context
from sbp_core.client.programs.router import PlacementDrivers, Router
from sbp_core.errors import Outcome, StatusCode, ThrottledError
from sbp_core.wire.frame import Frame
from sbp_core.wire.headers import AppendResponse, AppendResult, Status, encode_header
from sbp_core.wire.opcodes import Flag, Opcode

THROTTLE_MS = 300
CLIENTS = 200


class Time:
    """Passes when a call waits, and only then."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class JumpingSelector(selectors.DefaultSelector):
    """Lets a loop's time pass instead of waiting."""

    def __init__(self, time):
        super().__init__()
        self._time = time

    def select(self, timeout=None):
        self._time.now += timeout or 0
        return super().select(0)


class JumpingQueue:
    """Lets a thread's time pass instead of waiting for what is not there."""

    def __init__(self, time):
        self._time = time
        self._items = []

    def put(self, item):
        self._items.append(item)

    def empty(self):
        return not self._items

    def get(self, timeout=None):
        if self._items:
            return self._items.pop(0)
        self._time.now += timeout
        raise queue.Empty


class Connection:
    """Takes everything at once."""

    may_write = True

    async def drain(self):
        pass


class Server:
    """Throttles `refused_count` appends, accepts the next; records the arrival times, in ms."""

    def __init__(self, time, refused_count):
        self.came_at = []
        self._time = time
        self._refused_count = refused_count

    def start(self, call, sink):
        self.came_at.append(self._time.now * 1000)
        is_refused = len(self.came_at) <= self._refused_count
        code = StatusCode.TOO_MANY_REQUESTS if is_refused else StatusCode.NONE
        result = AppendResult(stream_id=1, base_offset=-1 if is_refused else 7, status=Status(code))
        header = AppendResponse(THROTTLE_MS if is_refused else 0, (result,), Status())
        sink(Frame(Opcode.APPEND, Flag.RESPONSE | Flag.END, 1, encode_header(header)))
        return Connection(), Ticket(sink)


def run_asyncio(program, server, time):
    loop = asyncio.SelectorEventLoop(JumpingSelector(time))
    loop.time = time
    try:
        return loop.run_until_complete(AsyncRunner(server, time).run(program))
    finally:
        loop.close()


def run_blocking(program, server, time):
    runner = BlockingRunner(server, clock=time)
    runner._arrivals = JumpingQueue(time)
    return runner.run(program)


@pytest.fixture(params=[run_asyncio, run_blocking], ids=["asyncio", "blocking"])
def attempt(request):
    """Append once with a client of either kind; return when it tried (ms), and its error."""

    def run(refused_count, seed=0, policy=None):
        time = Time()
        server = Server(time, refused_count)
        router = Router()
        router.learn(1, [RangeInfo(1, 0, 0, None, 0, ("server:1",))])
        context = Context(
            PlacementDrivers("pd:1"), router, policy or RetryPolicy(), Random(seed), 30_000
        )
        program = append(context, [AppendItem(1, b"x")], AppendKind())
        try:
            (outcome,) = request.param(program, server, time)
        except ThrottledError as error:
            return server.came_at, error
        assert outcome.base_offset == 7
        return server.came_at, None

    return run


def waits(times):
    return [later - earlier for earlier, later in pairwise(times)]


def test_a_refused_append_waits_as_long_as_the_server_says_and_longer_each_time(attempt):
    tries = [attempt(6, seed)[0] for seed in range(CLIENTS)]
    by_try = list(zip(*map(waits, tries), strict=True))
    assert len(by_try) == 6
    for ms in by_try:
        assert min(ms) >= THROTTLE_MS
    assert max(by_try[0]) <= 2 * THROTTLE_MS + 1
    assert max(by_try[-1]) > 4 * THROTTLE_MS


def test_clients_that_were_refused_together_do_not_come_back_together(attempt):
    seconds = [attempt(1, seed)[0][1] for seed in range(CLIENTS)]
    tenths = [int((ms - THROTTLE_MS) * 10 / THROTTLE_MS) for ms in seconds]
    assert set(tenths) >= set(range(10))
    assert max(map(tenths.count, range(10))) < CLIENTS / 5


def test_the_time_that_the_caller_gives_is_kept(attempt):
    policy = RetryPolicy(budget_ms=2_000)
    times, error = attempt(10**6, policy=policy)
    assert times[-1] < policy.budget_ms
    assert 2 <= len(times) <= 7
    assert error.outcome is Outcome.NOT_APPLIED
    assert "given up after" in str(error)
