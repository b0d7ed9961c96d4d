"""More appends than a server has memory for: each is answered once, and none is done twice.

The disk is blocked until the test releases it, so that no append completes before.
"""

import asyncio
from collections import Counter

import pytest

from sbp_core import limits
from sbp_core.client import AppendItem, AsyncClient, Client, RetryPolicy, StreamSpec
from sbp_core.errors import RequestTimeoutError, ShuttingDownError, StatusCode
from sbp_core.server.budget import Budget
from sbp_core.session.negotiation import RequestedFeatures
from sbp_core.wire.headers import AppendInfo, AppendRequest, FetchInfo, FetchRequest
from sbp_core.wire.opcodes import Opcode
from tests.support.cluster import core_cluster, rows_batch
from tests.support.disk import HeldDisk
from tests.support.wire import RawClient

CONNECTIONS = 8
APPENDS = 50
"""Concurrent appends of each connection."""
ROOM = 20
"""Appends for which there is memory."""
COST_BYTES = 16 * limits.KIB
"""The most that one append counts for."""


class WatchedBudget(Budget):
    """Knows how much was taken at most."""

    peak_bytes = 0

    def __setattr__(self, name, value):
        super().__setattr__(name, value)
        if name == "taken_bytes":
            self.peak_bytes = max(self.peak_bytes, value)


class Bench:
    """A cluster whose disk is blocked, and the appends that were sent to it."""

    def __init__(self, cluster, disk, stream_id, budget):
        self.cluster = cluster
        self.disk = disk
        self.stream_id = stream_id
        self.budget = budget
        self.clients = []
        self.calls = {}
        """By value: its call."""

    def offer(self):
        """Send many appends on each connection, all of them at once."""
        for number, client in enumerate(self.clients):
            for index in range(APPENDS):
                value = b"%d of connection %d" % (index, number)
                self.calls[value] = asyncio.create_task(self.append(client, value))

    async def append(self, client, value, timeout_ms=0):
        batch = rows_batch([value])
        info = AppendInfo(stream_id=self.stream_id, batch_length=len(batch))
        request = AppendRequest(timeout_ms=timeout_ms, append_requests=(info,))
        (answer,) = await client.ask(Opcode.APPEND, request, [batch])
        (result,) = answer.append_responses
        return answer.throttle_time_ms, result

    @property
    def answered_count(self):
        return sum(call.done() for call in self.calls.values())

    async def others_are_served(self):
        """Other requests are served as usual, also on connections that append."""
        fetch = FetchRequest(fetch_requests=(FetchInfo(stream_id=self.stream_id, fetch_offset=0),))
        for client in self.clients:
            await client.call(Opcode.PING)
            (answer,) = await client.ask(Opcode.FETCH, fetch)
            assert answer.fetch_responses[0].status.code == 0

    async def stored(self):
        """By value: its offset."""
        records = await self.cluster.read(self.stream_id)
        assert [offset for offset, _ in records] == list(range(len(records)))
        values = Counter(value for _, value in records)
        assert set(values.values()) <= {1}, "something was done twice"
        return {value: offset for offset, value in records}


def run(body, folder, *, memory_bytes):
    async def main():
        disk = HeldDisk()
        disk.gate.set()
        async with core_cluster(folder, disk=disk) as cluster:
            (stream,) = await cluster.client.create_streams([StreamSpec("s")])
            await cluster.client.append([AppendItem(stream.stream_id, rows_batch([b"first"]))])
            budget = cluster.server._listener._budget = WatchedBudget(memory_bytes)
            bench = Bench(cluster, disk, stream.stream_id, budget)
            bench.clients = [RawClient.at(cluster.server.endpoint) for _ in range(CONNECTIONS)]
            for client in bench.clients:
                await client.__aenter__()
            disk.gate.clear()
            try:
                await body(bench)
            finally:
                disk.gate.set()
                for client in bench.clients:
                    await client.__aexit__(None, None, None)

    asyncio.run(asyncio.wait_for(main(), 60))


def test_appends_to_a_full_disk_are_refused_and_the_rest_is_done_once(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "PENDING_APPEND_BYTES_MAX", ROOM * COST_BYTES)

    async def body(bench):
        bench.offer()
        while bench.answered_count + 2 * ROOM < len(bench.calls):
            await bench.others_are_served()
        bench.disk.gate.set()
        answers = {value: await call for value, call in bench.calls.items()}
        accepted = {v: result for v, (_, result) in answers.items() if result.status.code == 0}
        refused = {v: answers[v] for v in answers.keys() - accepted.keys()}
        assert ROOM <= len(accepted) <= 2 * ROOM
        for throttle_time_ms, result in refused.values():
            assert result.status.code == StatusCode.TOO_MANY_REQUESTS
            assert (throttle_time_ms > 0, result.base_offset) == (True, -1)
        stored = await bench.stored()
        assert stored == {b"first": 0} | {v: each.base_offset for v, each in accepted.items()}
        assert bench.budget.peak_bytes <= len(bench.calls) * COST_BYTES
        _, later = await bench.append(bench.clients[0], b"later")
        assert later.base_offset == len(stored)
        assert bench.budget.taken_bytes == 0

    run(body, tmp_path, memory_bytes=CONNECTIONS * APPENDS * COST_BYTES)


def test_requests_whose_callers_left_are_dropped_before_they_start(tmp_path):
    """The memory that a request waits for is free after the deadline of the request."""

    async def body(bench):
        first, second = bench.clients[:2]
        assert (await second.greet(RequestedFeatures())).has_deadline
        done = asyncio.create_task(bench.append(first, b"in time"))
        while not bench.budget.taken_bytes:  # noqa: ASYNC110
            await asyncio.sleep(0)
        late = asyncio.create_task(bench.append(second, b"late", timeout_ms=1))
        while not bench.budget.is_contended:  # noqa: ASYNC110
            await asyncio.sleep(0)
        over_at = asyncio.get_running_loop().time() + 0.001
        while asyncio.get_running_loop().time() < over_at:  # noqa: ASYNC110
            await asyncio.sleep(0)
        bench.disk.gate.set()
        await done
        with pytest.raises(RequestTimeoutError):
            await late
        assert list(await bench.stored()) == [b"first", b"in time"]

    run(body, tmp_path, memory_bytes=1)


def test_a_server_that_stops_finishes_what_waits_for_room(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "GOAWAY_GRACE_MS", 0)

    async def body(bench):
        bench.offer()
        while bench.budget.waiting_count < CONNECTIONS:  # noqa: ASYNC110
            await asyncio.sleep(0)
        stopping = asyncio.create_task(bench.cluster.server._listener.drain())
        await asyncio.sleep(0)
        bench.disk.gate.set()
        await stopping
        done, refused = [], []
        for call in bench.calls.values():
            try:
                done.append((await call)[1].base_offset)
            except ShuttingDownError:
                refused.append(call)
        assert sorted(done) == list(range(1, len(done) + 1))
        assert len(done) >= ROOM
        assert len(done) + len(refused) == len(bench.calls)

    run(body, tmp_path, memory_bytes=ROOM * COST_BYTES)


def test_clients_wait_and_try_again_until_all_is_done_once(tmp_path, monkeypatch):
    """Appends that must not be repeated are, when they were refused; and only then."""
    monkeypatch.setattr(limits, "PENDING_APPEND_BYTES_MAX", 3 * COST_BYTES)
    monkeypatch.setattr(limits, "THROTTLE_MS", 5)

    async def body(bench):
        endpoint = bench.cluster.pd.endpoint
        retry = RetryPolicy(backoff_ms=1, backoff_ms_max=20)
        metrics = bench.cluster.server._metrics
        with Client(endpoint, retry=retry) as blocking:
            async with AsyncClient(endpoint, retry=retry) as client:
                appends = []
                for number in range(20):
                    for name, append in (
                        (b"asyncio", client.append),
                        (b"blocking", lambda items: asyncio.to_thread(blocking.append, items)),
                    ):
                        batch = rows_batch([b"%s %d" % (name, number)])
                        appends.append(append([AppendItem(bench.stream_id, batch)]))
                tasks = [asyncio.create_task(each) for each in appends]
                while metrics.appends.failures < 10:  # noqa: ASYNC110
                    await asyncio.sleep(0)
                bench.disk.gate.set()
                outcomes = [(await task)[0] for task in tasks]
        assert {outcome.base_offset for outcome in outcomes} == set(range(1, 41))
        assert len(await bench.stored()) == 41

    run(body, tmp_path, memory_bytes=1 << 20)
