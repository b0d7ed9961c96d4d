"""Batches that a reader leaves in the files of a range server on its machine, and reads later."""

from __future__ import annotations

import asyncio

import pytest
from core_cluster import rows_batch
from local_reads import (
    LARGE_BYTES,
    SMALL_SEGMENTS,
    append,
    new_stream,
    octets_of,
    remove_segments,
    run,
    watch_looks,
)

from sbp_core import limits
from sbp_core.client import AppendItem, Client, FetchItem, FetchOutcome


@pytest.fixture(autouse=True)
def looks(monkeypatch):
    return watch_looks(monkeypatch)


def test_batches_that_are_left_in_the_files(tmp_path, looks, monkeypatch):
    """One question tells of many, which are read piece by piece; who wants octets gets no more."""
    monkeypatch.setattr(limits, "LOCAL_READ_PLACES_BYTES_MAX", 3 * LARGE_BYTES + 50_000)

    async def body(cluster):
        stream_id = await new_stream(cluster)
        await append(cluster, stream_id, range(10))

        def read() -> None:
            with Client(cluster.pd.endpoint) as client:
                octets, counts = left_octets(client, stream_id)
                assert counts == [3, 3, 3, 1]
                assert octets == octets_of(client, stream_id, 0, 1)
                assert len(octets) > 10 * LARGE_BYTES
                pieces = {len(placed.places) for placed in looks.found[-10:]}
                assert pieces == {1}

        await asyncio.to_thread(read)

    run(tmp_path, body, **SMALL_SEGMENTS)


def left_octets(client: Client, stream_id: int) -> tuple[bytes, list[int]]:
    """All octets of a stream, read where they were left, and how many batches at a time."""
    octets, counts, start = b"", [], 0
    while True:
        item = FetchItem(stream_id, start, None, 1)
        (outcome,) = client.fetch([item], leaves_placed=True)
        if outcome.maybe_placed is None:
            assert outcome.next_offset == start
            return octets, counts
        assert not outcome.payload
        counts.append(len(outcome.maybe_placed.places))
        for piece in client.read_places(outcome.maybe_placed):
            octets += piece.payload
            start = piece.end_offset
        assert start == outcome.next_offset


def test_no_small_batch_is_among_those_that_come_besides(tmp_path):
    async def body(cluster):
        stream_id = await new_stream(cluster)
        await append(cluster, stream_id, range(3))
        await cluster.client.append([AppendItem(stream_id, rows_batch([b"small"], stream_id))])
        await append(cluster, stream_id, range(3))

        def read() -> FetchOutcome:
            with Client(cluster.pd.endpoint) as client:
                (outcome,) = client.fetch([FetchItem(stream_id, 0, None, 1)], leaves_placed=True)
                return outcome

        outcome = await asyncio.to_thread(read)
        assert len(outcome.maybe_placed.places) == 3
        assert outcome.next_offset == 6

    run(tmp_path, body)


def test_files_that_go_while_they_are_read_piece_by_piece(tmp_path):
    """The reader is told where it ended; the next answer has octets."""

    async def body(cluster):
        stream_id = await new_stream(cluster)
        await append(cluster, stream_id, range(10))

        def read() -> None:
            with Client(cluster.pd.endpoint) as client:
                (outcome,) = client.fetch([FetchItem(stream_id, 0, None, 1)], leaves_placed=True)
                pieces = client.read_places(outcome.maybe_placed, piece_bytes=1)
                assert next(pieces).end_offset == 2
                remove_segments(tmp_path)
                ends = [piece.end_offset for piece in pieces]
                assert ends == [*range(4, ends[-1] + 1, 2)]
                assert ends[-1] < outcome.next_offset
                item = FetchItem(stream_id, ends[-1], None, 1 << 22)
                (outcome,) = client.fetch([item], leaves_placed=True)
                assert (outcome.maybe_placed, outcome.next_offset) == (None, 20)
                assert len(outcome.payload) > LARGE_BYTES

        await asyncio.to_thread(read)

    run(tmp_path, body, **SMALL_SEGMENTS)
