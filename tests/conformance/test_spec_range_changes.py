"""A range server reports what has changed: an extension, which others need not know."""

import pytest
from spec_target import Target, append, batch

from sbp_core.errors import StatusCode
from sbp_core.wire.headers import (
    DeleteStreamsRequest,
    DescribeRangesRequest,
    RangeId,
    SealRangesRequest,
    Stream,
    TrimmedStream,
    TrimStreamsRequest,
)
from sbp_core.wire.opcodes import Opcode


@pytest.fixture
def at_server(target):
    """Runs a test with a stream of six records, at its range server."""

    def run(test):
        async def body(target):
            async with (
                target.streams() as (placed,),
                Target(placed.server.advertise_addr).pd() as client,
            ):
                await append(client, (placed, batch(6)))
                await test(client, placed)

        target.run(body)

    return run


async def changes(client, revision, changed_max=1000):
    """The revision of a range server, and the ranges that changed since another one."""
    request = DescribeRangesRequest(since_revision=revision, changed_max=changed_max)
    answers = await client.ask(Opcode.DESCRIBE_RANGE, request)
    results = [result for answer in answers for result in answer.describe_responses]
    assert len({answer.revision for answer in answers}) == 1
    return answers[0].revision, results


def test_a_range_server_reports_which_ranges_have_changed(at_server):
    """`since_revision` of DESCRIBE_RANGE. Rule: describe-changed."""

    async def test(client, placed):
        stream_id = placed.stream_id
        revision, results = await changes(client, -1)
        assert revision >= 0
        assert not results
        (full,) = await client.ask(
            Opcode.DESCRIBE_RANGE, DescribeRangesRequest(0, (RangeId(stream_id, 0),))
        )
        assert full.revision >= revision
        await append(client, (placed, batch(4)))
        appended, results = await changes(client, revision)
        assert appended > revision
        (found,) = (each for each in results if each.stream_id == stream_id)
        assert found.stream_range.next_offset == 10
        await client.ask(Opcode.SEAL_RANGE, SealRangesRequest(0, (RangeId(stream_id, 0),)))
        sealed, results = await changes(client, appended)
        (found,) = (each for each in results if each.stream_id == stream_id)
        assert found.stream_range.end_offset == 10
        await client.ask(
            Opcode.DELETE_STREAMS, DeleteStreamsRequest(0, (Stream(stream_id=stream_id),))
        )
        _, results = await changes(client, sealed)
        (found,) = (each for each in results if each.stream_id == stream_id)
        assert found.status.code == StatusCode.NOT_FOUND

    at_server(test)


def test_a_range_server_does_not_guess_what_has_changed(at_server):
    """Since when it does not know, or more than is wanted. Rule: describe-changed."""

    async def test(client, placed):
        revision, _ = await changes(client, -1)
        await append(client, (placed, batch(4)))
        for since, changed_max in ((revision, 0), (0, 1000), (revision + 2**40, 1000)):
            assert await changes(client, since, changed_max) == (-1, [])

    at_server(test)


def test_a_range_server_reports_how_many_bytes_a_range_has(at_server):
    """`with_stored_bytes` of DESCRIBE_RANGE. Rule: describe-stored."""

    async def test(client, placed):
        named = (RangeId(placed.stream_id, 0), RangeId(placed.stream_id, 7))

        async def stored():
            request = DescribeRangesRequest(0, named, with_stored_bytes=True)
            answers = await client.ask(Opcode.DESCRIBE_RANGE, request)
            return [each.stored_bytes for answer in answers for each in answer.describe_responses]

        (six, absent) = await stored()
        assert six >= len(batch(6))
        assert absent == -1
        await append(client, (placed, batch(4)))
        both, _ = await stored()
        assert both - six >= len(batch(4))
        (answer,) = await client.ask(Opcode.DESCRIBE_RANGE, DescribeRangesRequest(0, named[:1]))
        assert [each.stored_bytes for each in answer.describe_responses] == [-1]
        await client.ask(
            Opcode.TRIM_STREAMS, TrimStreamsRequest(0, (TrimmedStream(placed.stream_id, 6),))
        )
        assert await stored() == [both - six, -1]

    at_server(test)
