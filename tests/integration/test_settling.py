"""Ranges that end with entries on the disk of their primary alone: when these are acknowledged."""

import asyncio

import pytest
from replicated_cluster import (
    NO_FALSE_ALARM,
    append,
    copies_of,
    hosted_at,
    primary_of,
    read_all,
    run,
    seal,
)
from waiting import until

from sbp_core import limits
from sbp_core.client import StreamSpec
from sbp_core.errors import Outcome, RequestTimeoutError
from sbp_core.log.states.range_states import RangeState
from sbp_core.rangeserver.membership import Membership
from sbp_core.rangeserver.replicating import settling
from sbp_core.rangeserver.replicating.secondary import ReplicateHandler


class LoneEntry:
    """A range that ended with an entry that is on the disk of its primary alone.

    One secondary is stopped. The other one has not got the entry, and settles once it `may_settle`.
    """

    def __init__(self, cluster, client, stream_id):
        self.cluster, self.client, self.stream_id = cluster, client, stream_id
        self.key = (stream_id, 0)
        self.may_settle = asyncio.Event()

    async def make(self, monkeypatch):
        """Return the append of the entry, which waits."""
        assert await append(self.client, self.stream_id, b"early") == 0
        self.primary = primary_of(self.cluster, self.key)
        copies = await copies_of(self.cluster, *self.key)
        await asyncio.to_thread(until, lambda: {e.next_offset for e in copies.values()} == {1})
        (placed,) = (await self.client.list_ranges([self.stream_id]))[self.stream_id]
        _, secondary, third = placed.servers
        servers = {each.endpoint: each for each in self.cluster._range_servers}
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
        appended = asyncio.create_task(append(self.client, self.stream_id, b"late"))
        here = copies[self.primary.endpoint]
        await asyncio.to_thread(until, lambda: here.durable.seq == 2)
        assert copies[secondary].durable.seq == 1
        return appended

    async def end(self):
        """Let the range end, and be settled at its primary."""
        here = self.primary._host.table.maybe_range(self.key)
        await seal(self.cluster, self.stream_id, 0)
        await asyncio.to_thread(until, lambda: here.end_offset == 2)


@pytest.mark.parametrize("is_stopping", [False, True])
def test_what_one_disk_has_is_acknowledged_when_another_has_settled_it(
    tmp_path, monkeypatch, is_stopping
):
    """It may be read before: where the range ends is decided."""

    async def body(cluster, client):
        (stream,) = await client.create_streams([StreamSpec("copied", replica_count=3)])
        lone = LoneEntry(cluster, client, stream.stream_id)
        appended = await lone.make(monkeypatch)
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

    run(tmp_path, body, heartbeat_interval_ms=1_000, heartbeat_timeout_ms=4_000)


def test_what_stays_on_one_disk_is_neither_acknowledged_nor_refused(tmp_path, monkeypatch):
    async def body(cluster, client):
        (stream,) = await client.create_streams([StreamSpec("copied", replica_count=3)])
        lone = LoneEntry(cluster, client, stream.stream_id)
        monkeypatch.setattr(limits, "REQUEST_TIMEOUT_MS", 500)
        appended = await lone.make(monkeypatch)
        await lone.end()
        with pytest.raises(RequestTimeoutError, match="too few other servers") as caught:
            await appended
        assert caught.value.outcome is Outcome.UNKNOWN
        assert lone.primary._host.primary.unsettled_count == 0
        assert lone.primary._committer._memory_bytes == 0

    run(tmp_path, body, **NO_FALSE_ALARM)


def test_a_server_that_stops_completes_the_others_before_it_asks_for_the_end(tmp_path, monkeypatch):
    """Nothing else can end the range, and nothing but the entries ends the wait: no timeout."""
    never_ms = 600_000
    for name in ("COPY_BEHIND_MS", "COPY_STUCK_MS", "REPLICATE_TIMEOUT_MS"):
        monkeypatch.setattr(limits, name, never_ms)
    monkeypatch.setattr(settling, "_HAND_OVER_SECONDS", 30)
    monkeypatch.setattr(settling, "_COMPLETE_OTHERS_STEPS", never_ms)

    async def body(cluster, client):
        spec = StreamSpec("copied", replica_count=3, ack_count=1)
        (stream,) = await client.create_streams([spec])
        key = (stream.stream_id, 0)
        assert await append(client, stream.stream_id, b"early") == 0
        copies = (await copies_of(cluster, *key)).values()
        await asyncio.to_thread(until, lambda: {each.durable.seq for each in copies} == {1})
        may_arrive = asyncio.Event()
        begin, ask_to_seal = ReplicateHandler.begin, Membership.ask_to_seal

        def begin_later(handler, call):
            async def rest():
                await may_arrive.wait()
                await begin(handler, call)()

            return rest if call.payload else begin(handler, call)

        monkeypatch.setattr(ReplicateHandler, "begin", begin_later)
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
