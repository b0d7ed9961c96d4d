"""Ranges with copies on three servers: what is acknowledged, what is read, and how they end."""

import asyncio

import pytest

from sbp_core.client import AppendItem, StreamSpec, StreamUpdate, Writer
from sbp_core.errors import (
    LogError,
    NotFoundError,
    RangeNotFoundError,
    RangeSealedError,
    StatusCode,
    WriterGapError,
)
from sbp_core.log.cleaning import Cleaned, Cleaner
from sbp_core.log.entry import Entry
from sbp_core.log.states.range_states import RangeState
from sbp_core.log.states.staged_states import drop_entry
from sbp_core.records import with_base_offset, write_base_offset
from sbp_core.replication import Prefix
from sbp_core.segment_format import EntryKind
from sbp_core.wire.headers import DescribeRangesRequest, RangeId
from sbp_core.wire.opcodes import Opcode
from tests.support.appends import end, send, stage
from tests.support.clock import until
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
from tests.support.wire import RawClient


def test_what_is_acknowledged_is_on_two_disks_at_least(tmp_path):
    async def body(cluster, client):
        (stream,) = await client.create_streams([StreamSpec("copied", replica_count=3)])
        for number in range(20):
            assert await append(client, stream.stream_id, b"%d" % number) == number
            durable = [
                each.durable.seq
                for each in hosted_at(cluster, stream.stream_id, 0).values()
                if each is not None
            ]
            assert sum(seq >= number + 1 for seq in durable) >= 2
        assert await read_all(client, stream.stream_id) == [(n, b"%d" % n) for n in range(20)]
        copies = hosted_at(cluster, stream.stream_id, 0).values()
        await asyncio.to_thread(until, lambda: {each.next_offset for each in copies} == {20})
        assert len({each.durable.digest for each in copies}) == 1

    run(tmp_path, body)


def test_a_sealed_range_is_the_same_on_all_servers(tmp_path):
    async def body(cluster, client):
        (stream,) = await client.create_streams([StreamSpec("copied", replica_count=3)])
        for number in range(5):
            await append(client, stream.stream_id, b"%d" % number)
        result = await seal(cluster, stream.stream_id)
        assert (result.stream_range.range_index, result.stream_range.start_offset) == (1, 5)
        copies = hosted_at(cluster, stream.stream_id, 0).values()
        await asyncio.to_thread(
            until, lambda: all(each.state is RangeState.SEALED for each in copies)
        )
        assert {each.end_offset for each in copies} == {5}
        assert await append(client, stream.stream_id, b"5") == 5
        assert await read_all(client, stream.stream_id) == [(n, b"%d" % n) for n in range(6)]

    run(tmp_path, body)


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


def test_a_batch_that_may_be_cut_is_no_repeat(tmp_path):
    """One that is in the log of a secondary, and not known to be committed, is not acknowledged."""

    async def body(cluster, client):
        (stream,) = await client.create_streams(
            [StreamSpec("copied", replica_count=3, ack_count=3)]
        )
        await append(client, stream.stream_id, b"0")
        (placed,) = (await client.list_ranges([stream.stream_id]))[stream.stream_id]
        primary, secondary, third = placed.servers
        stopped = next(each for each in cluster._range_servers if each.endpoint == third)
        await stopped.stop()
        copy = hosted_at(cluster, stream.stream_id, 0)[secondary]
        async with RawClient.at(primary) as first, RawClient.at(secondary) as second:
            waiting = [
                asyncio.create_task(send(first, stream.stream_id, "a")),
                asyncio.create_task(stage(first, stream.stream_id, "t", "b")),
            ]
            await asyncio.to_thread(until, lambda: copy.durable.seq == 4)
            (appended,) = await send(second, stream.stream_id, "a")
            (staged,) = await stage(second, stream.stream_id, "t", "b")
            assert not any(each.done() for each in waiting)
            for each in waiting:
                each.cancel()
        assert isinstance(appended, RangeSealedError)
        assert isinstance(staged, RangeNotFoundError)

    run(tmp_path, body)


def test_a_copy_that_may_lack_records_does_not_say_where_they_end(tmp_path):
    """Rule: describe-range."""

    async def body(cluster, client):
        (stream,) = await client.create_streams([StreamSpec("copied", replica_count=3)])
        for number in range(5):
            await append(client, stream.stream_id, b"%d" % number)
        place = RangeId(stream.stream_id, 0)
        codes = []
        for endpoint, hosted in hosted_at(cluster, stream.stream_id, 0).items():
            async with RawClient.at(endpoint) as server:
                request = DescribeRangesRequest(ranges=(place,))
                (answer,) = await server.ask(Opcode.DESCRIBE_RANGE, request)
            (result,) = answer.describe_responses
            codes.append(result.status.code)
            is_primary = hosted is not None and hosted.is_led
            assert (result.stream_range is not None) == is_primary
        expected = [StatusCode.NONE, *[StatusCode.RANGE_NOT_FOUND] * 2]
        assert sorted(codes) == sorted(expected)

    run(tmp_path, body)


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


def test_nothing_is_appended_behind_a_fence_that_came_in_between(tmp_path):
    """Entries behind the end of a transaction wait for the disk, and are refused then."""

    async def body(cluster, client):
        (stream,) = await client.create_streams([StreamSpec("copied", replica_count=3)])
        await append(client, stream.stream_id, b"0")

        def stored():
            hosted = hosted_at(cluster, stream.stream_id, 0).values()
            return {each and each.durable.seq for each in hosted}

        await asyncio.to_thread(until, lambda: stored() == {1})
        copies = hosted_at(cluster, stream.stream_id, 0)
        server, copy = next(
            (each, copies[each.endpoint])
            for each in cluster._range_servers
            if not copies[each.endpoint].is_led
        )
        secondary = server._secondary
        drop = drop_entry(stream.stream_id, 0, ["t"])
        late = bytearray(rows_batch([b"late"]))
        write_base_offset(late, 1)
        batch = Entry(EntryKind.BATCH, stream.stream_id, 0, 1, 1, late)
        appending = secondary.append(copy, copy.durable, [drop, batch])
        await asyncio.sleep(0)  # the end is submitted, and the batch waits for it
        await server._host.seal(stream.stream_id, 0)
        with pytest.raises(RangeSealedError):
            await appending
        logged = server._log.maybe_range((stream.stream_id, 0))
        assert (logged.state, logged.prefix.seq) == (RangeState.FENCED, 2)
        with pytest.raises(WriterGapError):
            await secondary.append(copy, Prefix(), [batch])

    run(tmp_path, body)


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
