"""A reader that bounds a column gets no batch without a row within the bounds, and all offsets."""

from __future__ import annotations

import asyncio

import numpy as np
import pyarrow as pa
import pytest

from sbp_core.client import AppendItem, Client, FetchItem, StreamSpec
from sbp_core.errors import InvalidRequestError
from sbp_core.log.bodies import RecentBodies
from sbp_core.records import (
    BatchFilter,
    ColumnBounds,
    ColumnsBuilder,
    StreamSchema,
    batch_filter,
    decode_columns,
    maybe_kept_columns,
    order_key,
    split_envelopes,
)
from sbp_core.wire.headers import KeyBounds
from tests.support.cluster import core_cluster

ROWS = 20_000
BATCHES = 100
WANTED = 37
SCHEMA = StreamSchema.of(pa.schema([("day", pa.int64()), ("x", pa.float64()), ("y", pa.float64())]))
DAY = order_key(WANTED, pa.int64())
ONE_DAY = batch_filter(SCHEMA.fingerprint, [ColumnBounds("day", DAY, DAY, takes_null=False)])
NO_DAY = batch_filter(SCHEMA.fingerprint, [ColumnBounds("day", b"\xff" * 9, None, takes_null=True)])


def day(number, rows=ROWS):
    rng = np.random.default_rng(number)
    columns = [np.full(rows, number), rng.random(rows), rng.random(rows)]
    return pa.record_batch(columns, schema=SCHEMA.arrow)


async def append_days(client, stream_id, numbers=range(BATCHES), rows=ROWS, columns=("day",)):
    builder = ColumnsBuilder(stream_id, SCHEMA, stats_columns=columns)
    for number in numbers:
        stored = builder.add(day(number, rows), timestamp_ms=5) + builder.flush()
        await client.append([AppendItem(stream_id, each) for each in stored])


def read(client, stream_id, filters=(), projections=()):
    """All batches of a stream, and their bytes."""
    envelopes, size_bytes, offset = [], 0, 0
    while True:
        item = FetchItem(stream_id, offset, None, 8 << 20, projections, filters)
        (outcome,) = client.fetch([item])
        if outcome.error is not None:
            raise outcome.error
        if outcome.next_offset == offset:
            return envelopes, size_bytes
        envelopes += split_envelopes(outcome.payload)
        size_bytes += len(outcome.payload)
        offset = outcome.next_offset


def run(folder, body):
    async def main():
        async with core_cluster(folder) as cluster:
            (stream,) = await cluster.client.create_streams([StreamSpec("s")])
            await asyncio.wait_for(body(cluster, stream.stream_id), 60)

    asyncio.run(main())


def test_filters_and_projections_go_together(tmp_path):
    kept = maybe_kept_columns(SCHEMA, pa.schema([("x", pa.float64())]))

    async def body(cluster, stream_id):
        await append_days(cluster.client, stream_id, [WANTED - 1, WANTED])

        def check():
            with Client(cluster.pd.endpoint) as client:
                found, _ = read(client, stream_id, (ONE_DAY,), (kept.projection,))
            assert [each.is_skipped for each in found] == [True, False]
            assert found[1].projection == kept.projection.kept
            assert found[1].statistics is not None
            assert decode_columns(found[1], kept.schema).num_rows == ROWS

        await asyncio.to_thread(check)

    run(tmp_path, body)


def test_an_answer_is_full_of_what_is_sent_and_not_of_what_is_stored(tmp_path, monkeypatch):
    monkeypatch.setattr(RecentBodies, "maybe_bodies", lambda *_: None)
    kept = maybe_kept_columns(SCHEMA, pa.schema([("x", pa.float64())]))
    rows, answers = 20_000, []

    async def body(cluster, stream_id):
        await append_days(cluster.client, stream_id, range(10), rows)

        def check():
            offset = 0
            with Client(cluster.pd.endpoint) as client:
                while offset < 10 * rows:
                    item = FetchItem(stream_id, offset, None, 500_000, (kept.projection,))
                    (outcome,) = client.fetch([item])
                    envelopes = list(split_envelopes(outcome.payload))
                    assert envelopes[0].base_offset == offset
                    assert outcome.next_offset == envelopes[-1].end_offset
                    offset = outcome.next_offset
                    answers.append(len(envelopes))

        await asyncio.to_thread(check)

    run(tmp_path, body)
    assert answers == [3, 3, 3, 1], "160 kB of 480 are sent of each batch"


def test_a_reader_that_waits_goes_on_over_skipped_batches(tmp_path):
    """Else it would be told that nothing came, and begin at the same offset again and again."""

    async def body(cluster, stream_id):
        item = FetchItem(stream_id, 0, None, 8 << 20, filters=(NO_DAY,))

        async def follow():
            answers = cluster.client.fetch([item], max_wait_ms=50_000, min_bytes=100_000)
            return [outcome.batches.next_offset async for outcome in answers]

        waiting = asyncio.ensure_future(follow())
        await append_days(cluster.client, stream_id, [1])
        assert await asyncio.wait_for(waiting, 30) == [ROWS]

    run(tmp_path, body)


BAD = {
    "16 filters at most": [NO_DAY] * 17,
    "names no schema": [BatchFilter(None, NO_DAY.bounds)],
    "at most 64": [BatchFilter("s", NO_DAY.bounds * 65)],
    "without a name": [BatchFilter("s", (KeyBounds(),))],
    "a key of 33 bytes for column 'c'": [BatchFilter("s", (KeyBounds("c", bytes(33)),))],
}


def test_filters_beyond_the_limits_are_refused(tmp_path):
    async def body(cluster, stream_id):
        for reason, filters in BAD.items():
            item = FetchItem(stream_id, 0, None, 1 << 20, filters=tuple(filters))
            (outcome,) = [each async for each in cluster.client.fetch([item])]
            with pytest.raises(InvalidRequestError, match=reason):
                raise outcome.error

    run(tmp_path, body)
