"""Update, trim, seal, announce and report between a client and real servers."""

import asyncio

import pytest

from sbp_core import limits
from sbp_core.client import EARLIEST, AppendItem, AsyncClient, FetchItem, StreamSpec, StreamUpdate
from sbp_core.cluster import Cluster
from sbp_core.errors import (
    AlreadyExistsError,
    ConfigurationError,
    NotFoundError,
    OffsetOutOfRangeError,
    StatusCode,
)
from sbp_core.settings.server_settings import ClusterSettings
from sbp_core.wire.headers import (
    CreateStreamsRequest,
    DeleteStreamsRequest,
    DescribeRangesRequest,
    FetchInfo,
    FetchRequest,
    RangeId,
    RangeServer,
    ReplicaServer,
    Stream,
    StreamRange,
    StreamRanges,
    SyncRangesRequest,
)
from sbp_core.wire.opcodes import Opcode
from sbp_core.wire.status import maybe_error
from tests.support.cluster import core_cluster, rows_batch, values_of
from tests.support.disk import FixedProbe, HeldDisk
from tests.support.wire import RawClient


def run(folder, body, **options):
    async def main():
        async with core_cluster(folder, **options) as cluster:
            await asyncio.wait_for(body(cluster), 60)

    asyncio.run(main())


def run_two(folder, body):
    async def main():
        cluster = Cluster(
            ClusterSettings(data_dir=folder, pd_port=0, range_server_port=0, range_servers=2)
        )
        await cluster.start()
        try:
            async with AsyncClient(cluster.endpoints.pd) as client:
                await asyncio.wait_for(body(cluster, client), 60)
        finally:
            await cluster.stop()

    asyncio.run(main())


async def append(client, stream_id, *values):
    (outcome,) = await client.append([AppendItem(stream_id, rows_batch(values))])
    return outcome.base_offset


async def fetch(client, stream_id, offset):
    item = FetchItem(stream_id, offset, None, 1 << 20)
    (outcome,) = [outcome async for outcome in client.fetch([item])]
    return outcome


async def bounds(client, stream_id):
    (held,) = await client.stream_bounds([stream_id])
    return held.start_offset, held.next_offset


# TRIM_STREAMS


def test_trimmed_offsets_are_refused_with_exact_bounds_also_after_a_restart(tmp_path):
    async def before(cluster):
        client = cluster.client
        (stream,) = await client.create_streams([StreamSpec("s")])
        assert stream.stream_id == 1
        for number in range(4):
            await append(client, 1, b"%d-a" % number, b"%d-b" % number, b"%d-c" % number)
        trimmed = await client.trim_streams({1: 7})
        assert (trimmed[1].start_offset, trimmed[1].range_index) == (7, 0)
        await check(cluster)

    async def check(cluster):
        client = cluster.client
        assert await bounds(client, 1) == (7, 12)
        for offset in (0, 6, 13):
            outcome = await fetch(client, 1, offset)
            assert isinstance(outcome.error, OffsetOutOfRangeError)
            assert outcome.error.bounds == (7, 12)
        async with RawClient.at(cluster.server.endpoint) as raw:
            info = FetchInfo(request_index=0, fetch_offset=6, batch_max_bytes=9, stream_id=1)
            (answer,) = await raw.ask(Opcode.FETCH, FetchRequest(fetch_requests=(info,)))
            error = maybe_error(answer.fetch_responses[0].status)
            assert isinstance(error, OffsetOutOfRangeError)
            assert error.bounds == (7, 12)
            (described,) = await raw.ask(
                Opcode.DESCRIBE_RANGE, DescribeRangesRequest(ranges=(RangeId(1, 0),))
            )
            piece = described.describe_responses[0].stream_range
            assert (piece.start_offset, piece.next_offset) == (7, 12)
        for offset in (7, EARLIEST):
            outcome = await fetch(client, 1, offset)
            assert outcome.error is None
            assert values_of(outcome.payload)[0] == (6, b"2-a")
        assert [at for at, _ in await cluster.read(1, start=7)] == [7, 8, 9, 10, 11]

    async def after(cluster):
        await check(cluster)
        assert await append(cluster.client, 1, b"next") == 12
        assert (await cluster.client.trim_streams({1: 3}))[1].start_offset == 7
        assert (await cluster.client.trim_streams({1: 13}))[1].start_offset == 13
        assert await bounds(cluster.client, 1) == (13, 13)
        assert await append(cluster.client, 1, b"more") == 13
        assert await cluster.read(1, start=13) == [(13, b"more")]

    run(tmp_path, before)
    run(tmp_path, after)


def test_a_trim_passes_over_ranges_and_servers(tmp_path):
    async def body(cluster, client):
        specs = [StreamSpec("s"), StreamSpec("gone"), StreamSpec("load")]
        stream_id, other, _ = [info.stream_id for info in await client.create_streams(specs)]
        await client.delete_streams([other])
        for number in range(4):
            await append(client, stream_id, b"%d-a" % number, b"%d-b" % number)
            opened = (await client.seal_streams([stream_id]))[stream_id]
            assert (opened.range_index, opened.start_offset) == (number + 1, 2 * number + 2)
        ranges = (await client.list_ranges([stream_id]))[stream_id]
        assert {piece.servers[0] for piece in ranges} == set(cluster.endpoints.range_servers)
        async with AsyncClient(cluster.endpoints.pd) as stale:
            assert (await fetch(stale, stream_id, EARLIEST)).next_offset == 2
            smallest = (await client.trim_streams({stream_id: 5}))[stream_id]
            assert (smallest.range_index, smallest.start_offset) == (2, 5)
            assert await bounds(client, stream_id) == (5, 8)
            outcome = await fetch(stale, stream_id, EARLIEST)
            assert [value for _, value in values_of(outcome.payload)] == [b"2-a", b"2-b"]
            outcome = await fetch(stale, stream_id, 1)
            assert outcome.error.bounds == (5, 8)
        smallest = (await client.trim_streams({stream_id: 8}))[stream_id]
        assert (smallest.range_index, smallest.start_offset, smallest.end_offset) == (4, 8, None)
        assert await append(client, stream_id, b"on") == 8
        assert (await fetch(client, stream_id, 3)).error.bounds == (8, 9)

    run_two(tmp_path, body)


# UPDATE_STREAMS and SEAL_RANGE


def test_streams_are_renamed_and_their_retention_changed(tmp_path):
    async def body(cluster):
        client = cluster.client
        created = StreamSpec("a", retention_period_ms=500_000, retention_bytes=7)
        await client.create_streams([created, StreamSpec("b")])
        (renamed,) = await client.update_streams([StreamUpdate("a", name="c")])
        assert (renamed.name, renamed.retention_period_ms, renamed.retention_bytes) == (
            "c",
            500_000,
            7,
        )
        (kept,) = await client.update_streams([StreamUpdate(renamed.stream_id)])
        assert kept == renamed
        (kept,) = await client.update_streams([StreamUpdate("c", retention_period_ms=0)])
        assert (kept.name, kept.retention_period_ms, kept.retention_bytes) == ("c", 0, 7)
        (kept,) = await client.update_streams([StreamUpdate("c", retention_bytes=0)])
        assert kept.retention_bytes == 0
        with pytest.raises(AlreadyExistsError, match="named 'b'"):
            await client.update_streams([StreamUpdate("c", name="b")])
        with pytest.raises(NotFoundError, match="'a'"):
            await client.update_streams([StreamUpdate("c", name="d"), StreamUpdate("a")])
        for wrong in (
            StreamUpdate("c", name="?"),
            StreamUpdate("c", retention_period_ms=-1),
            StreamUpdate("c", retention_bytes=-1),
        ):
            with pytest.raises(ConfigurationError):
                await client.update_streams([wrong])
        assert [info.name for info in await client.list_streams()] == ["c", "b"]

    run(tmp_path, body)


def test_streams_of_many_ranges_are_listed_and_read_in_full(tmp_path, monkeypatch):
    async def body(cluster):
        client = cluster.client
        specs = [StreamSpec(f"s{number}") for number in range(4)]
        stream_ids = [info.stream_id for info in await client.create_streams(specs)]
        for count, stream_id in enumerate(stream_ids):
            for number in range(count):
                assert await append(client, stream_id, b"%d" % number) == number
                await client.seal_streams([stream_id])
        for per_frame in range(1, 12):
            monkeypatch.setattr(limits, "RESULTS_PER_FRAME", per_frame)
            async with AsyncClient(cluster.pd.endpoint) as fresh:
                listed = await fresh.list_ranges(stream_ids)
                assert [len(listed[each]) for each in stream_ids] == [1, 2, 3, 4]
                held = await fresh.stream_bounds(stream_ids)
                assert [each.next_offset for each in held] == [0, 1, 2, 3]
                outcome = await fetch(fresh, stream_ids[3], 1)
                assert values_of(outcome.payload) == [(1, b"1")]

    run(tmp_path, body)


# SYNC_RANGES


def test_a_server_takes_only_what_is_placed_on_it(tmp_path):
    async def body(cluster):
        known, untold, gone = await cluster.client.create_streams(
            [StreamSpec(name) for name in ("known", "untold", "gone")]
        )
        stream = known
        await append(cluster.client, stream.stream_id, b"x")
        await append(cluster.client, gone.stream_id, b"x")
        me = cluster.server._membership.server_id

        def placed(stream_id, server_id=me, *, index=0, start=0, end=-1):
            return StreamRange(
                stream_id=stream_id,
                range_index=index,
                start_offset=start,
                end_offset=end,
                servers=(ReplicaServer(RangeServer(server_id), is_primary=True),),
            )

        items = [
            StreamRanges(50, (placed(50, start=7),)),
            StreamRanges(untold.stream_id, (placed(untold.stream_id, start=10**15),)),
            StreamRanges(stream.stream_id, (placed(stream.stream_id, index=1, start=10**15),)),
            StreamRanges(51, (placed(51, me + 1),)),
            StreamRanges(52, (placed(53),)),
            StreamRanges(54, (placed(54, index=-1),)),
            StreamRanges(55, (placed(55, end=9),)),
            StreamRanges(56, (placed(56), placed(56, me + 1, index=1))),
            StreamRanges(57, (StreamRange(stream_id=57, range_index=0, end_offset=-1),)),
            StreamRanges(stream.stream_id, (placed(stream.stream_id),)),
        ]
        async with RawClient.at(cluster.server.endpoint) as raw:
            (answer,) = await raw.ask(
                Opcode.SYNC_RANGES, SyncRangesRequest(stream_ranges=tuple(items))
            )
            results = answer.sync_responses
            assert [result.stream_id for result in results] == [each.stream_id for each in items]
            ok, bad, unknown = (
                StatusCode.NONE,
                StatusCode.INVALID_REQUEST,
                StatusCode.RANGE_NOT_FOUND,
            )
            codes = [each.status.code for each in results]
            assert codes == [unknown, ok, unknown, *[bad] * 6, ok]
            assert (results[1].ranges[0].start_offset, results[1].ranges[0].next_offset) == (0, 0)
            assert results[9].ranges[0].next_offset == 1
            await raw.ask(
                Opcode.DELETE_STREAMS,
                DeleteStreamsRequest(streams=(Stream(stream_id=gone.stream_id),)),
            )
            deleted = StreamRanges(gone.stream_id, (placed(gone.stream_id),))
            (answer,) = await raw.ask(Opcode.SYNC_RANGES, SyncRangesRequest(0, (deleted,)))
            assert answer.sync_responses[0].status.code == StatusCode.NOT_FOUND
        assert await append(cluster.client, untold.stream_id, b"y") == 0
        assert await append(cluster.client, stream.stream_id, b"y") == 1
        assert await cluster.read(stream.stream_id) == [(0, b"x"), (1, b"y")]

    run(tmp_path, body)


# REPORT_METRICS


def test_data_that_has_not_yet_been_indexed_is_reported(tmp_path):
    disk = HeldDisk()
    disk.gate.set()

    async def body(cluster):
        (stream,) = await cluster.client.create_streams([StreamSpec("s")])
        await append(cluster.client, stream.stream_id, b"first")
        server = cluster.server

        async def unindexed():
            made = await server._report(server._membership.self_table())
            return made.disk_unindexed_data_size

        assert await unindexed() == 0
        disk.gate.clear()
        value = b"x" * 10_000
        appending = asyncio.create_task(append(cluster.client, stream.stream_id, value))
        async with asyncio.timeout(20):
            while await unindexed() < len(value):
                assert not appending.done()
        disk.gate.set()
        await appending
        assert await unindexed() == 0

    run(tmp_path, body, disk=disk)


def test_a_server_reports_what_it_did(tmp_path):
    async def body(cluster):
        server = cluster.server
        for task in server._membership._tasks:  # each of its own reports restarts the count
            task.cancel()
        await asyncio.gather(*server._membership._tasks, return_exceptions=True)
        await cluster.client.create_streams([StreamSpec("s")])
        await append(cluster.client, 1, b"x" * 1000)
        await cluster.read(1)
        made = await server._report(server._membership.self_table())
        assert (made.disk_free_space, made.memory_used, made.range_active_cnt) == (1 << 40, 77, 1)
        assert made.disk_in_rate > 0
        assert made.disk_out_rate > 0
        assert made.range_server.server_id == server._membership.server_id

    run(tmp_path, body, probe=FixedProbe(1 << 40))


def test_a_full_server_gets_no_ranges(tmp_path):
    async def body(cluster):
        reports = cluster.pd._membership
        async with asyncio.timeout(20):
            while reports.live_servers()[0].disk_free_bytes != 0:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        async with RawClient.at(cluster.pd.endpoint) as raw:
            (answer,) = await raw.ask(
                Opcode.CREATE_STREAMS, CreateStreamsRequest(streams=(Stream(name="t"),))
            )
            status = answer.create_responses[0].status
            assert status.code == StatusCode.PD_NO_AVAILABLE_RS
            assert "full" in status.message
        probe.free = None
        assert cluster.pd.live_server_count == 1

    probe = FixedProbe(0)
    run(tmp_path, body, heartbeat_interval_ms=20, probe=probe)


def test_the_revision_shows_whether_streams_have_changed(tmp_path):
    async def body(cluster):
        client = cluster.client
        seen = [(await client.metadata_changes()).revision]

        async def has_changed():
            seen.append((await client.metadata_changes()).revision)
            return seen[-1] != seen[-2]

        assert not await has_changed()
        (info,) = await client.create_streams([StreamSpec("a")])
        assert await has_changed()
        await client.append([AppendItem(info.stream_id, rows_batch([b"x"], info.stream_id))])
        assert not await has_changed()
        await client.delete_streams(["a"])
        assert await has_changed()
        assert seen == sorted(seen)

    run(tmp_path, body)
