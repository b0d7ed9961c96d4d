"""Batches that a reader leaves in the files of a range server on its machine, and reads later."""

from __future__ import annotations

import asyncio

import pytest

from sbp_core import limits
from sbp_core.client import AppendItem, Client, FetchItem, FetchOutcome, ReceivedBatches
from sbp_core.errors import OffsetOutOfRangeError
from tests.support.cluster import rows_batch
from tests.support.local_reads import (
    LARGE_BYTES,
    SMALL_SEGMENTS,
    append,
    new_stream,
    octets_of,
    remove_segments,
    run,
    watch_looks,
)


@pytest.fixture(autouse=True)
def looks(monkeypatch):
    return watch_looks(monkeypatch)


def test_batches_that_are_left_in_the_files(tmp_path, looks, monkeypatch):
    """One answer has many, which are read piece by piece. Others get what they ask for."""
    monkeypatch.setattr(limits, "LOCAL_READ_PLACES_BYTES_MAX", 3 * LARGE_BYTES + 50_000)

    async def body(cluster):
        stream_id = await new_stream(cluster)
        await append(cluster, stream_id, range(10))

        def read() -> None:
            with Client(cluster.pd.endpoint) as client:
                data, counts = left_bytes(client, stream_id)
                assert counts == [3, 3, 3, 1]
                assert data == octets_of(client, stream_id, 0, 1)
                assert len(data) > 10 * LARGE_BYTES
                assert len(looks.found) == 4 + 10
                item = FetchItem(stream_id, 0, None, 1)
                (outcome,) = client.fetch([item])
                assert LARGE_BYTES < len(outcome.payload) < 2 * LARGE_BYTES

        await asyncio.to_thread(read)

    run(tmp_path, body, **SMALL_SEGMENTS)


def left_bytes(client: Client, stream_id: int) -> tuple[bytes, list[int]]:
    """All bytes of a stream, read where they were left, and how many batches at a time."""
    data, counts, start = b"", [], 0
    while True:
        item = FetchItem(stream_id, start, None, 1)
        (outcome,) = client.fetch([item], leaves_batches=True)
        if not outcome.batches.size_bytes:
            assert outcome.next_offset == start
            return data, counts
        counts.append((outcome.next_offset - start) // 2)
        pieces = list(outcome.batches.pieces())
        data += b"".join(piece.payload for piece in pieces)
        start = outcome.next_offset
        assert pieces[-1].next_offset == start
        assert sum(len(piece.payload) for piece in pieces) == outcome.batches.size_bytes


def test_no_small_batch_is_among_those_that_come_besides(tmp_path):
    async def body(cluster):
        stream_id = await new_stream(cluster)
        await append(cluster, stream_id, range(3))
        await cluster.client.append([AppendItem(stream_id, rows_batch([b"small"], stream_id))])
        await append(cluster, stream_id, range(3))

        def read() -> FetchOutcome:
            with Client(cluster.pd.endpoint) as client:
                (outcome,) = client.fetch([FetchItem(stream_id, 0, None, 1)], leaves_batches=True)
                return outcome

        outcome = await asyncio.to_thread(read)
        assert outcome.next_offset == 6

    run(tmp_path, body)


def test_files_that_go_while_they_are_read_piece_by_piece(tmp_path):
    """Removed files are read through the server, which has them open."""

    async def body(cluster):
        stream_id = await new_stream(cluster)
        await append(cluster, stream_id, range(10))

        def read() -> None:
            with Client(cluster.pd.endpoint) as client:
                item = FetchItem(stream_id, 0, None, 1)
                (outcome,) = client.fetch([item], leaves_batches=True)
                pieces = outcome.batches.pieces(piece_bytes=1)
                found = [next(pieces)]
                remove_segments(tmp_path)
                found += pieces
                assert [piece.next_offset for piece in found] == [*range(2, 21, 2)]
                data = b"".join(piece.payload for piece in found)
                assert data == octets_of(client, stream_id, 0)
                (outcome,) = client.fetch([item], leaves_batches=True)
                assert isinstance(outcome.batches, ReceivedBatches)

        await asyncio.to_thread(read)

    run(tmp_path, body, **SMALL_SEGMENTS)


def test_records_that_are_trimmed_before_they_are_read(tmp_path):
    """Neither the file nor the server has them: an error with the bounds, after what was read."""

    async def body(cluster):
        stream_id = await new_stream(cluster)
        await append(cluster, stream_id, range(4))
        loop = asyncio.get_running_loop()

        def trim() -> None:
            trimming = cluster.client.trim_streams({stream_id: 6})
            asyncio.run_coroutine_threadsafe(trimming, loop).result(60)
            remove_segments(tmp_path)

        def read() -> None:
            with Client(cluster.pd.endpoint) as client:
                item = FetchItem(stream_id, 0, None, 1)
                (outcome,) = client.fetch([item], leaves_batches=True)
                assert outcome.next_offset == 8
                trim()
                with pytest.raises(OffsetOutOfRangeError) as raised:
                    list(outcome.batches.pieces())
                assert raised.value.bounds == (6, 8)

        await asyncio.to_thread(read)

    run(tmp_path, body)
