"""Ranges that end with entries on the disk of their primary alone: when these are acknowledged."""

import asyncio
import logging
from functools import partial

import pytest

from sbp_core import limits
from sbp_core.client import StreamSpec
from sbp_core.errors import Outcome, RangeNotFoundError, RequestTimeoutError, WritersNotThereError
from sbp_core.log.states.range_states import RangeState
from sbp_core.pd.streams import sealing
from sbp_core.peers import replica_calls as replicas
from sbp_core.rangeserver.membership import Membership
from sbp_core.rangeserver.replicating import primary as leading
from sbp_core.rangeserver.replicating import settling
from sbp_core.rangeserver.replicating.copying import ReadEntriesHandler
from sbp_core.rangeserver.replicating.secondary import ReplicateHandler
from tests.support.appends import end, send, stage
from tests.support.clock import until
from tests.support.cluster import (
    NO_FALSE_ALARM,
    append,
    copies_of,
    driver_at,
    hosted_at,
    primary_of,
    read_all,
    run,
    seal,
)
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


@pytest.mark.parametrize("is_stopping", [False, True])
def test_what_one_disk_has_is_acknowledged_when_another_has_settled_it(
    tmp_path, monkeypatch, is_stopping
):
    """It may be read before: where the range ends is decided."""

    async def body(cluster, client):
        (stream,) = await client.create_streams([StreamSpec("copied", replica_count=3)])
        lone = LoneEntry(cluster, client, stream.stream_id)
        appended = await lone.make(monkeypatch, lone.append)
        await lone.end()
        assert await read_all(client, stream.stream_id) == [(0, b"early"), (1, b"late")]
        assert not appended.done()
        stopping = asyncio.create_task(lone.primary.stop()) if is_stopping else None
        lone.may_settle.set()
        assert await appended == 1
        copies = hosted_at(cluster, *lone.key).values()
        assert {each.end_offset for each in copies} == {2}
        assert lone.primary._host.primary.unsettled_count == 0
        if stopping is not None:
            await stopping
            cluster._range_servers.remove(lone.primary)

    run(tmp_path, body, **NO_FALSE_ALARM)


def test_what_one_disk_has_is_acknowledged_when_a_server_that_is_new_to_the_range_has_it(tmp_path):
    """The range has two replicas, as the third server is drained. Then one of the two is lost."""

    async def body(cluster, client):
        spare = cluster._range_servers[-1]
        server_ids = {each.endpoint: each.server_id for each in await client.range_servers()}
        await client.drain_servers([server_ids[spare.endpoint]])
        (stream,) = await client.create_streams([StreamSpec("copied", replica_count=3)])
        key = (stream.stream_id, 0)
        assert await append(client, stream.stream_id, b"early") == 0
        (placed,) = (await client.list_ranges([stream.stream_id]))[stream.stream_id]
        _, secondary = placed.servers
        (lost,) = (each for each in cluster._range_servers if each.endpoint == secondary)
        await lost.stop()
        cluster._range_servers.remove(lost)
        await client.drain_servers([server_ids[spare.endpoint]], is_cancelled=True)
        assert await append(client, stream.stream_id, b"late") == 1
        copies = hosted_at(cluster, *key).values()
        assert {each.end_offset for each in copies} == {2}

    run(tmp_path, body, heartbeat_interval_ms=200, heartbeat_timeout_ms=2_000)


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


def hold_entries(monkeypatch, of=None):
    """Keep entries from secondaries, or from one; return the event after which they arrive."""
    may_arrive, serve = asyncio.Event(), ReplicateHandler.__call__

    async def serve_later(handler, call):
        if call.payload and (of is None or handler._host is of._host):
            await may_arrive.wait()
        return await serve(handler, call)

    monkeypatch.setattr(ReplicateHandler, "__call__", serve_later)
    return may_arrive


def test_a_copy_is_completed_while_the_primary_is_silent(tmp_path, monkeypatch):
    """Another server has what it lacks: it need not wait for an answer that may never come."""
    for name in ("COPY_BEHIND_MS", "COPY_STUCK_MS", "REPLICATE_TIMEOUT_MS"):
        monkeypatch.setattr(limits, name, 600_000)
    monkeypatch.setattr(replicas, "READ_TIMEOUT_MS", 600_000)

    async def body(cluster, client):
        (stream,) = await client.create_streams([StreamSpec("copied", replica_count=3)])
        copies = await copies_of(cluster, stream.stream_id, 0)
        primary = primary_of(cluster, (stream.stream_id, 0))
        held, *_ = (each for each in cluster._range_servers if each is not primary)
        hold_entries(monkeypatch, of=held)
        serve = ReadEntriesHandler.__call__

        async def serve_unless_silent(handler, call):
            if handler._host is primary._host:
                await asyncio.Event().wait()
            return await serve(handler, call)

        monkeypatch.setattr(ReadEntriesHandler, "__call__", serve_unless_silent)
        assert await append(client, stream.stream_id, b"only on two") == 0
        await client.seal_streams([stream.stream_id])
        copy = copies[held.endpoint]
        await asyncio.to_thread(until, lambda: copy.end_offset == 1)

    run(tmp_path, body, **NO_FALSE_ALARM)


def test_a_primary_that_is_asked_to_seal_commits_first_what_it_accepted(tmp_path, monkeypatch):
    """So the append is acknowledged as usual, and does not wait until the range is settled."""
    for name in ("COPY_BEHIND_MS", "COPY_STUCK_MS", "REPLICATE_TIMEOUT_MS"):
        monkeypatch.setattr(limits, name, 600_000)
    for module, name in ((leading, "_COMPLETE_STEPS"), (sealing, "_PRIMARY_FIRST_SECONDS")):
        monkeypatch.setattr(module, name, 600_000)

    async def body(cluster, client):
        (stream,) = await client.create_streams([StreamSpec("copied", replica_count=3)])
        assert await append(client, stream.stream_id, b"early") == 0
        copies = await copies_of(cluster, stream.stream_id, 0)
        primary = primary_of(cluster, (stream.stream_id, 0))
        here = copies.pop(primary.endpoint)
        may_arrive = hold_entries(monkeypatch)
        appended = asyncio.create_task(append(client, stream.stream_id, b"late"))
        await asyncio.to_thread(until, lambda: here.assigned_offset == 2)
        sealed = asyncio.create_task(client.seal_streams([stream.stream_id]))
        await asyncio.to_thread(until, lambda: here.state is RangeState.FENCED)
        assert {each.state for each in copies.values()} == {RangeState.OPEN}
        may_arrive.set()
        assert (await sealed)[stream.stream_id].start_offset == 2
        assert primary._host.primary.unsettled_count == 0
        assert await appended == 1

    run(tmp_path, body, **NO_FALSE_ALARM)


def test_a_server_that_stops_completes_the_others_before_it_asks_for_the_end(tmp_path, monkeypatch):
    """Nothing else can end the range, and nothing but the entries ends the wait: no timeout."""
    never_ms = 600_000
    for name in ("COPY_BEHIND_MS", "COPY_STUCK_MS", "REPLICATE_TIMEOUT_MS"):
        monkeypatch.setattr(limits, name, never_ms)
    monkeypatch.setattr(settling, "_HAND_OVER_SECONDS", 30)
    monkeypatch.setattr(leading, "_COMPLETE_STEPS", never_ms)

    async def body(cluster, client):
        spec = StreamSpec("copied", replica_count=3, ack_count=1)
        (stream,) = await client.create_streams([spec])
        key = (stream.stream_id, 0)
        assert await append(client, stream.stream_id, b"early") == 0
        copies = (await copies_of(cluster, *key)).values()
        await asyncio.to_thread(until, lambda: {each.durable.seq for each in copies} == {1})
        may_arrive = hold_entries(monkeypatch)
        ask_to_seal = Membership.ask_to_seal
        assert await append(client, stream.stream_id, b"late") == 1
        primary = primary_of(cluster, key)
        ranges, here = primary._host.primary, primary._host.table.maybe_range(key)
        looks, asked = [], []
        is_everywhere = ranges.is_everywhere

        def look(keys):
            looks.append(is_everywhere(keys))
            may_arrive.set()
            return looks[-1]

        async def note(membership, keys, cause):
            asked.append((here.state, {each.durable.seq for each in copies}))
            may_arrive.set()
            return await ask_to_seal(membership, keys, cause)

        monkeypatch.setattr(ranges, "is_everywhere", look)
        monkeypatch.setattr(Membership, "ask_to_seal", note)
        await primary.stop()
        cluster._range_servers.remove(primary)
        assert asked[0] == (RangeState.FENCED, {2})
        assert looks[0] is False
        assert looks[-1] is True
        assert await read_all(client, stream.stream_id) == [(0, b"early"), (1, b"late")]

    run(tmp_path, body, **NO_FALSE_ALARM)
