"""Ranges with copies on three servers: what is acknowledged, what is read, and how they end."""

import asyncio

import pytest

from sbp_core.client import AppendItem, StreamSpec, StreamUpdate, Writer
from sbp_core.errors import LogError, NotFoundError
from sbp_core.log.cleaning import Cleaned, Cleaner
from sbp_core.log.states.range_states import RangeState
from sbp_core.records import with_base_offset
from tests.support.appends import end, stage
from tests.support.cluster import (
    NO_FALSE_ALARM,
    append,
    driver_at,
    hosted_at,
    primary_of,
    read_all,
    rows_batch,
    run,
    seal,
)
from tests.support.log import bodies, staged_bodies


def test_a_server_that_stops_hands_its_ranges_over(tmp_path):
    async def body(cluster, client):
        (stream,) = await client.create_streams([StreamSpec("copied", replica_count=3)])
        appended = await asyncio.gather(
            *(append(client, stream.stream_id, b"%d" % number) for number in range(20))
        )
        primary = primary_of(cluster, (stream.stream_id, 0))
        going_on = asyncio.gather(
            *(append(client, stream.stream_id, b"more %d" % number) for number in range(20))
        )
        await primary.stop()
        appended += await going_on
        assert sorted(appended) == list(range(40))
        assert len(await read_all(client, stream.stream_id)) == 40
        (ranges,) = (await client.list_ranges([stream.stream_id])).values()
        assert primary.endpoint not in ranges[-1].servers
        cluster._range_servers.remove(primary)

    run(tmp_path, body, **NO_FALSE_ALARM)


IMPATIENT = {
    "heartbeat_interval_ms": 100,
    "heartbeat_timeout_ms": 1_000,
    "replace_server_after_ms": 1_000,
}


async def members(client, stream_id, range_index):
    (pieces,) = (await client.list_ranges([stream_id])).values()
    return set(pieces[range_index].servers)


async def stop(cluster, endpoints):
    for server in cluster._range_servers:
        if server.endpoint in endpoints:
            await server.stop()


def test_a_server_that_is_lost_is_replaced_in_sealed_ranges(tmp_path):
    async def body(cluster, client):
        (stream,) = await client.create_streams([StreamSpec("copied", replica_count=3)])
        writer = Writer()
        for number in range(6):
            item = AppendItem(stream.stream_id, rows_batch([b"%d" % number]))
            await client.append([item], writer=writer if number % 2 else None, retry_unknown=True)
        await seal(cluster, stream.stream_id)
        before = await members(client, stream.stream_id, 0)
        (newcomer,) = {each.endpoint for each in cluster._range_servers} - before
        lost = min(before)
        await stop(cluster, {lost})
        expected = before - {lost} | {newcomer}
        while await members(client, stream.stream_id, 0) != expected:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        copies = hosted_at(cluster, stream.stream_id, 0)
        assert {copies[each].state for each in expected} == {RangeState.SEALED}
        assert {copies[each].end_offset for each in expected} == {6}
        await stop(cluster, expected - {newcomer})
        records = await read_all(client, stream.stream_id, 6)
        assert records == [(n, b"%d" % n) for n in range(6)]

    run(tmp_path, body, range_servers=4, **IMPATIENT)


def test_a_sealed_range_gets_the_replicas_that_its_stream_is_to_have(tmp_path):
    async def body(cluster, client):
        (stream,) = await client.create_streams([StreamSpec("copied", replica_count=2)])
        assert await append(client, stream.stream_id, b"0") == 0
        await client.update_streams([StreamUpdate(stream.stream_id, replica_count=3)])
        while len(await members(client, stream.stream_id, 0)) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        servers = cluster._range_servers
        while not all(is_sealed(each, stream.stream_id) for each in servers):  # noqa: ASYNC110
            await asyncio.sleep(0.05)

    run(tmp_path, body, heartbeat_interval_ms=100, heartbeat_timeout_ms=4_000)


def test_a_server_that_is_drained_has_no_ranges_any_more(tmp_path):
    async def body(cluster, client):
        (stream,) = await client.create_streams([StreamSpec("copied", replica_count=3)])
        assert await append(client, stream.stream_id, b"0") == 0
        await seal(cluster, stream.stream_id)
        assert await append(client, stream.stream_id, b"1") == 1
        servers = {each.endpoint: each for each in await client.range_servers()}
        drained = servers[min(await members(client, stream.stream_id, 1))]
        with pytest.raises(NotFoundError, match="no range server has the id 99"):
            await client.drain_servers([drained.server_id, 99])
        await client.drain_servers([drained.server_id])

        async def described():
            return (await client.range_servers())[drained.server_id - 1]

        async def has_ranges():
            found = await described()
            return found.sealed_ranges or found.copied_ranges or found.led_ranges

        while await has_ranges():  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        assert (await described()).is_draining
        assert await append(client, stream.stream_id, b"2") == 2
        await stop(cluster, {drained.endpoint})
        records = await read_all(client, stream.stream_id, 3)
        assert records == [(n, b"%d" % n) for n in range(3)]
        await client.drain_servers([drained.server_id], is_cancelled=True)
        assert not (await described()).is_draining

    run(tmp_path, body, range_servers=4, **IMPATIENT)


@pytest.mark.parametrize(
    ("range_servers", "obstacle"), [(3, "ack_count = 2"), (4, "complete copies first ({})")]
)
def test_a_drain_says_what_it_waits_for(tmp_path, range_servers, obstacle):
    """A place for the open range, or the copies of the sealed one, while a server is down."""

    async def body(cluster, client):
        (stream,) = await client.create_streams([StreamSpec("copied", replica_count=3)])
        await seal(cluster, stream.stream_id)
        placed = await members(client, stream.stream_id, 0)
        servers = await client.range_servers()
        drained, down, _ = (each for each in servers if each.endpoint in placed)
        await stop(cluster, {down.endpoint})
        await client.drain_servers([drained.server_id])
        said = ""
        while obstacle.format(down.server_id) not in said:
            await asyncio.sleep(0.05)
            said = (await client.range_servers())[drained.server_id - 1].drain_obstacle or ""

    soon = {"heartbeat_interval_ms": 100, "heartbeat_timeout_ms": 1_000}
    run(tmp_path, body, range_servers=range_servers, **soon)


@pytest.mark.parametrize("trimmed", [0, 6])
def test_a_range_that_was_rewritten_everywhere_is_copied_by_its_records(tmp_path, trimmed):
    """The cleaner has dropped marks, ends and aborted batches, or the first segments."""

    async def body(cluster, client):
        (stream,) = await client.create_streams([StreamSpec("copied", replica_count=3)])
        stream_id = stream.stream_id
        servers = {each.endpoint: each for each in cluster._range_servers}
        writer = Writer()
        for number in range(5):
            item = AppendItem(stream_id, rows_batch([b"%d" % number]))
            await client.append([item], writer=writer, retry_unknown=True)
        (placed,) = (await client.list_ranges([stream_id]))[stream_id]
        primary = servers[placed.servers[0]]
        async with driver_at(primary.endpoint, primary._settings.data_dir) as driver:
            assert await stage(driver, stream_id, "t", "a", "bc") == [-1, -1]
            assert await stage(driver, stream_id, "dead", "x" * 99) == [-1]
            assert await stage(driver, stream_id, "left", "d", "e") == [-1, -1]
            assert await end(driver, stream_id, "t") == (5, 3)
            assert await end(driver, stream_id, "dead", commit=False) == (-1, 99)
        copies = hosted_at(cluster, stream_id, 0)
        before = set(placed.servers)
        for endpoint in before:  # the next range has entries of its own behind
            while copies[endpoint].durable != copies[primary.endpoint].durable:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            servers[endpoint]._log.end_segment()
        await seal(cluster, stream_id)
        while any(copies[each].state is not RangeState.SEALED for each in before):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        for endpoint in before:
            log = servers[endpoint]._log
            while copies[endpoint].start_offset != trimmed:
                await client.trim_streams({stream_id: trimmed})
            assert await asyncio.to_thread(Cleaner(log).clean, 1.0) != Cleaned()
            with pytest.raises(LogError):
                list(log.numbered_entries((stream_id, 0), 0, placed_seq(log, stream_id)))
        await stop(cluster, {primary.endpoint})
        newcomer = next(each for each in cluster._range_servers if each.endpoint not in before)
        while not is_sealed(newcomer, stream_id):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        source = servers[placed.servers[1]]._log
        assert newcomer._log.maybe_range((stream_id, 0)) == source.maybe_range((stream_id, 0))
        assert bodies(newcomer._log, trimmed, (stream_id, 0)) == copied_bodies(
            source, trimmed, (stream_id, 0)
        )
        assert staged_bodies(newcomer._log, "left", (stream_id, 0)) == staged_bodies(
            source, "left", (stream_id, 0)
        )
        assert {each.txn_ids for each in newcomer._log.staged.ends(stream_id)} == {
            ("t",),
            ("dead",),
        }
        assert newcomer._log.writers.known_from(stream_id) > 0  # not those of the copied range
        while primary.endpoint in await members(client, stream_id, 0):  # noqa: ASYNC110
            await asyncio.sleep(0.05)

    run(tmp_path, body, range_servers=4, **IMPATIENT)


def is_sealed(server, stream_id):
    found = server._log.maybe_range((stream_id, 0))
    return found is not None and found.state is RangeState.SEALED


def placed_seq(log, stream_id):
    return log.maybe_range((stream_id, 0)).seq


def copied_bodies(log, offset, key):
    """The batches of a range as they are copied: those that were staged know their offsets."""
    slots = list(log.batches_from(key, offset))
    return [
        b"".join(with_base_offset(memoryview(body), slot.base_offset))
        for slot, body in zip(slots, bodies(log, offset, key), strict=True)
    ]


def test_a_server_without_ranges_that_stops_in_good_order_is_silent_at_once(tmp_path):
    async def body(cluster, client):
        stopped = cluster._range_servers.pop()
        await stopped.stop()
        live = {each.endpoint: each.is_live for each in await client.range_servers()}
        (left,) = cluster._range_servers
        assert live == {left.endpoint: True, stopped.endpoint: False}

    run(tmp_path, body, range_servers=2)
