"""Differences of servers that speak elasticstream-2023-04 from the specification.

They are checked against the tables of their peers, which know none of this project's fields.
"""

import re
from pathlib import Path

import pytest
from msgspec import Struct
from msgspec.structs import replace
from spec_target import (
    Target,
    Wire,
    append,
    append_request,
    batch,
    fetch_request,
    frame,
    list_ranges,
)

from sbp_core.errors import StatusCode
from sbp_core.records.envelope import split_envelopes
from sbp_core.wire.dialect import Dialect
from sbp_core.wire.headers import (
    RESPONSE_TABLES,
    AppendRequest,
    CreateRangeRequest,
    CreateStreamsRequest,
    DeleteStreamsRequest,
    DescribePlacementDriverClusterRequest,
    DescribeRangesRequest,
    DescribeRangesResponse,
    DescribeStreamsRequest,
    HeartbeatRequest,
    IdAllocationRequest,
    ListRangesRequest,
    RangeCriteria,
    RangeId,
    RangeServer,
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
    decode_system_error,
    encode_header,
)
from sbp_core.wire.opcodes import Opcode

SCHEMA = Path(__file__).parent / "elasticstream-2023-04.fbs"
NO_STREAM = 2**62
SHORT_MS, LONG_MS = 200, 30_000
ONE_FRAME = 0x03

pytestmark = [
    pytest.mark.dialect,
    pytest.mark.parametrize("target", [Dialect.ELASTICSTREAM_2023_04], indirect=True),
]


@pytest.fixture(autouse=True)
def speaking(target):
    if target.dialect is not Dialect.ELASTICSTREAM_2023_04:
        pytest.skip("the servers at this endpoint speak as the specification does")


def required_fields():
    """(table, field) of everything that readers of the dialect do not do without."""
    text = SCHEMA.read_text(encoding="utf-8")
    for table, body in re.findall(r"^table (\w+) \{(.*?)\}$", text, re.MULTILINE | re.DOTALL):
        for name in re.findall(r"(\w+): [^;]*\bid: \d+, required\)", body):
            yield table, name


REQUIRED = sorted(required_fields())


def tables_in(value):
    """A table and all tables in it."""
    if isinstance(value, Struct):
        yield value
        for name in value.__struct_fields__:
            yield from tables_in(getattr(value, name))
    elif isinstance(value, tuple):
        for each in value:
            yield from tables_in(each)


def absent_fields(header):
    """Fields that a reader of the dialect requires and that are absent, addresses included."""
    found = list(tables_in(header))
    wanted = [*REQUIRED, ("RangeServer", "advertise_addr")]
    return [
        f"{name}.{field}"
        for table in found
        for name, field in wanted
        if type(table).__name__ == name and getattr(table, field) in (None, ())
    ]


async def answer_to(client, opcode, header, payload=()):
    """The one frame that answers, decoded."""
    (found,) = await client.call(opcode, header, payload)
    assert found.flags == ONE_FRAME
    decoded = decode_header(RESPONSE_TABLES[opcode], found.header)
    assert absent_fields(decoded) == []
    return decoded


def pd_requests(placed, server_id):
    """Requests that a placement driver grants, in an order that works; the id is unknown."""
    stream = Stream(stream_id=placed.stream_id, replica_nums=1)
    server = placed.server
    yield Opcode.HEARTBEAT, HeartbeatRequest("c")
    yield Opcode.ALLOCATE_ID, IdAllocationRequest(1000, "conformance")
    reporting = RangeServer(server_id, "127.0.0.1:2")
    yield Opcode.REPORT_METRICS, ReportMetricsRequest(reporting, disk_free_space=0)
    yield Opcode.DESCRIBE_PD_CLUSTER, DescribePlacementDriverClusterRequest(server, 1000)
    yield Opcode.DESCRIBE_STREAMS, DescribeStreamsRequest(1000, (placed.stream_id,))
    yield Opcode.UPDATE_STREAMS, UpdateStreamsRequest(1000, (stream,))
    yield Opcode.SEAL_RANGE, SealRangesRequest(10_000, (RangeId(placed.stream_id, 0),))
    yield Opcode.TRIM_STREAMS, TrimStreamsRequest(10_000, (TrimmedStream(placed.stream_id, 0),))
    owners = (RangeCriteria(stream_id=placed.stream_id), RangeCriteria(range_server=server))
    yield Opcode.LIST_RANGES, ListRangesRequest(1000, owners)
    yield Opcode.DELETE_STREAMS, DeleteStreamsRequest(1000, (stream,))


def server_requests(placed):
    """Requests that a range server grants, in an order that works."""
    asked = RangeId(placed.stream_id, 0)
    yield Opcode.HEARTBEAT, HeartbeatRequest("c"), []
    sync = StreamRanges(placed.stream_id, (placed.stream_range,))
    yield Opcode.SYNC_RANGES, SyncRangesRequest(10_000, (sync,)), []
    yield Opcode.APPEND, *append_request((placed, batch(3)), (placed, batch(1)))
    yield Opcode.FETCH, fetch_request((placed, 0), (placed, 3)), []
    yield Opcode.DESCRIBE_RANGE, DescribeRangesRequest(1000, (asked,)), []
    trim = TrimStreamsRequest(10_000, (TrimmedStream(placed.stream_id, 1),))
    yield Opcode.TRIM_STREAMS, trim, []
    yield Opcode.SEAL_RANGE, SealRangesRequest(10_000, (asked,)), []
    streams = (Stream(stream_id=placed.stream_id),)
    yield Opcode.DELETE_STREAMS, DeleteStreamsRequest(1000, streams), []


def test_every_status_is_there_and_success_is_1200(target):
    """An answer and each of its results have a status. Rule: dialect-success."""

    async def body(target):
        assert ("FetchResult", "status") in REQUIRED
        async with target.streams(2) as (one, other), target.pd() as client:
            made = await answer_to(
                client, Opcode.CREATE_STREAMS, CreateStreamsRequest(1000, (Stream(),))
            )
            answers = [made]
            async with Target(other.server.advertise_addr).pd() as server:
                for opcode, header, payload in server_requests(other):
                    answers.append(await answer_to(server, opcode, header, payload))
            (allocated,) = await client.ask(Opcode.ALLOCATE_ID, IdAllocationRequest(1000, "h"))
            answers += [await answer_to(client, *each) for each in pd_requests(one, allocated.id)]
            for table in (table for answer in answers for table in tables_in(answer)):
                if hasattr(table, "status"):
                    assert table.status.code == StatusCode.OK, table
            gone = (Stream(stream_id=made.create_responses[0].stream.stream_id),)
            await answer_to(client, Opcode.DELETE_STREAMS, DeleteStreamsRequest(1000, gone))

    target.run(body)


def test_failures_have_the_codes_of_the_dialect(target):
    """1400 and 1498 in place of 2 and 3, system errors too. Rule: dialect-codes."""

    async def body(target):
        async with target.streams() as (placed,), target.pd() as client:
            answer = await answer_to(
                client, Opcode.LIST_RANGES, ListRangesRequest(0, (RangeCriteria(),))
            )
            assert answer.list_responses[0].status.code == StatusCode.BAD_REQUEST
            for opcode, header, code in (
                (Opcode.DESCRIBE_STREAMS, b"\xff" * 24, StatusCode.BAD_REQUEST),
                (Opcode.APPEND, AppendRequest(), StatusCode.UNSUPPORTED_OPERATION),
            ):
                (found,) = await client.call(opcode, header)
                assert found.flags == ONE_FRAME | 0x04
                assert decode_system_error(found.header).status.code == code
            async with Target(placed.server.advertise_addr).pd() as server:
                asked = append_request((placed, b"no batch"))
                answer = await answer_to(server, Opcode.APPEND, *asked)
            assert answer.append_responses[0].status.code == StatusCode.BAD_REQUEST

    target.run(body)


def test_the_reason_of_a_closed_connection_has_a_code_of_the_dialect(target):
    """A negative call id. Rule: dialect-codes."""
    with Wire(target.endpoint) as wire:
        refusal = wire.ask(frame(Opcode.PING, 2**31))
    assert decode_system_error(refusal.header).status.code == StatusCode.BAD_REQUEST


def test_an_answer_is_one_frame_however_many_results_it_has(target):
    """Results of many items, in order. Rule: dialect-one-frame."""

    async def body(target):
        async with target.streams(2) as placed, target.pd() as client:
            asked = (placed[0].stream_id, NO_STREAM, placed[1].stream_id) * 2_000
            request = DescribeStreamsRequest(stream_ids=asked)
            answer = await answer_to(client, Opcode.DESCRIBE_STREAMS, request)
            assert tuple(each.stream_id for each in answer.describe_responses) == asked

    target.run(body)


def test_a_fetch_is_one_frame_that_never_grows_too_large(target):
    """Twenty MiB are stored, one frame has a part of them. Rule: dialect-one-frame, dialect-fetch.

    A client that asks for the rest gets all of it.
    """

    async def body(target):
        async with (
            target.streams() as (placed,),
            Target(placed.server.advertise_addr).pd() as client,
        ):
            for _ in range(20):
                await append(client, (placed, batch(1, bytes(1 << 20))))
            waiting = list(range(20))
            request = fetch_request(*((placed, offset) for offset in waiting), max_bytes=1)
            while waiting:
                infos = tuple(request.fetch_requests[offset] for offset in waiting)
                (found,) = await client.call(Opcode.FETCH, replace(request, fetch_requests=infos))
                assert found.flags == ONE_FRAME
                answer = decode_header(RESPONSE_TABLES[Opcode.FETCH], found.header)
                results = answer.fetch_responses
                assert [each.request_index for each in results] == waiting
                got = [each.request_index for each in results if each.batch_count]
                assert got == waiting[: len(got)] != []
                assert [each.base_offset for each in split_envelopes(found.payload)] == got
                rest = {each.status.code for each in results if not each.batch_count}
                assert rest <= {StatusCode.NO_NEW_RECORD}
                waiting = waiting[len(got) :]

    target.run(body)


def test_a_fetch_that_finds_nothing_has_a_code(target):
    """At the tail, at the end of a sealed range, and beside an error. Rule: dialect-fetch."""

    async def body(target):
        async with (
            target.streams() as (placed,),
            Target(placed.server.advertise_addr).pd() as client,
        ):
            await append(client, (placed, batch(2)))
            for max_wait_ms in (0, SHORT_MS):
                request = fetch_request((placed, 2), max_wait_ms=max_wait_ms)
                answer = await answer_to(client, Opcode.FETCH, request)
                (result,) = answer.fetch_responses
                assert (result.batch_count, result.status.code) == (0, StatusCode.NO_NEW_RECORD)
            request = fetch_request((placed, 2), (placed, 99), (placed, 0), max_wait_ms=LONG_MS)
            answer = await answer_to(client, Opcode.FETCH, request)
            nothing, outside, found = (each.status.code for each in answer.fetch_responses)
            assert nothing == StatusCode.NO_NEW_RECORD
            assert (outside, found) == (StatusCode.OFFSET_OUT_OF_RANGE, StatusCode.OK)
            asked = SealRangesRequest(10_000, (RangeId(placed.stream_id, 0),))
            await answer_to(client, Opcode.SEAL_RANGE, asked)
            request = fetch_request((placed, 2), max_wait_ms=LONG_MS)
            answer = await answer_to(client, Opcode.FETCH, request)
            assert answer.fetch_responses[0].status.code == StatusCode.NO_NEW_RECORD

    target.run(body)


def test_a_range_server_describes_ranges_when_it_is_asked_with_0x2004(target):
    """Which is CREATE_RANGE to a placement driver. Rule: dialect-describe-ranges."""

    async def body(target):
        async with target.streams() as (placed,), target.pd() as client:
            async with Target(placed.server.advertise_addr).pd() as server:
                await append(server, (placed, batch(4)))
            header = encode_header(DescribeRangesRequest(0, (RangeId(placed.stream_id, 0),)))
            with Wire(placed.server.advertise_addr) as wire:
                for call_id, opcode in enumerate((0x2004, 0x2005), 1):
                    found = wire.ask(frame(opcode, call_id, header))
                    assert (found.opcode, found.flags) == (opcode, ONE_FRAME)
                    answer = decode_header(DescribeRangesResponse, found.header)
                    assert answer.describe_responses[0].stream_range.next_offset == 4
            wanted = CreateRangeRequest(0, StreamRange(stream_id=placed.stream_id))
            refused = await answer_to(client, Opcode.CREATE_RANGE, wanted)
            assert refused.status.code == StatusCode.CREATE_RANGE_BEFORE_SEAL

    target.run(body)


def test_an_unknown_stream_has_no_ranges(target):
    """LIST_RANGES is no way to find out that it is unknown. Rule: dialect-unknown-stream."""

    async def body(target):
        async with target.streams() as (placed,), target.pd() as client:
            owners = [RangeCriteria(stream_id=each) for each in (NO_STREAM, placed.stream_id)]
            listed = await list_ranges(client, *owners)
            assert [len(ranges) for ranges in listed] == [0, 1]
            both = RangeCriteria(RangeServer(placed.server.server_id), NO_STREAM)
            assert await list_ranges(client, both) == [[]]

    target.run(body)


def test_goaway_is_answered(target):
    """With the call id that it came with. Rule: dialect-goaway."""
    with Wire(target.endpoint) as wire:
        answer = wire.ask(frame(Opcode.GOAWAY, 5))
    assert (answer.opcode, answer.flags, answer.call_id) == (Opcode.GOAWAY, ONE_FRAME, 5)
    assert (answer.header, answer.payload) == (b"", b"")
