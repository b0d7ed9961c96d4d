"""Two placement drivers on one PostgreSQL database: the leader is killed, or stopped, at work.

Producers stage and commit batches, and others create streams, while the leader changes.
"""

import asyncio
import os
import signal
import time
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from sbp_core.client import AsyncClient, Client, RetryPolicy, StreamSpec
from sbp_core.errors import NotLeaderError, SbpError
from sbp_core.wire.headers import CreateStreamsRequest, Stream
from sbp_core.wire.opcodes import Opcode
from tests.support.appends import Committers, wait_until_published
from tests.support.faults.checker import assert_sound, chosen
from tests.support.faults.workload import list_streams, new_streams
from tests.support.machines import PlacementDriverProcess, RangeServerProcess

HEARTBEAT_INTERVAL_MS = 100
DEADLINE_SECONDS = 90
TIMEOUT_MS = 1_000


class Cluster:
    """Two placement drivers, and which of them leads."""

    def __init__(self, drivers, client):
        self.drivers = drivers
        self.client = client
        self.endpoints = ",".join(each.endpoint for each in drivers)

    async def leader(self):
        """Return the placement driver that leads, as soon as one does."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            while True:
                for node in await self.nodes():
                    for driver in self.drivers:
                        if node.is_leader and node.endpoint == driver.endpoint:
                            return driver
                await asyncio.sleep(0.02)

    async def next_leader(self, before):
        """Return the placement driver that leads after another one."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            while (found := await self.leader()) is before:  # noqa: ASYNC110 - a server is asked
                await asyncio.sleep(0.02)
        return found

    async def nodes(self):
        try:
            return await self.client.placement_drivers()
        except SbpError:  # one of them is down, or silent
            return []


@asynccontextmanager
async def cluster(folder, url):
    async with AsyncExitStack() as stack:
        drivers = [
            await stack.enter_async_context(
                PlacementDriverProcess(folder / name, store=url, name=name)
            )
            for name in ("a", "b")
        ]
        endpoints = ",".join(each.endpoint for each in drivers)
        await stack.enter_async_context(
            RangeServerProcess(
                folder / "range-server", endpoints, heartbeat_interval_ms=HEARTBEAT_INTERVAL_MS
            )
        )
        client = await stack.enter_async_context(
            AsyncClient(endpoints, timeout_ms=TIMEOUT_MS, retry=RetryPolicy(budget_ms=0))
        )
        yield Cluster(drivers, client)


class Creators:
    """Creates streams, one after the other; keeps the ids of those that were acknowledged."""

    def __init__(self, endpoints):
        self.ids = {}
        self._endpoints = endpoints
        self._count = 0

    async def create(self):
        async with AsyncClient(
            self._endpoints, timeout_ms=TIMEOUT_MS, retry=RetryPolicy(budget_ms=0)
        ) as client:
            while True:
                name = f"created-{self._count}"
                self._count += 1
                try:
                    (info,) = await client.create_streams([StreamSpec(name)])
                except SbpError:  # its outcome may be unknown: the next one has another name
                    await asyncio.sleep(0.01)
                else:
                    self.ids[name] = info.stream_id

    async def wait_for_progress(self):
        before = len(self.ids)
        async with asyncio.timeout(DEADLINE_SECONDS):
            while len(self.ids) == before:  # noqa: ASYNC110 - a task counts, and sets no event
                await asyncio.sleep(0.005)


@asynccontextmanager
async def under_load(running, history, rng):
    """Let producers and creators work; in the end, judge what they did."""
    stream_ids = await asyncio.to_thread(new_streams, running.endpoints)
    creators = Creators(running.endpoints)
    committers = Committers(running.endpoints, history, rng, stream_ids)
    await asyncio.to_thread(committers.__enter__)
    creating = asyncio.create_task(creators.create())
    try:

        async def wait_for_progress():
            await creators.wait_for_progress()
            await asyncio.to_thread(committers.wait_for_progress)

        yield wait_for_progress
        await wait_for_progress()
    finally:
        creating.cancel()
        await asyncio.to_thread(committers.__exit__)
    await asyncio.to_thread(judge, running.endpoints, history, stream_ids, creators.ids)


def judge(endpoints, history, stream_ids, created):
    """Every create that was acknowledged is there, once; the batches are whole."""
    with Client(endpoints) as client:
        found = [each for each in client.list_streams() if each.name in created]
    assert {each.name: each.stream_id for each in found} == created
    assert len({each.stream_id for each in found}) == len(found) == len(created) > 0
    wait_until_published(endpoints)
    list_streams(endpoints, history, stream_ids)
    operations = history.operations()
    assert_sound(operations)
    assert len(chosen(operations, "commit", "ok")) > 0


@pytest.mark.timeout(300)
def test_a_leader_is_killed(tmp_path, postgresql, history, rng, rounds):
    """The other one leads, and publishes what was committed; the killed one follows."""

    async def main():
        async with (
            cluster(tmp_path, postgresql.new_database()) as running,
            under_load(running, history, rng) as wait_for_progress,
        ):
            for _ in range(rounds(2)):
                await wait_for_progress()
                leader = await running.leader()
                history.fault("kill the leader")
                killed_at = time.monotonic()
                await leader.kill()
                await running.next_leader(leader)
                led_after = time.monotonic() - killed_at
                await wait_for_progress()
                print(f"led after {led_after:.2f} s, all went on after", end=" ")
                print(f"{time.monotonic() - killed_at:.2f} s")
                await leader.start()

    asyncio.run(main())


@pytest.mark.timeout(300)
def test_a_leader_is_stopped_until_another_one_leads(tmp_path, postgresql, history, rng, rounds):
    """Once it goes on, it decides nothing: a request that waited there is refused."""

    async def main():
        async with (
            cluster(tmp_path, postgresql.new_database()) as running,
            under_load(running, history, rng) as wait_for_progress,
            AsyncClient(running.endpoints, timeout_ms=1000 * DEADLINE_SECONDS) as patient,
        ):
            for number in range(rounds(2)):
                await wait_for_progress()
                old = await running.leader()
                await patient.placement_drivers()
                await patient.call(old.endpoint, Opcode.PING)  # it is connected
                history.fault("stop the leader")
                os.kill(old.pid, signal.SIGSTOP)
                request = CreateStreamsRequest(streams=(Stream(name=f"late-{number}"),))
                late = asyncio.create_task(
                    patient.call(old.endpoint, Opcode.CREATE_STREAMS, request)
                )
                new = await running.next_leader(old)
                await wait_for_progress()
                assert not late.done()
                os.kill(old.pid, signal.SIGCONT)
                with pytest.raises(NotLeaderError):
                    await late
                await wait_for_progress()
                assert await running.leader() is new
            names = {each.name for each in await patient.list_streams()}
            assert not names & {f"late-{number}" for number in range(rounds(2))}

    asyncio.run(main())
