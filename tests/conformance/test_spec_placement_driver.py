"""The operations of a placement driver. Tests are named after sentences of the specification."""

import asyncio

import pytest
from msgspec.structs import replace
from spec_target import RETENTION_MS, Target, append, batch, list_ranges

from sbp_core.errors import StatusCode
from sbp_core.wire.headers import (
    REQUEST_TABLES,
    RESPONSE_TABLES,
    ChangeGrantsRequest,
    ClientRole,
    CreateRangeRequest,
    CreateStreamsRequest,
    DeleteStreamsRequest,
    DescribePlacementDriverClusterRequest,
    DescribeServersRequest,
    DescribeStreamsRequest,
    DrainServersRequest,
    Grant,
    HeartbeatRequest,
    IdAllocationRequest,
    ListGrantsRequest,
    ListRangesRequest,
    RangeCriteria,
    RangeId,
    RangeServer,
    ReportMetricsRequest,
    SealRangesRequest,
    Stream,
    StreamRange,
    decode_header,
)
from sbp_core.wire.opcodes import Opcode
from sbp_core.wire.status import is_success

NO_STREAM = 2**62


async def describe(client, *stream_ids):
    request = DescribeStreamsRequest(stream_ids=stream_ids)
    answers = await client.ask(Opcode.DESCRIBE_STREAMS, request)
    return [result for answer in answers for result in answer.describe_responses]


async def seal(client, *ranges):
    answers = await client.ask(Opcode.SEAL_RANGE, SealRangesRequest(10_000, ranges))
    return [result for answer in answers for result in answer.seal_responses]


async def delete(client, *stream_ids):
    streams = tuple(Stream(stream_id=stream_id) for stream_id in stream_ids)
    answers = await client.ask(Opcode.DELETE_STREAMS, DeleteStreamsRequest(streams=streams))
    return [result for answer in answers for result in answer.delete_responses]


# HEARTBEAT


@pytest.mark.parametrize(
    "beat",
    [
        HeartbeatRequest(client_id="größe", client_role=ClientRole.CLIENT),
        HeartbeatRequest(client_id="", client_role=ClientRole.UNSPECIFIED),
        HeartbeatRequest(client_id="a placement driver", client_role=ClientRole.PD),
        HeartbeatRequest("c", ClientRole.CLIENT, RangeServer(7, "somewhere:1")),
    ],
    ids=lambda beat: repr(beat.client_id),
)
def test_the_request_and_response_frames_of_heartbeat_have_the_same_format(target, beat):
    """SPEC "HEARTBEAT", "have the same format": at both servers. Rule: heartbeat."""

    async def body(target):
        async with target.streams() as (placed,):
            for endpoint in (target.endpoint, placed.server.advertise_addr):
                async with Target(endpoint).pd() as client:
                    (answer,) = await client.ask(Opcode.HEARTBEAT, beat)
                # A peer that claims to be the placement driver may be asked for a proof.
                assert is_success(answer.status) or beat.client_role == ClientRole.PD
                assert answer.client_id == beat.client_id
                assert answer.client_role == beat.client_role
                assert answer.range_server == beat.range_server

    target.run(body)


def test_a_heartbeat_without_the_secret_of_its_id_is_refused(target):
    """`server_secret` of HEARTBEAT, if ALLOCATE_ID gave one. Rule: heartbeat-secret."""

    async def body(target):
        async with target.pd() as client, target.pd() as forger:
            (greeted,) = await client.ask(Opcode.HEARTBEAT, HeartbeatRequest("c"))
            (allocated,) = await client.ask(
                Opcode.ALLOCATE_ID, IdAllocationRequest(1000, "conformance")
            )
            if not allocated.server_secret:
                pytest.skip("the placement driver gives no secrets")
            beat = HeartbeatRequest(
                "rs",
                ClientRole.RANGE_SERVER,
                RangeServer(allocated.id, "127.0.0.1:3"),
                cluster_id=greeted.cluster_id,
                server_secret=allocated.server_secret,
            )
            moved = replace(beat, range_server=RangeServer(allocated.id, "127.0.0.1:4"))
            for secret in (None, "", "0" * 64, allocated.server_secret[:-1]):
                forged = replace(moved, server_secret=secret)
                (answer,) = await forger.ask(Opcode.HEARTBEAT, forged)
                assert answer.status.code == StatusCode.PERMISSION_DENIED
            (answer,) = await client.ask(Opcode.HEARTBEAT, beat)
            assert is_success(answer.status)
            report = ReportMetricsRequest(range_server=beat.range_server, disk_free_space=0)
            (answer,) = await client.ask(Opcode.REPORT_METRICS, report)  # it is given no ranges
            assert is_success(answer.status)

    target.run(body)


# CREATE_STREAMS, DESCRIBE_STREAMS, DELETE_STREAMS


def test_create_streams_creates_a_batch_of_streams(target):
    """SPEC "CREATE_STREAMS", "a batch of streams". Rule: create-streams."""

    async def body(target):
        new = tuple(Stream(replica_nums=1, retention_period_ms=1000 + i) for i in range(5))
        async with target.pd() as client:
            answers = await client.ask(Opcode.CREATE_STREAMS, CreateStreamsRequest(streams=new))
            results = [result for answer in answers for result in answer.create_responses]
            assert all(is_success(result.status) for result in results)
            made = [result.stream for result in results]
            assert len({stream.stream_id for stream in made}) == 5
            assert [stream.retention_period_ms for stream in made] == [1000, 1001, 1002, 1003, 1004]
            assert [stream.replica_nums for stream in made] == [1] * 5
            await delete(client, *(stream.stream_id for stream in made))

    target.run(body)


def test_a_stream_that_cannot_be_created_does_not_keep_the_others_from_it(target):
    """SPEC "CREATE_STREAMS", a status in every result. Rule: partial-failure, item-answers."""

    async def body(target):
        good, bad = Stream(replica_nums=1), Stream(replica_nums=1, retention_period_ms=-1)
        request = CreateStreamsRequest(streams=(good, bad, good))
        async with target.pd() as client:
            answers = await client.ask(Opcode.CREATE_STREAMS, request)
            results = [result for answer in answers for result in answer.create_responses]
            assert [is_success(result.status) for result in results] == [True, False, True]
            await delete(client, results[0].stream.stream_id, results[2].stream.stream_id)

    target.run(body)


def test_describe_streams_describes_a_batch_of_streams(target):
    """SPEC "DESCRIBE_STREAMS". Rule: describe-streams, partial-failure, item-answers."""

    async def body(target):
        async with target.streams(2) as placed, target.pd() as client:
            one, other = (each.stream_id for each in placed)
            results = await describe(client, other, NO_STREAM, one, other)
            assert [is_success(result.status) for result in results] == [True, False, True, True]
            found = [result.stream for result in results if result.stream]
            assert [stream.stream_id for stream in found] == [other, one, other]
            assert {stream.retention_period_ms for stream in found} == {RETENTION_MS}

    target.run(body)


def test_the_pd_will_delete_the_stream_metadata_as_well_as_the_range_info(target):
    """SPEC "DELETE_STREAMS". Rule: delete-at-pd, describe-streams, partial-failure."""

    async def body(target):
        async with target.streams(2) as (gone, kept), target.pd() as client:
            results = await delete(client, gone.stream_id, NO_STREAM)
            assert [is_success(result.status) for result in results] == [True, False]
            assert results[0].deleted_stream.stream_id == gone.stream_id
            described = await describe(client, gone.stream_id, kept.stream_id)
            assert [is_success(result.status) for result in described] == [False, True]
            (hosted,) = await list_ranges(client, RangeCriteria(range_server=gone.server))
            assert gone.stream_id not in {each.stream_id for each in hosted}
            (again,) = await delete(client, gone.stream_id)
            assert not is_success(again.status)

    target.run(body)


# LIST_RANGES


def test_list_ranges_lists_the_ranges_of_a_batch_of_streams(target):
    """SPEC "LIST_RANGES", "the ranges of a batch of streams". Rule: list-by-stream."""

    async def body(target):
        async with target.streams(3) as placed, target.pd() as client:
            owners = [RangeCriteria(stream_id=each.stream_id) for each in placed]
            for each, ranges in zip(placed, await list_ranges(client, *owners), strict=True):
                assert [found.stream_id for found in ranges] == [each.stream_id]
                assert (ranges[0].range_index, ranges[0].start_offset) == (0, 0)
                assert ranges[0].end_offset == -1
                assert [server.is_primary for server in ranges[0].servers].count(True) == 1
                assert all(":" in server.server.advertise_addr for server in ranges[0].servers)

    target.run(body)


def test_list_ranges_lists_the_ranges_of_all_the_streams_in_a_specific_range_server(target):
    """SPEC "LIST_RANGES", mixed with streams in one request. Rule: list-by-server."""

    async def body(target):
        async with target.streams(3) as placed, target.pd() as client:
            server = RangeServer(server_id=placed[0].server.server_id)
            one, by_server, other = await list_ranges(
                client,
                RangeCriteria(stream_id=placed[1].stream_id),
                RangeCriteria(range_server=server),
                RangeCriteria(stream_id=placed[2].stream_id),
            )
            assert [found.stream_id for found in one] == [placed[1].stream_id]
            assert [found.stream_id for found in other] == [placed[2].stream_id]
            hosted = {found.stream_id for found in by_server}
            for each in placed:
                assert (each.stream_id in hosted) == (each.server.server_id == server.server_id)
            assert all(
                server.server_id in {replica.server.server_id for replica in found.servers}
                for found in by_server
            )

    target.run(body)


def test_an_unknown_owner_does_not_keep_the_others_from_being_listed(target):
    """SPEC "LIST_RANGES", a status in every result. Rule: partial-failure."""

    async def body(target):
        async with target.streams() as (placed,), target.pd() as client:
            owners = (
                RangeCriteria(stream_id=NO_STREAM),
                RangeCriteria(stream_id=placed.stream_id),
            )
            answers = await client.ask(Opcode.LIST_RANGES, ListRangesRequest(range_owners=owners))
            results = [result for answer in answers for result in answer.list_responses]
            assert [len(result.ranges) for result in results] == [0, 1]
            assert is_success(results[1].status)

    target.run(body)


# SEAL_RANGE, CREATE_RANGE


def test_the_pd_returns_the_newly_writable_range(target):
    """SPEC "SEAL_RANGE", "the PD returns the newly writable range". Rule: seal-at-pd."""

    async def body(target):
        async with target.streams(2) as (full, empty), target.pd() as client:
            async with Target(full.server.advertise_addr).pd() as server:
                assert await append(server, (full, batch(7))) == [0]
            results = await seal(
                client,
                RangeId(full.stream_id, 0),
                RangeId(NO_STREAM, 0),
                RangeId(empty.stream_id, 0),
            )
            by_stream = {result.stream_id: result for result in results}
            assert not is_success(by_stream[NO_STREAM].status)
            for stream, end in ((full, 7), (empty, 0)):
                opened = by_stream[stream.stream_id].stream_range
                assert is_success(by_stream[stream.stream_id].status)
                assert (opened.stream_id, opened.range_index) == (stream.stream_id, 1)
                assert (opened.start_offset, opened.end_offset) == (end, -1)
                assert opened.servers
                owner = RangeCriteria(stream_id=stream.stream_id)
                ((sealed, listed),) = await list_ranges(client, owner)
                assert (sealed.start_offset, sealed.end_offset) == (0, end)
                assert (listed.range_index, listed.start_offset) == (1, end)

    target.run(body)


def test_sealing_again_answers_the_range_that_is_writable_now(target):
    """SPEC "SEAL_RANGE", a repeated request. Rule: seal-at-pd."""

    async def body(target):
        async with target.streams() as (placed,), target.pd() as client:
            asked = RangeId(placed.stream_id, 0)
            results = [*await seal(client, asked), *await seal(client, asked, asked)]
            assert all(is_success(result.status) for result in results)
            assert {result.stream_range.range_index for result in results} == {1}

    target.run(body)


def test_concurrent_seals_open_one_range(target):
    """SPEC "SEAL_RANGE" from several clients at once. Rule: seal-at-pd."""

    async def body(target):
        async with target.streams() as (placed,), target.pd() as one, target.pd() as other:
            asked = RangeId(placed.stream_id, 0)
            await asyncio.gather(*(seal(client, asked) for client in (one, other, one, other)))
            (ranges,) = await list_ranges(one, RangeCriteria(stream_id=placed.stream_id))
            assert [found.range_index for found in ranges] == [0, 1]

    target.run(body)


def test_create_range_is_refused_while_the_last_range_is_open(target):
    """SPEC "CREATE_RANGE": "create a new range". Rule: create-range."""

    async def body(target):
        async with target.streams() as (placed,), target.pd() as client:
            wanted = StreamRange(stream_id=placed.stream_id, range_index=1)
            (answer,) = await client.ask(
                Opcode.CREATE_RANGE, CreateRangeRequest(stream_range=wanted)
            )
            assert not is_success(answer.status)
            (ranges,) = await list_ranges(client, RangeCriteria(stream_id=placed.stream_id))
            assert len(ranges) == 1

    target.run(body)


# DESCRIBE_PD_CLUSTER


def test_describe_pd_cluster_describes_its_current_cluster_membership(target):
    """SPEC "DESCRIBE_PD_CLUSTER", "current cluster membership". Rule: pd-cluster."""

    async def body(target):
        async with target.pd() as client:
            request = DescribePlacementDriverClusterRequest(RangeServer(1, "here:1"), 1000)
            (answer,) = await client.ask(Opcode.DESCRIBE_PD_CLUSTER, request)
            assert is_success(answer.status)
            nodes = answer.cluster.nodes
            assert [node.is_leader for node in nodes].count(True) == 1
            assert all(node.name and ":" in node.advertise_addr for node in nodes)

    target.run(body)


def test_range_servers_are_described_by_id(target):
    """Rule: describe-servers."""

    async def body(target):
        async with target.streams() as (placed,), target.pd() as client:
            (answer,) = await client.ask(Opcode.DESCRIBE_SERVERS, DescribeServersRequest())
            assert is_success(answer.status)
            address = placed.server.advertise_addr
            (described,) = (
                each for each in answer.servers if each.server.advertise_addr == address
            )
            assert described.is_live
            assert described.led_range_cnt > 0

    target.run(body)


def test_a_server_that_is_being_drained_is_given_no_ranges(target):
    """Rule: drain-servers."""

    async def body(target):
        async with target.streams() as (placed,), target.pd() as client:
            drained = (placed.server.server_id,)
            (answer,) = await client.ask(Opcode.DRAIN_SERVERS, DrainServersRequest(0, drained))
            assert is_success(answer.status)
            try:
                wanted = CreateStreamsRequest(streams=(Stream(replica_nums=1),))
                (answer,) = await client.ask(Opcode.CREATE_STREAMS, wanted)
                (created,) = answer.create_responses
                servers = () if created.stream_range is None else created.stream_range.servers
                assert not any(each.server.server_id in drained for each in servers)
            finally:
                end = DrainServersRequest(0, drained, True)
                await client.ask(Opcode.DRAIN_SERVERS, end)

    target.run(body)


def test_grants_are_stored_together_and_may_be_repeated(target):
    """Rule: change-grants."""

    async def body(target):
        subject = "conformance"
        granted = tuple(Grant(subject, each, "orders-*") for each in ("append", "read"))
        async with target.pd() as client:

            async def change(*grants, is_revoked=False):
                request = ChangeGrantsRequest(0, grants, is_revoked)
                (answer,) = await client.ask(Opcode.CHANGE_GRANTS, request)
                return answer.status

            async def listed():
                (answer,) = await client.ask(Opcode.LIST_GRANTS, ListGrantsRequest(0, subject))
                return answer.grants

            assert not is_success(await change(*granted, Grant(subject, "admin", "*")))
            assert await listed() == ()
            for _ in range(2):
                assert is_success(await change(*granted))
                assert await listed() == granted
            for _ in range(2):
                assert is_success(await change(*granted, is_revoked=True))
                assert await listed() == ()

    target.run(body)


# Batches


def test_clients_send_multiple_requests_in_one_frame(target):
    """SPEC "Overview", "multiple requests in one frame": 10 000 of them. Rule: item-answers."""

    async def body(target):
        async with target.streams(2) as placed, target.pd() as client:
            one, other = (each.stream_id for each in placed)
            asked = (one, other, NO_STREAM, other) * 2_500
            results = await describe(client, *asked)
            described = [result.stream and result.stream.stream_id for result in results]
            assert described == [None if each == NO_STREAM else each for each in asked]
            owners = (RangeCriteria(stream_id=one), RangeCriteria(stream_id=other)) * 5_000
            ranges = await list_ranges(client, *owners)
            assert [len(found) for found in ranges] == [1] * 10_000

    target.run(body)


@pytest.mark.parametrize(
    "opcode",
    [
        Opcode.LIST_RANGES,
        Opcode.SEAL_RANGE,
        Opcode.CREATE_STREAMS,
        Opcode.DELETE_STREAMS,
        Opcode.DESCRIBE_STREAMS,
    ],
    ids=lambda opcode: opcode.name,
)
def test_a_frame_without_requests_is_answered(target, opcode):
    """SPEC "Overview": no request is a batch too. Rule: item-answers, response-flags."""

    async def body(target):
        async with target.pd() as client:
            (frame,) = await client.call(opcode, REQUEST_TABLES[opcode]())
            assert (frame.is_response, frame.is_end, frame.is_system_error) == (True, True, False)
            answer = decode_header(RESPONSE_TABLES[opcode], frame.header)
            assert is_success(answer.status)

    target.run(body)


def test_importing_ten_thousand_streams_takes_one_frame(target):
    """SPEC "CREATE_STREAMS", "very useful for importing metadata". Rule: create-streams."""

    async def body(target):
        new = (Stream(replica_nums=1),) * 10_000
        async with target.pd() as client:
            answers = await client.ask(Opcode.CREATE_STREAMS, CreateStreamsRequest(streams=new))
            results = [result for answer in answers for result in answer.create_responses]
            stream_ids = {result.stream.stream_id for result in results}
            assert len(stream_ids) == 10_000
            deleted = await delete(client, *stream_ids)
            assert sum(is_success(result.status) for result in deleted) == 10_000

    target.run(body)
