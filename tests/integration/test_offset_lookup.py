"""Offsets by time and cursors, between clients and real servers."""

import asyncio

import pytest

from sbp_core import limits
from sbp_core.client import NO_CURSOR, AppendItem, AsyncClient, GroupInfo, StreamSpec
from sbp_core.cluster import Cluster
from sbp_core.errors import (
    ConfigurationError,
    InvalidRequestError,
    NotFoundError,
    StatusCode,
)
from sbp_core.settings.server_settings import ClusterSettings
from sbp_core.wire.headers import LookupOffsetInfo, LookupOffsetsRequest
from sbp_core.wire.opcodes import Opcode
from tests.support.clock import SetClock
from tests.support.cluster import core_cluster, rows_batch
from tests.support.wire import RawClient

FOR_EVER_US = 2**63 - 1


def run(folder, body, **options):
    clock = SetClock()

    async def main():
        async with core_cluster(folder, clock=clock, **options) as cluster:
            await asyncio.wait_for(body(cluster, clock), 60)

    asyncio.run(main())


async def create(client, *names):
    created = await client.create_streams([StreamSpec(name) for name in names or [None]])
    return [info.stream_id for info in created]


async def append(client, stream_id, count=2, size=1):
    batch = rows_batch([bytes(size)] * count)
    (outcome,) = await client.append([AppendItem(stream_id, batch)])
    return outcome


async def fill(client, clock, stream_id, *times_ms, size=1):
    """Append two records at each time."""
    for time_ms in times_ms:
        clock.now_ms = time_ms
        assert (await append(client, stream_id, size=size)).append_time_ms == time_ms


async def since(client, stream_id, time_ms, more_us=0):
    found = await client.lookup_offsets({stream_id: time_ms * 1000 + more_us})
    return found[stream_id]


def test_the_first_record_of_a_time_or_later_is_found(tmp_path):
    async def body(cluster, clock):
        client = cluster.client
        (stream_id,) = await create(client)
        assert await since(client, stream_id, 0) == 0
        assert await since(client, stream_id, 2_000) == 0
        await fill(client, clock, stream_id, 1_000, 1_005, 1_005, 1_010)
        expected = {0: 0, 1_000: 0, 1_001: 2, 1_005: 2, 1_006: 6, 1_010: 6, 1_011: 8}
        for time_ms, offset in expected.items():
            assert await since(client, stream_id, time_ms) == offset, time_ms
        assert await since(client, stream_id, 1_005, more_us=999) == 2, "times are whole ms"
        assert await client.lookup_offsets({stream_id: FOR_EVER_US}) == {stream_id: 8}
        assert await client.append_times({stream_id: 3}) == {stream_id: 1_005}
        for tail in (8, 9, 2**63 - 1):
            assert await client.append_times({stream_id: tail}) == {stream_id: None}

    run(tmp_path, body)


def test_a_clock_that_is_set_back_hides_nothing(tmp_path):
    async def body(cluster, clock):
        client = cluster.client
        (stream_id,) = await create(client)
        await fill(client, clock, stream_id, 1_000, 9_000, 1_001, 1_002)
        assert await since(client, stream_id, 1_001) == 2, "9000 is later, and stands before it"
        assert await since(client, stream_id, 9_001) == 8

    run(tmp_path, body)


def test_trimmed_records_are_not_found_and_a_seal_changes_nothing(tmp_path):
    async def body(cluster, clock):
        client = cluster.client
        (stream_id,) = await create(client)
        await fill(client, clock, stream_id, 1_000, 1_010, 1_020)
        await client.trim_streams({stream_id: 3})
        assert await since(client, stream_id, 0) == 3
        assert await since(client, stream_id, 1_010) == 3
        assert await since(client, stream_id, 1_011) == 4
        assert await client.append_times({stream_id: 0}) == {stream_id: 1_010}
        await client.seal_streams([stream_id])
        assert await since(client, stream_id, 1_011) == 4
        assert await since(client, stream_id, 1_021) == 6
        await fill(client, clock, stream_id, 1_030)
        assert await since(client, stream_id, 1_021) == 6
        assert await since(client, stream_id, 1_031) == 8
        await client.trim_streams({stream_id: 8})
        assert await since(client, stream_id, 0) == 8

    run(tmp_path, body)


def test_lookups_go_over_segments_and_a_restart(tmp_path):
    times = [1_000 + 10 * step for step in range(24)]

    async def check(client, stream_id):
        for step, time_ms in enumerate(times):
            assert await since(client, stream_id, time_ms) == 2 * step
            assert await since(client, stream_id, time_ms + 1) == 2 * step + 2
        assert await client.append_times({stream_id: 5}) == {stream_id: times[2]}

    async def first(cluster, clock):
        (stream_id,) = await create(cluster.client, "s")
        await fill(cluster.client, clock, stream_id, *times, size=1_000_000)
        assert len(list((tmp_path / "rs" / "log").glob("*.idx"))) > 1
        await check(cluster.client, stream_id)
        await cluster.client.commit_cursors("g", {stream_id: 7})

    async def second(cluster, clock):
        (info,) = await cluster.client.describe_streams(["s"])
        await check(cluster.client, info.stream_id)
        (cursor,) = await cluster.client.describe_cursors("g")
        assert (cursor.stream_id, cursor.next_offset) == (info.stream_id, 7)

    run(tmp_path, first, segment_bytes=limits.SEGMENT_BYTES_MIN)
    run(tmp_path, second, segment_bytes=limits.SEGMENT_BYTES_MIN)


def test_ranges_on_several_servers_are_one_stream(tmp_path):
    async def main():
        cluster = Cluster(
            ClusterSettings(data_dir=tmp_path, pd_port=0, range_server_port=0, range_servers=3)
        )
        await cluster.start()
        try:
            async with AsyncClient(cluster.endpoints.pd) as client:
                await asyncio.wait_for(body(client), 60)
        finally:
            await cluster.stop()

    async def body(client):
        streams = await create(client, *[f"s{number}" for number in range(4)])
        outcomes = {stream_id: [] for stream_id in streams}
        for _ in range(5):
            for stream_id in streams:
                outcomes[stream_id] += [await append(client, stream_id) for _ in range(3)]
            await client.seal_streams(streams)
            await client.create_streams([StreamSpec(None)])  # so that the next one is elsewhere
        ranges = await client.list_ranges(streams)
        servers = {each: [piece.servers[0] for piece in ranges[each]] for each in streams}
        assert any(len(set(each)) > 1 for each in servers.values())
        for stream_id, appended in outcomes.items():
            for time_ms in {each.append_time_ms + more for each in appended for more in (0, 1)}:
                expected = next(
                    (each.base_offset for each in appended if each.append_time_ms >= time_ms), 30
                )
                assert await since(client, stream_id, time_ms) == expected
        times = await client.append_times(dict.fromkeys(streams, 8))
        assert times == {each: outcomes[each][4].append_time_ms for each in streams}

    asyncio.run(main())


def test_items_fail_alone_and_many_come_in_several_frames(tmp_path):
    async def body(cluster, clock):
        stream_id, deleted = await create(cluster.client, "kept", "deleted")
        await fill(cluster.client, clock, stream_id, 1_000)
        await fill(cluster.client, clock, deleted, 1_000)
        await cluster.client.delete_streams(["deleted"])
        items = [
            *(LookupOffsetInfo(stream_id, index, 1_000_000) for index in range(2_500)),
            LookupOffsetInfo(stream_id, 2_500, -1),
            LookupOffsetInfo(stream_id, 2_501, 0, -1),
            LookupOffsetInfo(deleted, 2_502, 0),
            LookupOffsetInfo(99, 2_503, 0),
            LookupOffsetInfo(stream_id, 2_504, 0, 5),
        ]
        async with RawClient.at(cluster.server.endpoint) as raw:
            request = LookupOffsetsRequest(10_000, tuple(items))
            answers = await raw.ask(Opcode.LOOKUP_OFFSETS, request)
        assert len(answers) == 3
        results = [each for answer in answers for each in answer.lookup_responses]
        assert [each.request_index for each in results] == list(range(2_505))
        codes = [each.status.code if each.status else 0 for each in results]
        assert codes[:2_500] == [0] * 2_500
        assert codes[2_500:] == [
            StatusCode.INVALID_REQUEST,
            StatusCode.INVALID_REQUEST,
            StatusCode.NOT_FOUND,
            StatusCode.RANGE_NOT_FOUND,
            0,
        ]
        assert (results[0].offset, results[0].append_time_ms) == (0, 1_000)
        assert (results[-1].offset, results[-1].append_time_ms) == (2, -1)

    run(tmp_path, body)


# Both clients.


@pytest.fixture
def driver(make, cluster):
    return make(cluster.endpoint)


def new_streams(driver, count):
    return [each.stream_id for each in driver.do("create_streams", [StreamSpec(None)] * count)]


def test_lookups_of_both_clients(driver):
    one, empty = new_streams(driver, 2)
    (outcome,) = driver.do("append", [AppendItem(one, rows_batch([b"a", b"b"]))])
    time_us = outcome.append_time_ms * 1000
    assert driver.do("lookup_offsets", {one: time_us, empty: time_us}) == {one: 0, empty: 0}
    assert driver.do("lookup_offsets", {one: time_us + 1000}) == {one: 2}
    assert driver.do("lookup_offsets", {}) == {}
    assert driver.do("append_times", {one: 1, empty: 0}) == {
        one: outcome.append_time_ms,
        empty: None,
    }
    with pytest.raises(NotFoundError, match=f"stream {2**62}, stream {2**62 + 1}"):
        driver.do("lookup_offsets", {one: 0, 2**62: 0, 2**62 + 1: 0})
    for wrong in (-1, 2**63):
        with pytest.raises(ConfigurationError, match="is no time"):
            driver.do("lookup_offsets", {one: wrong})
        with pytest.raises(ConfigurationError, match="is no offset"):
            driver.do("append_times", {one: wrong})


def test_cursors_of_both_clients(driver):
    one, two, three = new_streams(driver, 3)
    group = f"group-{one}"
    assert driver.do("describe_cursors", group) == []
    driver.do("commit_cursors", group, {two: 5, one: 0})
    driver.do("commit_cursors", group, {two: 3})
    cursors = driver.do("describe_cursors", group)
    assert [(each.stream_id, each.next_offset) for each in cursors] == [(one, 0), (two, 3)]
    assert driver.do("describe_cursors", group, [two, three, one]) == cursors[::-1]
    latest = max(each.committed_at_ms for each in cursors)
    assert GroupInfo(group, latest) in driver.do("list_groups")
    driver.do("delete_streams", [two])
    assert driver.do("describe_cursors", group) == cursors[:1]
    driver.do("commit_cursors", group, {one: NO_CURSOR, three: NO_CURSOR})
    assert driver.do("describe_cursors", group) == []
    assert group not in {each.group for each in driver.do("list_groups")}


def test_cursors_that_cannot_be_committed_name_why(driver):
    (one,) = new_streams(driver, 1)
    group = f"group-{one}"
    with pytest.raises(NotFoundError, match=f"stream {2**62}, stream {2**62 + 1}"):
        driver.do("commit_cursors", group, {2**62: 1, one: 4, 2**62 + 1: 1})
    assert [each.next_offset for each in driver.do("describe_cursors", group)] == [4]
    for wrong in (-2, 2**63):
        with pytest.raises(ConfigurationError, match=f"cursor {wrong} of stream {one}"):
            driver.do("commit_cursors", group, {one: wrong})
    for name in ("", "a b", "a/b", "ä", "x" * 250):
        with pytest.raises(InvalidRequestError, match="cannot name a consumer group"):
            driver.do("commit_cursors", name, {one: 1})
        with pytest.raises(InvalidRequestError, match="cannot name a consumer group"):
            driver.do("describe_cursors", name)


def test_more_cursors_than_a_frame_holds(driver):
    streams = new_streams(driver, 2_500)
    group = f"group-{streams[0]}"
    wanted = {stream_id: position for position, stream_id in enumerate(streams)}
    driver.do("commit_cursors", group, wanted)
    for asked in ((), streams):
        found = driver.do("describe_cursors", group, asked)
        assert {each.stream_id: each.next_offset for each in found} == wanted
    driver.do("delete_streams", streams)
    assert driver.do("describe_cursors", group) == []
