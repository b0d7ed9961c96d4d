"""The operations of a range server. Tests are named after sentences of the specification."""

import asyncio
from contextlib import asynccontextmanager

import pyarrow as pa
import pytest
from spec_target import Target, append, append_request, batch, fetch_request

from sbp_core.errors import StatusCode
from sbp_core.records import ROWS_SCHEMA, decode_batch, encode_rows, maybe_kept_rows
from sbp_core.records.envelope import encode_envelope, encode_head, read_head
from sbp_core.records.splitting import split_envelopes
from sbp_core.wire.frame import encode_frame
from sbp_core.wire.headers import (
    DeleteStreamsRequest,
    DescribeRangesRequest,
    FetchInfo,
    FetchRequest,
    FetchResponse,
    RangeId,
    SealRangesRequest,
    Stream,
    StreamRange,
    decode_header,
    encode_header,
)
from sbp_core.wire.opcodes import Flag, Opcode
from sbp_core.wire.status import is_success

NO_STREAM = 2**62
SHORT_MS, LONG_MS = 200, 30_000


@asynccontextmanager
async def streams_at_one_server(target, count):
    """Streams that share a range server, and a connection to it."""
    async with target.streams(count * 4) as placed:
        address = placed[0].server.advertise_addr
        together = [each for each in placed if each.server.advertise_addr == address]
        assert len(together) >= count, "new streams are spread too thin for this test"
        async with Target(address).pd() as client:
            yield together[:count], client


def answers_of(frames):
    """(result, its bytes) of every item, in the order in which the frames list them."""
    found = []
    for each in frames:
        header = decode_header(FetchResponse, each.header)
        assert is_success(header.status)
        envelopes = list(split_envelopes(each.payload))
        for result in header.fetch_responses:
            mine = envelopes[: result.batch_count]
            envelopes = envelopes[result.batch_count :]
            found.append((result, mine))
        assert envelopes == []
    return found


async def fetch(client, *items, **options):
    """The batches of each item, in the order of the request."""
    answers = answers_of(await client.call(Opcode.FETCH, fetch_request(*items, **options)))
    by_index = {result.request_index: (result, found) for result, found in answers}
    assert len(answers) == len(by_index) == len(items)
    return [by_index[index] for index in range(len(items))]


def test_each_request_gets_a_base_offset_in_the_order_of_the_payload(target):
    """SPEC "APPEND", "The base offset". Rule: append-payload, append-offsets."""

    async def body(target):
        async with streams_at_one_server(target, 2) as ((one, other), client):
            sizes = [(one, 3), (other, 1), (one, 2), (one, 5), (other, 4)]
            offsets = await append(client, *((stream, batch(count)) for stream, count in sizes))
            assert offsets == [0, 0, 3, 5, 1]
            assert await append(client, (one, batch()), (other, batch())) == [10, 5]

    target.run(body)


def test_the_response_carries_the_index_of_an_append_request_in_the_batch_requests(target):
    """SPEC "APPEND", request_index, base_offset and time. Rule: item-answers."""

    async def body(target):
        async with streams_at_one_server(target, 1) as ((placed,), client):
            indexes = [5, 2**31 - 1, 0, 17]
            request = append_request(*[(placed, batch())] * 4, indexes=indexes)
            answers = await client.ask(Opcode.APPEND, *request)
            results = [result for answer in answers for result in answer.append_responses]
            assert sorted(result.request_index for result in results) == sorted(indexes)
            assert {result.stream_id for result in results} == {placed.stream_id}
            by_index = {result.request_index: result.base_offset for result in results}
            assert [by_index[index] for index in indexes] == [0, 1, 2, 3]
            assert all(result.stream_append_time_ms > 1_600_000_000_000 for result in results)

    target.run(body)


def test_the_error_of_one_batch_is_its_own(target):
    """SPEC "APPEND", "The error code, or 0". Rule: partial-failure, batch-checked."""

    async def body(target):
        async with streams_at_one_server(target, 1) as ((placed,), client):
            damaged = b"\x21" + batch()[1:]
            cut_off = batch()[:-1]
            batches = [batch(2), damaged, batch(1), cut_off, b"", batch(4)]
            request = append_request(*((placed, data) for data in batches))
            answers = await client.ask(Opcode.APPEND, *request)
            results = [result for answer in answers for result in answer.append_responses]
            results.sort(key=lambda result: result.request_index)
            accepted = [is_success(result.status) for result in results]
            assert accepted == [True, False, True, False, False, True]
            assert [result.base_offset for result in results if is_success(result.status)] == [
                0,
                2,
                3,
            ]

    target.run(body)


def test_a_batch_that_declares_more_records_than_it_has_is_refused(target):
    """SPEC "RecordBatch". Rule: batch-counted, partial-failure."""

    async def body(target):
        async with streams_at_one_server(target, 1) as ((placed,), client):
            lying = [
                encode_envelope(
                    [b"1234567"],
                    stream_id=placed.stream_id,
                    record_count=1_000_000,
                    base_timestamp_ms=0,
                    encoding=encoding,
                )
                for encoding in ("rows", "columns", "opaque")
            ]
            request = append_request(*((placed, each) for each in (*lying, batch(2))))
            answers = await client.ask(Opcode.APPEND, *request)
            results = [result for answer in answers for result in answer.append_responses]
            results.sort(key=lambda result: result.request_index)
            codes = [result.status.code for result in results]
            assert codes == [*[StatusCode.INVALID_REQUEST] * 3, StatusCode.NONE]
            assert results[-1].base_offset == 0

    target.run(body)


@pytest.mark.parametrize("excess", [-1, 1])
def test_batch_lengths_that_are_not_the_payloads_fail_the_whole_frame(target, excess):
    """SPEC "APPEND", "The payload length of this record batch". Rule: append-payload."""

    async def body(target):
        async with streams_at_one_server(target, 1) as ((placed,), client):
            header, payload = append_request((placed, batch()), (placed, batch()))
            data = b"".join(payload)
            data = data + b"x" if excess > 0 else data[:-1]
            (frame,) = await client.call(Opcode.APPEND, header, [data])
            assert frame.is_system_error
            assert await append(client, (placed, batch())) == [0]

    target.run(body)


def test_fetch_returns_what_was_appended(target):
    """SPEC "FETCH", "the payload of each record batch". Rule: fetch-payload, fetch-from."""

    async def body(target):
        async with streams_at_one_server(target, 2) as ((one, other), client):
            for number in range(5):
                await append(
                    client,
                    (one, batch(2, b"one-%d" % number)),
                    (other, batch(3, b"other-%d" % number)),
                )
            (_, first), (_, second) = await fetch(client, (one, 0), (other, 0))
            assert [(each.base_offset, bytes(each.body)) for each in first] == [
                (2 * number, b"one-%d" % number) for number in range(5)
            ]
            assert [(each.base_offset, bytes(each.body)) for each in second] == [
                (3 * number, b"other-%d" % number) for number in range(5)
            ]

    target.run(body)


def test_columns_that_are_not_wanted_may_be_left_out(target):
    """An extension. Rule: fetch-projection."""
    rows = pa.RecordBatch.from_pylist(
        [{"key": b"k", "value": bytes(500_000)}] * 2, schema=ROWS_SCHEMA
    )
    kept = maybe_kept_rows(["key"])

    async def body(target):
        async with streams_at_one_server(target, 1) as ((placed,), client):
            stored = encode_rows(rows, stream_id=placed.stream_id, timestamp_ms=0)
            await append(client, (placed, stored), (placed, stored))
            info = FetchInfo(
                StreamRange(stream_id=placed.stream_id),
                batch_max_bytes=4_000_000,
                projections=(kept.projection,),
            )
            (frame,) = await client.call(Opcode.FETCH, FetchRequest(5_000, 1, (info,)))
            ((result, found),) = answers_of([frame])
            assert [each.base_offset for each in found] == [0, 2]
            assert result.batch_length == len(frame.payload)
            for each in found:
                assert each.projection in {None, kept.projection.kept}
                assert decode_batch(each).column("key").to_pylist() == [b"k", b"k"]

    target.run(body)


def test_a_batch_without_all_its_columns_is_refused(target):
    """An extension. Rule: batch-projection."""

    async def body(target):
        async with streams_at_one_server(target, 1) as ((placed,), client):
            rows = pa.RecordBatch.from_pylist([{"key": b"k"}], schema=ROWS_SCHEMA)
            stored = encode_rows(rows, stream_id=placed.stream_id, timestamp_ms=0)
            meta, _, body_start = read_head(memoryview(stored), 0)
            named = encode_head(meta._replace(projection="any"), 0) + stored[body_start:]
            (answer,) = await client.ask(Opcode.APPEND, *append_request((placed, named)))
            (result,) = answer.append_responses
            assert result.status.code == StatusCode.INVALID_REQUEST

    target.run(body)


@pytest.mark.parametrize("offset", range(6))
def test_the_start_offset_may_lie_inside_a_batch(target, offset):
    """SPEC "FETCH", "The start offset to fetch data". Rule: fetch-from."""

    async def body(target):
        async with streams_at_one_server(target, 1) as ((placed,), client):
            await append(client, (placed, batch(2)), (placed, batch(3)), (placed, batch(1)))
            ((_, found),) = await fetch(client, (placed, offset))
            assert found[0].base_offset <= offset < found[0].base_offset + found[0].record_count
            following = found[0].base_offset
            for each in found:
                assert each.base_offset == following
                following += each.record_count
            assert following == 6

    target.run(body)


def test_the_maximum_bytes_bound_a_fetch_and_one_batch_comes_at_least(target):
    """SPEC "FETCH", "The maximum bytes of the current batch". Rule: fetch-from."""

    async def body(target):
        async with streams_at_one_server(target, 1) as ((placed,), client):
            data = batch(1, bytes(1000))
            await append(client, *[(placed, data)] * 10)
            offset = 0
            while offset < 10:
                size = 1 if offset < 5 else 2 * len(data)
                ((_, found),) = await fetch(client, (placed, offset), max_bytes=size)
                assert 1 <= len(found) <= max(1, size // len(data))
                offset = found[-1].base_offset + 1

    target.run(body)


def test_a_stream_without_new_records_is_answered_after_the_maximum_time(target):
    """SPEC "FETCH", "The maximum time in milliseconds to wait". Rule: fetch-max-wait."""

    async def body(target):
        async with streams_at_one_server(target, 1) as ((placed,), client):
            for wait_ms in (0, SHORT_MS):
                ((result, found),) = await fetch(client, (placed, 0), max_wait_ms=wait_ms)
                assert (result.status.code, found) == (0, [])

    target.run(body)


async def read_answers(reader):
    """The next frame's results, by request index, and whether it is the last."""
    prefix = await reader.readexactly(16)
    header_length = int.from_bytes(prefix[13:], "big")
    rest = await reader.readexactly(int.from_bytes(prefix[:4], "big") - 12)
    header = decode_header(FetchResponse, rest[:header_length])
    return {each.request_index: each for each in header.fetch_responses}, bool(prefix[7] & Flag.END)


def test_the_server_returns_records_timely_according_to_the_arrival_of_the_records(target):
    """SPEC "FETCH", a hot stream does not wait for a cold one. Rule: fetch-as-ready, item-answers.

    The cold one gets its records once the hot one is answered: nothing else lets this end before
    the wait is over.
    """

    async def body(target):
        async with streams_at_one_server(target, 2) as ((hot, cold), client):
            await append(client, (hot, batch(1, b"hot")))
            host, _, port = hot.server.advertise_addr.rpartition(":")
            reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
            request = fetch_request((cold, 0), (hot, 0), max_wait_ms=LONG_MS)
            writer.writelines(encode_frame(Opcode.FETCH, Flag.REQUEST, 1, encode_header(request)))
            answers, is_end = await read_answers(reader)
            assert answers[1].batch_count == 1
            assert (list(answers), is_end) == ([1], False)
            await append(client, (cold, batch(1, b"cold")))
            answers, is_end = await read_answers(reader)
            assert (list(answers), answers[0].batch_count, is_end) == ([0], 1, True)
            writer.close()
            await writer.wait_closed()

    target.run(body)


def test_the_response_is_complete_when_the_wait_is_over(target):
    """SPEC "FETCH", "split into multiple frames". Rule: item-answers, fetch-max-wait."""

    async def body(target):
        async with streams_at_one_server(target, 2) as ((hot, cold), client):
            await append(client, (hot, batch()))
            (_, nothing), (_, found) = await fetch(
                client, (cold, 0), (hot, 0), max_wait_ms=SHORT_MS
            )
            assert (nothing, len(found)) == ([], 1)

    target.run(body)


def test_the_index_number_of_a_fetch_request_is_in_its_response_whatever_fails(target):
    """SPEC "FETCH", a status in every result. Rule: item-answers, partial-failure."""

    async def body(target):
        async with streams_at_one_server(target, 1) as ((placed,), client):
            await append(client, (placed, batch()))
            unknown = type(placed)(NO_STREAM, StreamRange(), placed.server)
            results = await fetch(client, (unknown, 0), (placed, 0), (placed, 10**9))
            assert [is_success(result.status) for result, _ in results] == [False, True, False]
            assert [len(found) for _, found in results] == [0, 1, 0]

    target.run(body)


def test_ten_thousand_requests_fit_in_one_frame(target):
    """SPEC "Overview", "multiple requests in one frame": appended, fetched. Rule: item-answers."""

    async def body(target):
        async with streams_at_one_server(target, 2) as ((one, other), client):
            batches = [((one, other)[number % 2], batch()) for number in range(10_000)]
            offsets = await append(client, *batches)
            assert offsets == [number // 2 for number in range(10_000)]
            items = [((one, other)[number % 2], number // 2) for number in range(10_000)]
            results = await fetch(client, *items, max_bytes=1)
            assert [found[0].base_offset for _, found in results] == offsets

    target.run(body)


# DESCRIBE_RANGE, SEAL_RANGE, DELETE_STREAMS


async def describe(client, *ranges):
    answers = await client.ask(Opcode.DESCRIBE_RANGE, DescribeRangesRequest(ranges=ranges))
    return [result for answer in answers for result in answer.describe_responses]


async def seal(client, *ranges):
    answers = await client.ask(Opcode.SEAL_RANGE, SealRangesRequest(10_000, ranges))
    return [result for answer in answers for result in answer.seal_responses]


def test_describe_range_is_used_to_get_the_max_offset_of_the_current_writable_range(target):
    """SPEC "DESCRIBE_RANGE", "after the write". Rule: describe-range, partial-failure."""

    async def body(target):
        async with streams_at_one_server(target, 1) as ((placed,), client):
            asked = RangeId(placed.stream_id, 0)
            for expected in (0, 3, 6):
                unknown, known = await describe(client, RangeId(NO_STREAM, 0), asked)
                assert not is_success(unknown.status)
                assert is_success(known.status)
                assert (known.stream_id, known.stream_range.range_index) == (placed.stream_id, 0)
                assert known.stream_range.next_offset == expected
                assert known.stream_range.end_offset == -1
                await append(client, (placed, batch(3)))

    target.run(body)


def test_the_range_server_returns_the_sealed_range(target):
    """SPEC "SEAL_RANGE", "returns the sealed range". Rule: seal-at-range-server."""

    async def body(target):
        async with streams_at_one_server(target, 1) as ((placed,), client):
            await append(client, (placed, batch(4)))
            asked = RangeId(placed.stream_id, 0)
            unknown, *sealed = await seal(client, RangeId(NO_STREAM, 0), asked, asked)
            assert not is_success(unknown.status)
            for result in sealed:
                assert is_success(result.status)
                assert (result.stream_range.start_offset, result.stream_range.end_offset) == (0, 4)
            answers = await client.ask(Opcode.APPEND, *append_request((placed, batch())))
            assert not is_success(answers[0].append_responses[0].status)
            ((_, found),) = await fetch(client, (placed, 0), max_wait_ms=LONG_MS)
            assert sum(each.record_count for each in found) == 4
            ((result, found),) = await fetch(client, (placed, 4), max_wait_ms=LONG_MS)
            assert (result.status.code, found) == (0, [])

    target.run(body)


def test_the_range_server_marks_the_stream_as_deleted_to_reject_the_new_write_requests(target):
    """SPEC "DELETE_STREAMS", "reject the new write requests". Rule: delete-at-range-server."""

    async def body(target):
        async with streams_at_one_server(target, 2) as ((gone, kept), client):
            await append(client, (gone, batch()), (kept, batch()))
            streams = (Stream(stream_id=NO_STREAM), Stream(stream_id=gone.stream_id))
            (answer,) = await client.ask(Opcode.DELETE_STREAMS, DeleteStreamsRequest(0, streams))
            deleted = [is_success(result.status) for result in answer.delete_responses]
            assert deleted == [False, True]
            both = append_request((gone, batch()), (kept, batch()))
            (answer,) = await client.ask(Opcode.APPEND, *both)
            accepted = {each.request_index: each.status for each in answer.append_responses}
            assert [is_success(accepted[index]) for index in (0, 1)] == [False, True]

    target.run(body)
