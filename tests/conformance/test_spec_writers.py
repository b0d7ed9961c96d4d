"""Appends whose writers number them, an extension: another server may refuse them all."""

import pytest
from msgspec.structs import replace
from spec_target import append_request, batch

from sbp_core.errors import StatusCode, WriterGapError
from sbp_core.wire.headers import (
    DescribeRangesRequest,
    RangeId,
    SealRangesRequest,
    TrimmedStream,
    TrimStreamsRequest,
)
from sbp_core.wire.opcodes import Opcode


async def send(client, placed, *numbers, writer="conformance", record_count=1):
    """The results of one frame of batches with these sequences."""
    request, payload = append_request(*[(placed, batch(record_count))] * len(numbers))
    infos = tuple(
        replace(info, writer_id=writer, sequence=sequence)
        for info, sequence in zip(request.append_requests, numbers, strict=True)
    )
    request = replace(request, append_requests=infos)
    answers = await client.ask(Opcode.APPEND, request, payload)
    results = [result for answer in answers for result in answer.append_responses]
    return sorted(results, key=lambda result: result.request_index)


async def tail(client, placed):
    """The offset after the last record."""
    request = DescribeRangesRequest(0, (RangeId(placed.stream_id, -1),))
    (answer,) = await client.ask(Opcode.DESCRIBE_RANGE, request)
    return answer.describe_responses[0].stream_range.next_offset


@pytest.fixture
def at_server(target):
    """Runs a test with a new stream, at its range server."""

    def run(test):
        async def body(target):
            async with target.streams() as (placed,):
                server = type(target)(placed.server.advertise_addr)
                async with server.pd() as client:
                    await test(client, placed)

        target.run(body)

    return run


def test_a_repeat_has_the_answer_of_the_first_one(at_server):
    """`writer_id` and `sequence` of APPEND, in one frame and in several. Rule: writer-repeat."""

    async def test(client, placed):
        first = await send(client, placed, 0, 1, 2)
        assert [result.base_offset for result in first] == [0, 1, 2]
        assert await send(client, placed, 0, 1, 2) == first
        again = await send(client, placed, 2, 2, 3, 3)
        assert [result.base_offset for result in again] == [2, 2, 3, 3]
        assert again[0].stream_append_time_ms == first[2].stream_append_time_ms
        assert await tail(client, placed) == 4

    at_server(test)


def test_a_repeat_is_known_when_its_records_are_gone_and_its_range_is_sealed(at_server):
    """`writer_id` and `sequence` of APPEND. Rule: writer-repeat."""

    async def test(client, placed):
        first = await send(client, placed, 0, 1)
        trim = TrimStreamsRequest(0, (TrimmedStream(placed.stream_id, 2),))
        await client.ask(Opcode.TRIM_STREAMS, trim)
        assert await send(client, placed, 0, 1) == first
        seal = SealRangesRequest(0, (RangeId(placed.stream_id, 0),))
        await client.ask(Opcode.SEAL_RANGE, seal)
        assert await send(client, placed, 0, 1) == first
        (refused,) = await send(client, placed, 2)
        assert refused.status.code == StatusCode.RANGE_ALREADY_SEALED

    at_server(test)


def test_a_gap_is_refused_with_the_sequence_that_is_expected(at_server):
    """`detail` of the status. Rule: writer-gap, partial-failure."""

    async def test(client, placed):
        results = await send(client, placed, 0, 2, 3, 1)
        assert [result.status.code for result in results] == [
            0,
            StatusCode.WRITER_GAP,
            StatusCode.WRITER_GAP,
            0,
        ]
        assert results[1].status.detail == WriterGapError.encode_expected(1)
        (unknown,) = await send(client, placed, 1, writer="another")
        assert unknown.status.code == StatusCode.WRITER_UNKNOWN
        assert await tail(client, placed) == 2

    at_server(test)


@pytest.mark.parametrize(
    ("writer", "sequence", "record_count"),
    [("", 0, 1), ("a b", 0, 1), ("x" * 129, 0, 1), ("ä", 0, 1), ("one", -2, 1), ("known", 0, 2)],
)
def test_a_number_that_makes_no_sense_is_refused(at_server, writer, sequence, record_count):
    """Ids, sequences, and another batch under a number that was used. Rule: writer-refused."""

    async def test(client, placed):
        await send(client, placed, 0, writer="known")
        (refused,) = await send(client, placed, sequence, writer=writer, record_count=record_count)
        assert refused.status.code == StatusCode.INVALID_REQUEST
        assert await tail(client, placed) == 1

    at_server(test)
