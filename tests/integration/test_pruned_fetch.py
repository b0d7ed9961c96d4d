"""A reader that asks for some columns gets these."""

from __future__ import annotations

import asyncio

import numpy as np
import pyarrow as pa

from sbp_core import limits
from sbp_core.client import AppendItem, Client, FetchItem, StreamSpec
from sbp_core.records import (
    StreamSchema,
    decode_batch,
    decode_columns,
    encode_columns,
    maybe_kept_columns,
    maybe_kept_rows,
    split_envelopes,
)
from sbp_core.wire.headers import AppendInfo, AppendRequest, StreamRange
from sbp_core.wire.opcodes import Opcode
from tests.support.appends import end, one_driven_stream
from tests.support.cluster import core_cluster, rows_batch
from tests.support.wire import RawClient

ROWS = 6_000
BATCHES = 5
COLUMNS = StreamSchema.of(pa.schema([(f"c{at}", pa.float64()) for at in range(20)]))
FEWER = StreamSchema.of(pa.schema(list(COLUMNS.arrow)[:18]))
WANTED = pa.schema([COLUMNS.arrow.field(name) for name in ("c3", "c17")])
KEPT = maybe_kept_columns(COLUMNS, WANTED)


def batches(count, schema=COLUMNS):
    rng = np.random.default_rng(1)
    for _ in range(count):
        columns = [rng.random(ROWS) for _ in schema.arrow]
        yield pa.record_batch(columns, schema=schema.arrow)


async def append(cluster, stream_id, found, schema=COLUMNS, **options):
    for batch in found:
        stored = encode_columns(batch, schema, stream_id=stream_id, timestamp_ms=5, **options)
        await cluster.client.append([AppendItem(stream_id, stored)])


def read(client, stream_id, projections):
    """All batches of a stream from its first record on, and their bytes."""
    envelopes, size_bytes, offset = [], 0, 0
    while True:
        item = FetchItem(stream_id, offset, None, 8 << 20, projections)
        (outcome,) = client.fetch([item])
        assert outcome.error is None
        if outcome.next_offset == offset:
            return envelopes, size_bytes
        envelopes += split_envelopes(outcome.payload)
        size_bytes += len(outcome.payload)
        offset = outcome.next_offset


def run(folder, body, **settings):
    async def main():
        async with core_cluster(folder, **settings) as cluster:
            (stream,) = await cluster.client.create_streams([StreamSpec("s")])
            await asyncio.wait_for(body(cluster, stream.stream_id), 60)

    asyncio.run(main())


def read_twice(cluster, stream_id):
    """Batches and bytes that come with a projection, and without one."""
    with Client(cluster.pd.endpoint) as client:
        return tuple(read(client, stream_id, asked) for asked in ((KEPT.projection,), ()))


def check_equal(pruned, whole):
    assert [each.base_offset for each in pruned] == [each.base_offset for each in whole]
    for some, all_columns in zip(pruned, whole, strict=True):
        found = decode_columns(some, KEPT.schema)
        assert found.equals(decode_columns(all_columns, COLUMNS).select(WANTED.names))


def test_a_server_sends_only_the_columns_that_are_wanted(tmp_path):
    async def body(cluster, stream_id):
        await append(cluster, stream_id, batches(BATCHES))
        await append(cluster, stream_id, batches(1), compression="zstd")
        (pruned, pruned_bytes), (whole, whole_bytes) = await asyncio.to_thread(
            read_twice, cluster, stream_id
        )
        check_equal(pruned, whole)
        assert pruned_bytes < 0.11 * whole_bytes

    run(tmp_path, body)


def test_batches_of_other_versions_come_whole(tmp_path):
    async def body(cluster, stream_id):
        await append(cluster, stream_id, batches(1, FEWER), FEWER)
        await append(cluster, stream_id, batches(1))
        (found, _), _ = await asyncio.to_thread(read_twice, cluster, stream_id)
        assert [each.projection for each in found] == [None, KEPT.projection.kept]
        assert decode_columns(found[0], FEWER).num_columns == 18

    run(tmp_path, body)


def large_batch(stream_id: int) -> bytes:
    return rows_batch([b"v", bytes(4 * limits.CUT_BATCH_BYTES_MIN)], stream_id)


async def stage_large(client: RawClient, stream_id: int) -> None:
    batch = large_batch(stream_id)
    place = StreamRange(stream_id=stream_id, range_index=0)
    info = AppendInfo(place, 0, len(batch), stream_id, None, 0, "t")
    await client.ask(Opcode.APPEND, AppendRequest(0, (info,)), [batch])


def test_a_batch_that_was_staged_has_the_offset_that_it_got(tmp_path):
    """Its base offset is not stored with it. Only the times of plain records are read."""
    kept = maybe_kept_rows(["timestamp"])

    async def main():
        async with one_driven_stream(tmp_path) as (cluster, stream_id, client):
            await stage_large(client, stream_id)
            await cluster.client.append([AppendItem(stream_id, large_batch(stream_id))])
            assert await end(client, stream_id, "t", count=2) == (2, 2)

            def check():
                with Client(cluster.pd.endpoint) as reader:
                    found, size_bytes = read(reader, stream_id, (kept.projection,))
                assert [each.base_offset for each in found] == [0, 2]
                assert size_bytes < 1_000
                for each in found:
                    rows = decode_batch(each)
                    assert rows.column("value").null_count == 2
                    assert rows.column("timestamp").null_count == 0

            await asyncio.to_thread(check)

    asyncio.run(asyncio.wait_for(main(), 60))
