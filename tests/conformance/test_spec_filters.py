"""SPEC "Some rows of a stream": batches that have no row within the bounds may be skipped."""

from contextlib import asynccontextmanager

import pyarrow as pa
from spec_target import Target, append, append_request

from sbp_core.errors import StatusCode
from sbp_core.records import (
    ColumnBounds,
    StreamSchema,
    batch_filter,
    decode_columns,
    encode_columns,
    order_key,
    split_envelopes,
)
from sbp_core.records.envelope import encode_head, read_head
from sbp_core.wire.headers import FetchInfo, FetchRequest, FetchResponse, StreamRange, decode_header
from sbp_core.wire.opcodes import Opcode

ROWS = 1_000
SCHEMA = StreamSchema.of(pa.schema([("n", pa.int64()), ("text", pa.string())]))


@asynccontextmanager
async def one_stream(target):
    """A stream, and a connection to its range server."""
    async with (
        target.streams() as (placed,),
        Target(placed.server.advertise_addr).pd() as client,
    ):
        yield placed, client


def stored(placed, number):
    rows = pa.record_batch([[number] * ROWS, ["text"] * ROWS], schema=SCHEMA.arrow)
    return encode_columns(
        rows, SCHEMA, stream_id=placed.stream_id, timestamp_ms=0, stats_columns=["n"]
    )


def test_only_batches_without_a_wanted_row_are_skipped(target):
    """An extension. Rule: fetch-filter."""
    key = order_key(2, pa.int64())
    only_two = batch_filter(SCHEMA.fingerprint, [ColumnBounds("n", key, key, takes_null=False)])

    async def body(target):
        async with one_stream(target) as (placed, client):
            await append(client, *((placed, stored(placed, number)) for number in (1, 2, 3)))
            info = FetchInfo(
                StreamRange(stream_id=placed.stream_id),
                batch_max_bytes=4_000_000,
                filters=(only_two,),
            )
            (frame,) = await client.call(Opcode.FETCH, FetchRequest(5_000, 1, (info,)))
            (result,) = decode_header(FetchResponse, frame.header).fetch_responses
            found = list(split_envelopes(frame.payload))
            assert result.batch_length == len(frame.payload)
            assert result.next_offset == 3 * ROWS
            assert [(each.base_offset, each.record_count) for each in found] == [
                (at * ROWS, ROWS) for at in range(3)
            ]
            for number, each in enumerate(found, 1):
                if each.is_skipped:
                    assert number != 2
                    assert each.schema_fingerprint == SCHEMA.fingerprint
                else:
                    assert decode_columns(each, SCHEMA).column("n").to_pylist() == [number] * ROWS

    target.run(body)


def test_a_batch_that_was_skipped_is_refused(target):
    """An extension. Rule: batch-skipped."""

    async def body(target):
        async with one_stream(target) as (placed, client):
            meta, _, body_start = read_head(memoryview(stored(placed, 1)), 0)
            named = encode_head(meta._replace(body_bytes="0", skipped=str(body_start)), 0)
            (answer,) = await client.ask(Opcode.APPEND, *append_request((placed, named)))
            (result,) = answer.append_responses
            assert result.status.code == StatusCode.INVALID_REQUEST

    target.run(body)
