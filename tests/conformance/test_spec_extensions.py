"""Extensions of this project to the specification: fields, status codes, offsets.

Another server may fail here and be a conforming one.
"""

import pytest
from msgspec.structs import replace
from spec_target import Target, append, append_request, batch, fetch_request

from sbp_core.errors import OffsetOutOfRangeError, StatusCode
from sbp_core.wire.headers import (
    AppendRequest,
    ClientRole,
    CommitCursorsRequest,
    CreateRangeRequest,
    CreateStreamsRequest,
    Cursor,
    DeleteStreamsRequest,
    DescribeCursorsRequest,
    DescribeRangesRequest,
    DescribeStreamsRequest,
    Feature,
    FetchResponse,
    HeartbeatRequest,
    ListRangesRequest,
    LookupOffsetInfo,
    LookupOffsetsRequest,
    RangeCriteria,
    RangeId,
    SealRangesRequest,
    Stream,
    StreamRange,
    decode_header,
    decode_system_error,
)
from sbp_core.wire.opcodes import Opcode

EARLIEST, LATEST = -2, -1
LONG_MS = 30_000


@pytest.fixture
def at_server(target):
    """Runs a test with a stream of six records in three batches, at its range server."""

    def run(test):
        async def body(target):
            async with (
                target.streams() as (placed,),
                Target(placed.server.advertise_addr).pd() as client,
            ):
                for count in (2, 3, 1):
                    await append(client, (placed, batch(count)))
                await test(client, placed)

        target.run(body)

    return run


async def fetch_one(client, placed, offset, **options):
    request = fetch_request((placed, offset), **options)
    (frame,) = await client.call(Opcode.FETCH, request)
    (result,) = decode_header(FetchResponse, frame.header).fetch_responses
    return result, bytes(frame.payload)


@pytest.mark.parametrize(("offset", "count"), [(EARLIEST, 3), (0, 3), (2, 2), (5, 1), (LATEST, 0)])
def test_minus_two_is_the_first_offset_and_minus_one_the_tail(at_server, offset, count):
    """The first and the last offset have names; `next_offset` is where to continue."""

    async def test(client, placed):
        result, payload = await fetch_one(client, placed, offset)
        assert (result.batch_count, result.next_offset) == (count, 6)
        assert (result.batch_length, result.status.code) == (len(payload), 0)

    at_server(test)


def test_an_offset_out_of_bounds_gets_the_bounds(at_server):
    """`detail` of OFFSET_OUT_OF_RANGE: the first and the next offset."""

    async def test(client, placed):
        for offset in (7, 2**62, -3):
            result, payload = await fetch_one(client, placed, offset, max_wait_ms=LONG_MS)
            assert (result.status.code, payload) == (StatusCode.OFFSET_OUT_OF_RANGE, b"")
            assert result.status.detail == OffsetOutOfRangeError.encode_bounds(0, 6)

    at_server(test)


@pytest.mark.parametrize(("end", "count"), [(1, 1), (2, 1), (3, 2), (6, 3), (0, 0)])
def test_an_end_offset_excludes_later_batches(at_server, end, count):
    """A fetch that has an end does not wait for more."""

    async def test(client, placed):
        request = fetch_request((placed, 0), max_wait_ms=LONG_MS, min_bytes=1 << 20)
        infos = tuple(replace(info, end_offset=end) for info in request.fetch_requests)
        (frame,) = await client.call(Opcode.FETCH, replace(request, fetch_requests=infos))
        (result,) = decode_header(FetchResponse, frame.header).fetch_responses
        assert (result.batch_count, result.status.code) == (count, 0)

    at_server(test)


@pytest.mark.parametrize("how", ["stream_range", "stream_id"])
def test_a_stream_is_named_by_its_range_or_by_its_id_alone(at_server, how):
    """The specification's stream_id, and the range of servers in the wild."""

    async def test(client, placed):
        request, payload = append_request((placed, batch()))
        (info,) = request.append_requests
        unset = replace(info, **{how: None if how == "stream_range" else -1})
        (answer,) = await client.ask(Opcode.APPEND, AppendRequest(0, (unset,)), payload)
        assert [each.base_offset for each in answer.append_responses] == [6]
        fetched = fetch_request((placed, 6))
        (info,) = fetched.fetch_requests
        unset = replace(info, **{how: None if how == "stream_range" else -1})
        (frame,) = await client.call(Opcode.FETCH, replace(fetched, fetch_requests=(unset,)))
        assert len(frame.payload) == len(payload[0])

    at_server(test)


@pytest.mark.parametrize("field", [{"writer_id": "w"}, {"sequence": 1}, {"txn_id": "t"}])
def test_a_guarantee_that_is_not_given_is_refused(at_server, field):
    """No field that asks for more than the server does is ignored, nor half of a number."""

    async def test(client, placed):
        request, payload = append_request((placed, batch()))
        info = replace(request.append_requests[0], **field)
        (answer,) = await client.ask(Opcode.APPEND, AppendRequest(0, (info,)), payload)
        assert answer.append_responses[0].status.code == StatusCode.INVALID_REQUEST
        result, _ = await fetch_one(client, placed, LATEST)
        assert result.next_offset == 6

    at_server(test)


def test_a_range_server_reports_errors_by_code(at_server):
    """RANGE_NOT_FOUND, RANGE_ALREADY_SEALED, NOT_FOUND, INVALID_REQUEST of single items."""

    async def test(client, placed):
        async def codes(data, **fields):
            request, payload = append_request((placed, data))
            info = replace(request.append_requests[0], **fields)
            (answer,) = await client.ask(Opcode.APPEND, AppendRequest(0, (info,)), payload)
            return [each.status.code for each in answer.append_responses]

        other = StreamRange(stream_id=placed.stream_id, range_index=9, end_offset=-1)
        assert await codes(batch(), stream_range=other) == [StatusCode.RANGE_NOT_FOUND]
        assert await codes(b"no batch at all") == [StatusCode.INVALID_REQUEST]
        asked = RangeId(placed.stream_id, 0)
        await client.ask(Opcode.SEAL_RANGE, SealRangesRequest(0, (asked,)))
        assert await codes(batch()) == [StatusCode.RANGE_ALREADY_SEALED]
        await client.ask(
            Opcode.DELETE_STREAMS, DeleteStreamsRequest(0, (Stream(stream_id=placed.stream_id),))
        )
        assert await codes(batch()) == [StatusCode.NOT_FOUND]
        result, _ = await fetch_one(client, placed, 0, max_wait_ms=LONG_MS)
        assert result.status.code == StatusCode.NOT_FOUND
        (answer,) = await client.ask(Opcode.DESCRIBE_RANGE, DescribeRangesRequest(0, (asked,)))
        assert answer.describe_responses[0].status.code == StatusCode.NOT_FOUND

    at_server(test)


def test_a_seal_names_the_last_range_by_minus_one(at_server):
    """Range index -1 is the stream's last range, at either server."""

    async def test(client, placed):
        asked = SealRangesRequest(0, (RangeId(placed.stream_id, -1),))
        for _ in range(2):
            (answer,) = await client.ask(Opcode.SEAL_RANGE, asked)
            assert [each.stream_range.end_offset for each in answer.seal_responses] == [6]

    at_server(test)


def test_metadata_that_did_not_change_is_not_sent_again(target):
    """`since_revision` of LIST_RANGES."""

    async def body(target):
        async with target.streams() as (placed,), target.pd() as client:
            owners = (RangeCriteria(stream_id=placed.stream_id),)
            request = ListRangesRequest(range_owners=owners)
            (answer,) = await client.ask(Opcode.LIST_RANGES, request)
            assert len(answer.list_responses) == 1
            again = replace(request, since_revision=answer.revision)
            (unchanged,) = await client.ask(Opcode.LIST_RANGES, again)
            assert (unchanged.list_responses, unchanged.revision) == ((), answer.revision)
            async with target.streams():
                (changed,) = await client.ask(Opcode.LIST_RANGES, again)
            assert len(changed.list_responses) == 1
            assert changed.revision > answer.revision

    target.run(body)


def test_a_commit_that_the_metadata_never_had_is_reported_and_nothing_is_refused(target):
    """`lacks_commit` of LIST_RANGES. Rule: list-commit."""

    async def body(target):
        async with target.streams() as (placed,), target.pd() as client:
            owners = (RangeCriteria(stream_id=placed.stream_id),)
            request = ListRangesRequest(range_owners=owners)
            (reported,) = await client.ask(Opcode.LIST_RANGES, request)
            assert (reported.store_commit >= 0, reported.lacks_commit) == (True, False)
            for number, life, is_lacking in (
                (reported.store_commit, reported.store_life, False),
                (0, reported.store_life, False),
                (2**63 - 1, reported.store_life, True),
                (reported.store_commit, reported.store_life[:-1], True),
                (reported.store_commit, "another", True),
                (reported.store_commit, "", True),
            ):
                known = replace(request, store_commit=number, store_life=life)
                (answer,) = await client.ask(Opcode.LIST_RANGES, known)
                assert (answer.lacks_commit, len(answer.list_responses)) == (is_lacking, 1)
                assert (answer.store_commit, answer.store_life) >= (reported.store_commit, "")

    target.run(body)


def test_streams_have_names(target):
    """`name` of a stream: CONFLICT when taken; DESCRIBE_STREAMS by name, and of all streams."""

    async def body(target):
        async with target.streams() as (placed,), target.pd() as client:
            name = f"conformance-{placed.stream_id}"
            wanted = CreateStreamsRequest(0, (Stream(name=name), Stream(name=name)))
            (made,) = await client.ask(Opcode.CREATE_STREAMS, wanted)
            codes = [result.status.code for result in made.create_responses]
            assert codes == [0, StatusCode.CONFLICT]
            stream = made.create_responses[0].stream
            request = DescribeStreamsRequest(
                stream_ids=(placed.stream_id,), names=(name, f"{name}-unknown")
            )
            answers = await client.ask(Opcode.DESCRIBE_STREAMS, request)
            results = [result for answer in answers for result in answer.describe_responses]
            assert [each.status.code for each in results] == [0, 0, StatusCode.NOT_FOUND]
            assert results[1].stream == stream
            answers = await client.ask(
                Opcode.DESCRIBE_STREAMS, DescribeStreamsRequest(all_streams=True)
            )
            found = [result.stream for answer in answers for result in answer.describe_responses]
            assert stream in found
            assert [each.stream_id for each in found] == sorted(each.stream_id for each in found)
            await client.ask(
                Opcode.DELETE_STREAMS,
                DeleteStreamsRequest(0, (Stream(stream_id=stream.stream_id),)),
            )

    target.run(body)


def test_a_placement_driver_reports_errors_by_code(target):
    """CREATE_RANGE_BEFORE_SEAL, INVALID_REQUEST, NOT_FOUND, UNSUPPORTED_OPERATION."""

    async def body(target):
        async with target.streams() as (placed,), target.pd() as client:
            for stream_id, code in (
                (placed.stream_id, StatusCode.CREATE_RANGE_BEFORE_SEAL),
                (2**62, StatusCode.NOT_FOUND),
            ):
                wanted = CreateRangeRequest(0, StreamRange(stream_id=stream_id))
                (answer,) = await client.ask(Opcode.CREATE_RANGE, wanted)
                assert answer.status.code == code
            request = ListRangesRequest(range_owners=(RangeCriteria(),))
            (answer,) = await client.ask(Opcode.LIST_RANGES, request)
            assert answer.list_responses[0].status.code == StatusCode.INVALID_REQUEST
            request = CreateStreamsRequest(0, (Stream(replica_nums=127),))
            (answer,) = await client.ask(Opcode.CREATE_STREAMS, request)
            assert answer.create_responses[0].status.code == StatusCode.INVALID_REQUEST
            (frame,) = await client.call(Opcode.APPEND, AppendRequest())
            status = decode_system_error(frame.header).status
            assert status.code == StatusCode.UNSUPPORTED_OPERATION

    target.run(body)


def test_a_member_of_another_cluster_is_refused(target):
    """`cluster_id` of HEARTBEAT, at both servers, from any member."""

    async def body(target):
        async with target.streams() as (placed,), target.pd() as pd:
            (answer,) = await pd.ask(Opcode.HEARTBEAT, HeartbeatRequest(client_id="c"))
            own = answer.cluster_id
            assert own
            for endpoint in (target.endpoint, placed.server.advertise_addr):
                async with Target(endpoint).pd() as client:
                    for role in (ClientRole.UNSPECIFIED, ClientRole.PD, ClientRole.CLIENT):
                        for cluster_id in (None, own, "x"):
                            beat = HeartbeatRequest("c", role, cluster_id=cluster_id)
                            (answer,) = await client.ask(Opcode.HEARTBEAT, beat)
                            assert answer.cluster_id == own
                            assert (answer.client_id, answer.client_role) == ("c", role)
                            if cluster_id == "x":
                                assert answer.status.code == StatusCode.INVALID_REQUEST
                            elif role != ClientRole.PD:
                                assert answer.status.code == 0
                            elif cluster_id is None:
                                assert answer.status.code == StatusCode.INVALID_REQUEST

    target.run(body)


def test_features_that_are_unknown_or_not_offered_are_not_in_the_answer(target):
    """`features` of HEARTBEAT, at both servers. Rule: features-offered, features-unknown."""

    async def body(target):
        async with target.streams() as (placed,):
            for endpoint in (target.endpoint, placed.server.advertise_addr):
                for offered in ((), ("telepathy",), ("telepathy", "deadline", "deadline")):
                    async with Target(endpoint).pd() as client:
                        beat = HeartbeatRequest(features=tuple(map(Feature, offered)))
                        (answer,) = await client.ask(Opcode.HEARTBEAT, beat)
                        accepted = [each.name for each in answer.features]
                        assert sorted(accepted) == sorted({*offered} & {"deadline"})
                        await client.call(Opcode.PING)

    target.run(body)


async def look_up(client, *items):
    """The answers to (stream id, time in us, first offset) in their order."""
    infos = tuple(
        LookupOffsetInfo(stream_id, index, timestamp_us, start_offset)
        for index, (stream_id, timestamp_us, start_offset) in enumerate(items)
    )
    answers = await client.ask(Opcode.LOOKUP_OFFSETS, LookupOffsetsRequest(10_000, infos))
    results = [result for answer in answers for result in answer.lookup_responses]
    return sorted(results, key=lambda result: result.request_index)


def test_a_record_is_found_by_the_time_of_its_append(target):
    """LOOKUP_OFFSETS. Rule: lookup-offsets, lookup-time, item-answers."""

    async def body(target):
        async with (
            target.streams() as (placed,),
            Target(placed.server.advertise_addr).pd() as client,
        ):
            stream_id = placed.stream_id
            assert [each.offset for each in await look_up(client, (stream_id, 0, 0))] == [0]
            times = []
            for count in (2, 3, 1):
                (answer,) = await client.ask(Opcode.APPEND, *append_request((placed, batch(count))))
                times += [answer.append_responses[0].stream_append_time_ms] * count
            for time_ms in {0, *times, *(each + 1 for each in times), times[-1] + 10**9}:
                for start in (0, 1, 6, 9):
                    expected = [at for at in range(start, 6) if times[at] >= time_ms]
                    (found,) = await look_up(client, (stream_id, time_ms * 1000, start))
                    assert found.status.code == 0
                    assert found.offset == (expected[0] if expected else 6)
                    assert found.append_time_ms == (times[expected[0]] if expected else -1)
            await client.ask(Opcode.SEAL_RANGE, SealRangesRequest(0, (RangeId(stream_id, 0),)))
            many = [(stream_id, times[2] * 1000, start) for start in range(7)] * 3
            answers = await look_up(client, *many)
            assert [each.stream_id for each in answers] == [stream_id] * 21
            assert [each.request_index for each in answers] == list(range(21))
            assert answers[6].offset == 6

    target.run(body)


def test_a_lookup_that_makes_no_sense_fails_alone(at_server):
    """LOOKUP_OFFSETS. Rule: lookup-refused, partial-failure."""

    async def test(client, placed):
        stream_id = placed.stream_id
        answers = await look_up(
            client, (stream_id, -1, 0), (stream_id, 0, -1), (2**62, 0, 0), (stream_id, 0, 0)
        )
        assert [each.status.code for each in answers] == [
            StatusCode.INVALID_REQUEST,
            StatusCode.INVALID_REQUEST,
            StatusCode.RANGE_NOT_FOUND,
            0,
        ]
        gone = DeleteStreamsRequest(0, (Stream(stream_id=stream_id),))
        await client.ask(Opcode.DELETE_STREAMS, gone)
        (answer,) = await look_up(client, (stream_id, 0, 0))
        assert answer.status.code == StatusCode.NOT_FOUND

    at_server(test)


async def commit_cursors(client, group, *cursors):
    """The answers to (stream id, next offset) in their order."""
    wanted = tuple(Cursor(stream_id, offset) for stream_id, offset in cursors)
    request = CommitCursorsRequest(10_000, group, wanted)
    answers = await client.ask(Opcode.COMMIT_CURSORS, request)
    return [cursor for answer in answers for cursor in answer.cursors]


async def cursors_of(client, group, *stream_ids):
    """The described cursors, without the status of the group."""
    request = DescribeCursorsRequest(10_000, group, stream_ids)
    answers = await client.ask(Opcode.DESCRIBE_CURSORS, request)
    return [cursor for answer in answers for cursor in answer.cursors]


def offsets_of(cursors):
    return [(each.stream_id, each.next_offset) for each in cursors]


def test_a_cursor_is_what_was_committed_last(target):
    """COMMIT_CURSORS, DESCRIBE_CURSORS. Rule: commit-cursors, describe-cursors."""

    async def body(target):
        async with target.streams(3) as placed, target.pd() as client:
            one, two, three = sorted(each.stream_id for each in placed)
            group, other = f"conformance-{one}", f"conformance-{one}.other"
            answers = await commit_cursors(client, group, (two, 5), (one, 0))
            assert offsets_of(answers) == [(two, 5), (one, 0)]
            assert all(each.committed_at_ms > 1_600_000_000_000 for each in answers)
            await commit_cursors(client, group, (two, 3))
            await commit_cursors(client, other, (two, 9))
            assert offsets_of(await cursors_of(client, group)) == [(one, 0), (two, 3)]
            some = await cursors_of(client, group, two, three, one)
            assert offsets_of(some) == [(two, 3), (three, -1), (one, 0)]
            assert [each.status.code for each in some] == [0, 0, 0]
            named = {each.group: each.committed_at_ms for each in await cursors_of(client, None)}
            assert named[other] == (await cursors_of(client, other))[0].committed_at_ms
            assert group in named

    target.run(body)


def test_a_cursor_goes_when_it_is_forgotten_or_its_stream_deleted(target):
    """COMMIT_CURSORS with -1. Rule: forget-cursors."""

    async def body(target):
        async with target.pd() as client:
            async with target.streams(2) as placed:
                one, two = (each.stream_id for each in placed)
                group = f"conformance-{one}"
                await commit_cursors(client, group, (one, 1), (two, 2))
                for _ in range(2):
                    (forgotten,) = await commit_cursors(client, group, (one, -1))
                    assert forgotten.status.code == 0
                assert offsets_of(await cursors_of(client, group)) == [(two, 2)]
            assert await cursors_of(client, group) == []
            assert group not in {each.group for each in await cursors_of(client, None)}

    target.run(body)


def test_a_cursor_that_makes_no_sense_fails_alone(target):
    """COMMIT_CURSORS. Rule: cursor-refused, partial-failure."""

    async def body(target):
        async with target.streams() as (placed,), target.pd() as client:
            group = f"conformance-{placed.stream_id}"
            answers = await commit_cursors(
                client, group, (2**62, 1), (placed.stream_id, -2), (placed.stream_id, 4)
            )
            assert [each.status.code for each in answers] == [
                StatusCode.NOT_FOUND,
                StatusCode.INVALID_REQUEST,
                0,
            ]
            assert offsets_of(await cursors_of(client, group)) == [(placed.stream_id, 4)]

    target.run(body)


@pytest.mark.parametrize("group", ["", "a b", "ä", "x" * 250])
def test_a_group_needs_a_name_that_can_be_written_anywhere(target, group):
    """COMMIT_CURSORS, DESCRIBE_CURSORS. Rule: cursor-group."""

    async def body(target):
        async with target.pd() as client:
            for opcode, request in (
                (Opcode.COMMIT_CURSORS, CommitCursorsRequest(0, group)),
                (Opcode.DESCRIBE_CURSORS, DescribeCursorsRequest(0, group)),
            ):
                (frame,) = await client.call(opcode, request)
                status = decode_system_error(frame.header).status
                assert status.code == StatusCode.INVALID_REQUEST

    target.run(body)
