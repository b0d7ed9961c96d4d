"""Staged appends and END_TXN, an extension: another server may refuse them all."""

import dataclasses

import pytest
from msgspec.structs import replace
from spec_target import append, append_request, batch

from sbp_core.errors import StatusCode, WriterGapError
from sbp_core.records import split_envelopes
from sbp_core.wire.headers import (
    DescribeRangesRequest,
    EndTxnInfo,
    EndTxnRequest,
    FetchInfo,
    FetchRequest,
    FetchResponse,
    RangeId,
    SealRangesRequest,
    StreamRange,
    decode_header,
)
from sbp_core.wire.opcodes import Opcode


async def stage(client, placed, *numbers, txn_id="conformance", record_count=1, **changes):
    """The results of one frame of batches with these sequences; each has its number."""
    bodies = [(placed, batch(record_count, b"%s-%d" % (txn_id.encode(), n))) for n in numbers]
    request, payload = append_request(*bodies)
    infos = tuple(
        replace(info, txn_id=txn_id, sequence=sequence, **changes)
        for info, sequence in zip(request.append_requests, numbers, strict=True)
    )
    answers = await client.ask(Opcode.APPEND, replace(request, append_requests=infos), payload)
    results = [result for answer in answers for result in answer.append_responses]
    return sorted(results, key=lambda result: result.request_index)


async def codes(client, placed, *numbers, **options):
    """The status codes of staged batches."""
    return [each.status.code for each in await stage(client, placed, *numbers, **options)]


async def end(client, placed, *txn_ids, commit=True, range_index=0, record_count=-1):
    """The result of END_TXN of one item."""
    info = EndTxnInfo(placed.stream_id, 5, txn_ids, commit, range_index, record_count)
    (answer,) = await client.ask(Opcode.END_TXN, EndTxnRequest(10_000, (info,)))
    (result,) = answer.end_responses
    assert (result.stream_id, result.request_index) == (placed.stream_id, 5)
    return result


async def ask(client, placed, *, txn_id=None, offset=0, range_index=0):
    """The result of FETCH of one item, and its payload."""
    where = StreamRange(stream_id=placed.stream_id, range_index=range_index, end_offset=-1)
    info = FetchInfo(where, 0, offset, 1 << 20, placed.stream_id, txn_id=txn_id)
    (frame,) = await client.call(Opcode.FETCH, FetchRequest(0, 1, (info,)))
    (result,) = decode_header(FetchResponse, frame.header).fetch_responses
    return result, frame


async def read(client, placed, **asked):
    """(base offset, body) of batches, either the readable or the staged ones."""
    result, frame = await ask(client, placed, **asked)
    assert result.status.code == 0
    found = [(each.base_offset, bytes(each.body)) for each in split_envelopes(frame.payload)]
    assert result.batch_count == len(found)
    return found, result.next_offset


async def tail(client, placed):
    """The offset after the last record."""
    request = DescribeRangesRequest(0, (RangeId(placed.stream_id, -1),))
    (answer,) = await client.ask(Opcode.DESCRIBE_RANGE, request)
    return answer.describe_responses[0].stream_range.next_offset


async def seal(client, placed):
    """Seal the range at its server."""
    await client.ask(Opcode.SEAL_RANGE, SealRangesRequest(0, (RangeId(placed.stream_id, 0),)))


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


def test_no_reader_sees_staged_batches(at_server):
    """`txn_id` of APPEND. Rule: staged-unseen."""

    async def test(client, placed):
        (staged,) = await stage(client, placed, 0, record_count=3)
        assert (staged.status.code, staged.base_offset) == (0, -1)
        assert await tail(client, placed) == 0
        assert await append(client, (placed, batch(2))) == [0]
        assert await tail(client, placed) == 2
        assert await read(client, placed) == ([(0, b"body")], 2)

    at_server(test)


def test_a_repeat_is_not_staged_again(at_server):
    """`sequence` of APPEND, in one frame and in several. Rule: staged-repeat, fetch-staged."""

    async def test(client, placed):
        assert await codes(client, placed, 0, 1, 1) == [0, 0, 0]
        assert await codes(client, placed, 1, 2) == [0, 0]
        await seal(client, placed)
        assert await codes(client, placed, 0, 2) == [0, 0]
        found, next_sequence = await read(client, placed, txn_id="conformance", offset=1)
        assert [body for _, body in found] == [b"conformance-1", b"conformance-2"]
        assert next_sequence == 3
        assert await read(client, placed, txn_id="conformance", offset=3) == ([], 3)

    at_server(test)


def test_batches_that_are_not_staged_here(at_server):
    """In a range of the server, and in others. Rule: fetch-staged-unknown."""

    async def test(client, placed):
        assert await codes(client, placed, 0) == [0]
        nothing, _ = await ask(client, placed, txn_id="another")
        assert nothing.status.code == StatusCode.NOT_FOUND
        elsewhere, _ = await ask(client, placed, txn_id="conformance", range_index=7)
        assert elsewhere.status.code == StatusCode.RANGE_NOT_FOUND
        elsewhere, _ = await ask(
            client, dataclasses.replace(placed, stream_id=2**40), txn_id="conformance"
        )
        assert elsewhere.status.code == StatusCode.RANGE_NOT_FOUND

    at_server(test)


def test_a_gap_is_refused_with_the_sequence_that_is_expected(at_server):
    """`detail` of the status. Rule: staged-gap, partial-failure."""

    async def test(client, placed):
        results = await stage(client, placed, 0, 2, 1)
        assert [result.status.code for result in results] == [0, StatusCode.WRITER_GAP, 0]
        assert results[1].status.detail == WriterGapError.encode_expected(1)

    at_server(test)


def test_a_sealed_range_takes_and_publishes_nothing_new(at_server):
    """After SEAL_RANGE. Rule: staged-sealed, end-txn-sealed."""

    async def test(client, placed):
        assert await codes(client, placed, 0) == [0]
        await seal(client, placed)
        assert await codes(client, placed, 1) == [StatusCode.RANGE_ALREADY_SEALED]
        refused = await end(client, placed, "conformance")
        assert refused.status.code == StatusCode.RANGE_ALREADY_SEALED
        assert await tail(client, placed) == 0

    at_server(test)


@pytest.mark.parametrize(
    ("sequence", "options"),
    [
        (0, {"txn_id": ""}),
        (0, {"txn_id": "a b"}),
        (0, {"txn_id": "x" * 161}),
        (0, {"writer_id": "w"}),
        (0, {"stream_range": None}),
        (-1, {}),
        (0, {"record_count": 2}),
    ],
)
def test_a_nonsensical_staged_append_is_refused(at_server, sequence, options):
    """Ids, sequences, and another batch under a number that was used. Rule: staged-refused."""

    async def test(client, placed):
        assert await codes(client, placed, 0) == [0]
        refused = await codes(client, placed, sequence, **options)
        assert refused == [StatusCode.INVALID_REQUEST]
        found, _ = await read(client, placed, txn_id="conformance")
        assert len(found) == 1

    at_server(test)


def test_published_batches_follow_in_the_order_of_the_request(at_server):
    """END_TXN with `commit`. Rule: end-txn-publish, end-txn-repeat."""

    async def test(client, placed):
        for txn_id in "tu":
            assert await codes(client, placed, 0, 1, txn_id=txn_id, record_count=2) == [0, 0]
        await append(client, (placed, batch()))
        first = await end(client, placed, "u", "t", record_count=8)
        assert (first.status.code, first.base_offset, first.record_count) == (0, 1, 8)
        found = [(0, b"body"), (1, b"u-0"), (3, b"u-1"), (5, b"t-0"), (7, b"t-1")]
        assert await read(client, placed) == (found, 9)
        await seal(client, placed)
        assert await end(client, placed, "u", "t", record_count=8) == first
        assert await tail(client, placed) == 9

    at_server(test)


def test_nothing_is_published_if_something_is_missing(at_server):
    """`record_count` of END_TXN. Rule: end-txn-complete."""

    async def test(client, placed):
        assert await codes(client, placed, 0, 1) == [0, 0]
        for record_count in (0, 1, 3):
            refused = await end(client, placed, "conformance", record_count=record_count)
            assert refused.status.code == StatusCode.TXN_INCOMPLETE
        assert (await end(client, placed, "nothing")).status.code == StatusCode.TXN_INCOMPLETE
        assert await tail(client, placed) == 0
        assert await codes(client, placed, 2) == [0]

    at_server(test)


def test_a_transaction_that_ended_refuses_appends(at_server):
    """Published or dropped. Rule: staged-ended, end-txn-drop."""

    async def test(client, placed):
        for txn_id in ("published", "dropped"):
            assert await codes(client, placed, 0, txn_id=txn_id) == [0]
        assert (await end(client, placed, "published")).base_offset == 0
        dropped = await end(client, placed, "dropped", "unknown", "published", commit=False)
        assert (dropped.status.code, dropped.record_count) == (0, 1)
        for txn_id in ("published", "dropped"):
            for number in (0, 1):
                late = await codes(client, placed, number, txn_id=txn_id)
                assert late == [StatusCode.TXN_ENDED]
        assert await read(client, placed) == ([(0, b"published-0")], 1)

    at_server(test)


@pytest.mark.parametrize("range_index", [0, -1])
def test_a_sealed_range_drops(at_server, range_index):
    """END_TXN without `commit`. Rule: end-txn-drop."""

    async def test(client, placed):
        assert await codes(client, placed, 0) == [0]
        await seal(client, placed)
        for count in (1, 0):
            dropped = await end(
                client, placed, "conformance", commit=False, range_index=range_index
            )
            assert (dropped.status.code, dropped.record_count) == (0, count)
        assert await tail(client, placed) == 0

    at_server(test)


@pytest.mark.parametrize(
    ("txn_ids", "range_index", "code"),
    [
        ((), 0, StatusCode.INVALID_REQUEST),
        (("new", "new"), 0, StatusCode.INVALID_REQUEST),
        (("a b",), 0, StatusCode.INVALID_REQUEST),
        (("new",), -1, StatusCode.INVALID_REQUEST),
        (("new", "published"), 0, StatusCode.INVALID_REQUEST),
        (("dropped",), 0, StatusCode.TXN_ENDED),
        (("new", "dropped"), 0, StatusCode.TXN_ENDED),
    ],
)
def test_a_nonsensical_publication_is_refused(at_server, txn_ids, range_index, code):
    """Ids and ranges, and what ended otherwise. Rule: end-txn-refused."""

    async def test(client, placed):
        for txn_id in ("published", "dropped", "new"):
            assert await codes(client, placed, 0, txn_id=txn_id) == [0]
        await end(client, placed, "published")
        await end(client, placed, "dropped", commit=False)
        refused = await end(client, placed, *txn_ids, range_index=range_index)
        assert refused.status.code == code
        assert await tail(client, placed) == 1

    at_server(test)
