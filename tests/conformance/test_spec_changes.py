"""UPDATE_STREAMS, TRIM_STREAMS, SYNC_RANGES, REPORT_METRICS, and the changes in LIST_RANGES."""

from msgspec.structs import replace
from spec_target import Target, append, batch, fetch_request, list_ranges

from sbp_core.wire.headers import (
    ClientRole,
    DescribeStreamsRequest,
    FetchResponse,
    HeartbeatRequest,
    IdAllocationRequest,
    ListRangesRequest,
    RangeCriteria,
    RangeId,
    RangeServer,
    ReplicaServer,
    ReportMetricsRequest,
    SealRangesRequest,
    Stream,
    StreamRange,
    StreamRanges,
    SyncRangesRequest,
    TrimmedStream,
    TrimStreamsRequest,
    UpdateStreamsRequest,
    decode_header,
)
from sbp_core.wire.opcodes import Opcode
from sbp_core.wire.status import is_success

NO_STREAM = 2**62


async def trim(client, *items):
    request = TrimStreamsRequest(10_000, tuple(TrimmedStream(*item) for item in items))
    answers = await client.ask(Opcode.TRIM_STREAMS, request)
    return [result for answer in answers for result in answer.streams]


async def fetch(client, placed, offset):
    (frame,) = await client.call(Opcode.FETCH, fetch_request((placed, offset)))
    (result,) = decode_header(FetchResponse, frame.header).fetch_responses
    return result


def test_update_streams_updates_a_batch_of_streams(target):
    """SPEC "UPDATE_STREAMS", "a batch of streams". Rule: update-streams, partial-failure."""

    async def body(target):
        async with target.streams(2) as (one, other), target.pd() as client:
            streams = (
                Stream(stream_id=one.stream_id, replica_nums=1, retention_period_ms=1234),
                Stream(stream_id=NO_STREAM, replica_nums=1),
                Stream(stream_id=other.stream_id, replica_nums=1, retention_period_ms=0),
            )
            answers = await client.ask(Opcode.UPDATE_STREAMS, UpdateStreamsRequest(10_000, streams))
            results = [result for answer in answers for result in answer.update_responses]
            assert [is_success(result.status) for result in results] == [True, False, True]
            updated = [results[0].updated_stream, results[2].updated_stream]
            assert [stream.retention_period_ms for stream in updated] == [1234, 0]
            request = DescribeStreamsRequest(stream_ids=(one.stream_id, other.stream_id))
            answers = await client.ask(Opcode.DESCRIBE_STREAMS, request)
            found = [result.stream for answer in answers for result in answer.describe_responses]
            assert found == updated

    target.run(body)


def test_the_pd_will_delete_the_ranges_below_the_trim_offset_and_shrink_the_one_around_it(target):
    """SPEC "TRIM_STREAMS", the smallest range is answered. Rule: trim-at-pd, partial-failure."""

    async def body(target):
        async with target.streams() as (placed,), target.pd() as client:
            owner = RangeCriteria(stream_id=placed.stream_id)
            for index, count in enumerate((4, 3, 5)):
                now = await target.placed(client, placed.stream_id)
                assert now.stream_range.range_index == index
                async with Target(now.server.advertise_addr).pd() as server:
                    await append(server, (now, batch(count)))
                if index < 2:
                    asked = SealRangesRequest(10_000, (RangeId(placed.stream_id, index),))
                    (answer,) = await client.ask(Opcode.SEAL_RANGE, asked)
                    assert is_success(answer.seal_responses[0].status)
            for offset, expected in (
                (0, [(0, 0, 4), (1, 4, 7), (2, 7, -1)]),
                (4, [(1, 4, 7), (2, 7, -1)]),
                (6, [(1, 6, 7), (2, 7, -1)]),
                (5, [(1, 6, 7), (2, 7, -1)]),
                (9, [(2, 9, -1)]),
            ):
                unknown, done = await trim(client, (NO_STREAM, 0), (placed.stream_id, offset))
                assert not is_success(unknown.status)
                assert is_success(done.status), (offset, done)
                assert done.trimmed_stream.stream_id == placed.stream_id
                smallest = done.stream_range
                assert (smallest.range_index, smallest.start_offset) == expected[0][:2]
                (ranges,) = await list_ranges(client, owner)
                assert [
                    (each.range_index, each.start_offset, each.end_offset) for each in ranges
                ] == expected
            for offset in (-1, 13, 2**62):
                (refused,) = await trim(client, (placed.stream_id, offset))
                assert not is_success(refused.status), offset

    target.run(body)


def test_trimmed_ranges_avoid_the_clients_to_read_the_deleted_records(target):
    """SPEC "TRIM_STREAMS" at a range server. Rule: trim-at-range-server, fetch-from."""

    async def body(target):
        async with (
            target.streams() as (placed,),
            Target(placed.server.advertise_addr).pd() as client,
        ):
            await append(client, *[(placed, batch(4))] * 3)
            for _ in range(2):
                unknown, done = await trim(client, (NO_STREAM, 0), (placed.stream_id, 6))
                assert not is_success(unknown.status)
                assert is_success(done.status)
            for offset in range(6):
                assert not is_success((await fetch(client, placed, offset)).status)
            for offset, count in ((6, 2), (7, 2), (8, 1), (12, 0)):
                assert (await fetch(client, placed, offset)).batch_count == count
            assert await append(client, (placed, batch())) == [12]

    target.run(body)


def test_sync_ranges_syncs_newly_writable_ranges(target):
    """SPEC "SYNC_RANGES" at a range server. Rule: sync-ranges, partial-failure."""

    async def body(target):
        async with (
            target.streams() as (placed,),
            Target(placed.server.advertise_addr).pd() as client,
        ):
            elsewhere = StreamRange(
                stream_id=NO_STREAM,
                range_index=0,
                end_offset=-1,
                servers=(ReplicaServer(RangeServer(2**30, "elsewhere:1"), is_primary=True),),
            )
            request = SyncRangesRequest(
                10_000,
                (
                    StreamRanges(NO_STREAM, (elsewhere,)),
                    StreamRanges(placed.stream_id, (placed.stream_range,)),
                ),
            )
            for _ in range(2):
                (answer,) = await client.ask(Opcode.SYNC_RANGES, request)
                refused, taken = answer.sync_responses
                assert not is_success(refused.status)
                assert is_success(taken.status)
                assert (taken.stream_id, refused.stream_id) == (placed.stream_id, NO_STREAM)
            assert await append(client, (placed, batch())) == [0]

    target.run(body)


def test_report_metrics_reports_load_metrics_of_range_server_to_pd(target):
    """SPEC "REPORT_METRICS": only an allocated server may report. Rule: report-metrics."""

    async def body(target):
        async with target.pd() as client:
            (allocated,) = await client.ask(
                Opcode.ALLOCATE_ID, IdAllocationRequest(1000, "conformance")
            )
            full = {"disk_free_space": 0, "range_active_cnt": -(2**15), "memory_used": 2**62}
            server = RangeServer(allocated.id, "127.0.0.1:1")
            (greeted,) = await client.ask(Opcode.HEARTBEAT, HeartbeatRequest("c"))
            beat = HeartbeatRequest(
                "rs",
                ClientRole.RANGE_SERVER,
                server,
                cluster_id=greeted.cluster_id,
                server_secret=allocated.server_secret,
            )
            (answer,) = await client.ask(Opcode.HEARTBEAT, beat)
            assert is_success(answer.status)
            (answer,) = await client.ask(
                Opcode.REPORT_METRICS, ReportMetricsRequest(range_server=server, **full)
            )
            assert is_success(answer.status)
            assert answer.range_server == server
            for unknown in (None, RangeServer(2**31 - 1, "127.0.0.1:1"), RangeServer()):
                (answer,) = await client.ask(
                    Opcode.REPORT_METRICS, ReportMetricsRequest(range_server=unknown)
                )
                assert not is_success(answer.status)
        async with target.streams(5) as placed:
            assert server.server_id not in {each.server.server_id for each in placed}

    target.run(body)


def test_streams_that_changed_are_listed(target):
    """`changed_streams` of LIST_RANGES. Rule: list-changes."""

    async def body(target):
        async with target.streams() as (placed,), target.pd() as client:
            (before,) = await client.ask(Opcode.LIST_RANGES, ListRangesRequest())
            request = ListRangesRequest(since_revision=before.revision)
            (unchanged,) = await client.ask(Opcode.LIST_RANGES, request)
            assert unchanged.changed_streams == ()
            async with target.streams() as (other,):
                (created,) = await client.ask(Opcode.LIST_RANGES, request)
            (deleted,) = await client.ask(
                Opcode.LIST_RANGES, replace(request, since_revision=created.revision)
            )
            for answer in (created, deleted):
                if answer.lists_changes:
                    assert other.stream_id in answer.changed_streams
                    assert placed.stream_id not in answer.changed_streams
                else:
                    assert answer.changed_streams == ()
            owners = (RangeCriteria(stream_id=placed.stream_id),)
            (listed,) = await client.ask(Opcode.LIST_RANGES, replace(request, range_owners=owners))
            assert (listed.lists_changes, listed.changed_streams) == (False, ())

    target.run(body)
