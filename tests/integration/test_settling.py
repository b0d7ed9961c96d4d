"""Ranges that end with entries on the disk of their primary alone: when these are acknowledged."""

import asyncio
import logging
from functools import partial

import pytest

from sbp_core import limits
from sbp_core.client import StreamSpec
from sbp_core.errors import Outcome, RangeNotFoundError, RequestTimeoutError, WritersNotThereError
from tests.support.appends import end, send, stage
from tests.support.clock import until
from tests.support.cluster import NO_FALSE_ALARM, append, copies_of, driver_at, run, seal
from tests.support.wire import RawClient


class LoneEntry:
    """A range that ended with an entry that is on the disk of its primary alone.

    One secondary is stopped. The other one has not got the entry, and settles once it `may_settle`.
    """

    def __init__(self, cluster, client, stream_id):
        self.cluster, self.client, self.stream_id = cluster, client, stream_id
        self.key = (stream_id, 0)
        self.may_settle = asyncio.Event()

    async def make(self, monkeypatch, late):
        """Return the task of `late`, the append of the entry, which waits."""
        for name in ("COPY_BEHIND_MS", "COPY_STUCK_MS"):  # the primary does not end the range
            monkeypatch.setattr(limits, name, 600_000)
        assert await append(self.client, self.stream_id, b"early") == 0
        copies = await copies_of(self.cluster, *self.key)
        await asyncio.to_thread(until, lambda: {e.next_offset for e in copies.values()} == {1})
        await asyncio.to_thread(until, lambda: len({e.durable.seq for e in copies.values()}) == 1)
        (placed,) = (await self.client.list_ranges([self.stream_id]))[self.stream_id]
        first, secondary, third = placed.servers
        servers = {each.endpoint: each for each in self.cluster._range_servers}
        self.primary = servers[first]
        await servers[third].stop()
        self.cluster._range_servers.remove(servers[third])
        copier = servers[secondary]._settler._copier
        complete = copier.complete

        async def complete_later(*args):
            await self.may_settle.wait()
            return await complete(*args)

        monkeypatch.setattr(copier, "complete", complete_later)
        for link in self.primary._host.primary._links.values():  # nothing more is sent
            link._frames_in_flight = limits.REPLICATE_FRAMES_IN_FLIGHT
        before = copies[secondary].durable.seq
        appended = asyncio.create_task(late(first))
        log = self.primary._log
        await asyncio.to_thread(until, lambda: log.maybe_range(self.key).prefix.seq > before)
        assert copies[secondary].durable.seq == before
        return appended

    async def append(self, _endpoint):
        return await append(self.client, self.stream_id, b"late")

    async def end(self):
        """Let the range end, and be settled at its primary."""
        here = self.primary._host.table.maybe_range(self.key)
        await seal(self.cluster, self.stream_id, 0)
        await asyncio.to_thread(until, lambda: here.end_offset is not None)


async def numbered(lone, endpoint):
    async with RawClient.at(endpoint) as server:
        return (await send(server, lone.stream_id, "late"))[0]


async def staged(lone, endpoint):
    async with RawClient.at(endpoint) as server:
        return (await stage(server, lone.stream_id, "other", "late"))[0]


async def published(lone, endpoint):
    (server,) = (each for each in lone.cluster._range_servers if each.endpoint == endpoint)
    async with driver_at(endpoint, server._settings.data_dir) as driver:
        return await end(driver, lone.stream_id, "t")


@pytest.mark.parametrize(
    ("late", "done"),
    [(numbered, 1), (staged, -1), (published, (1, 1))],
    ids=["APPEND", "staged", "END_TXN"],
)
def test_what_stays_on_one_disk_is_neither_acknowledged_nor_refused(
    tmp_path, monkeypatch, late, done
):
    """Nor is a repeat, before another server has settled the range."""

    async def body(cluster, client):
        (stream,) = await client.create_streams([StreamSpec("copied", replica_count=3)])
        lone = LoneEntry(cluster, client, stream.stream_id)
        (placed,) = (await client.list_ranges([stream.stream_id])).values()
        async with RawClient.at(placed[0].servers[0]) as first:
            assert await stage(first, stream.stream_id, "t", "x") == [-1]
        monkeypatch.setattr(limits, "REQUEST_TIMEOUT_MS", 500)
        appended = await lone.make(monkeypatch, partial(late, lone))
        await lone.end()
        failed = await appended
        assert isinstance(failed, RequestTimeoutError)
        assert failed.outcome is Outcome.UNKNOWN
        assert "too few other servers" in str(failed)
        assert lone.primary._host.primary.unsettled_count == 0
        assert lone.primary._committer._memory_bytes == 0
        for _ in range(3):
            repeated = await late(lone, lone.primary.endpoint)
            assert isinstance(repeated, WritersNotThereError | RangeNotFoundError)
        lone.may_settle.set()
        while (repeated := await late(lone, lone.primary.endpoint)) != done:
            assert isinstance(repeated, WritersNotThereError | RangeNotFoundError)

    run(tmp_path, body, **NO_FALSE_ALARM)


def test_a_repeat_in_the_next_range_waits_for_the_range_before(tmp_path, monkeypatch, caplog):
    """The writers that its server was sent have a batch that is on one disk, elsewhere."""
    caplog.set_level(logging.INFO)

    async def body(cluster, client):
        (stream,) = await client.create_streams([StreamSpec("copied", replica_count=3)])
        lone = LoneEntry(cluster, client, stream.stream_id)
        appended = await lone.make(monkeypatch, partial(numbered, lone))
        servers = {each.endpoint: each.server_id for each in await client.range_servers()}
        await client.drain_servers([servers[lone.primary.endpoint]])
        (placed,) = (await client.list_ranges([stream.stream_id])).values()
        while len(placed) < 2:
            await asyncio.sleep(0.01)
            (placed,) = (await client.list_ranges([stream.stream_id])).values()
        successor = placed[1].servers[0]
        assert successor != lone.primary.endpoint
        while "repeats wait stream=" not in caplog.text:
            assert isinstance(await numbered(lone, successor), WritersNotThereError)
        assert not appended.done()
        lone.may_settle.set()
        assert await appended == 1
        while (repeated := await numbered(lone, successor)) != 1:
            assert isinstance(repeated, WritersNotThereError)

    run(tmp_path, body, range_servers=4, **NO_FALSE_ALARM)
