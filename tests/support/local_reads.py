"""Reading large batches on a range server's machine: a cluster, and what is read in its files."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from sbp_core import limits
from sbp_core.client import (
    AppendItem,
    Client,
    FetchItem,
    FetchOutcome,
    ReceivedBatches,
    StreamSpec,
)
from sbp_core.client.io import local_batches, local_log
from sbp_core.client.io.local_log import PlacedBatches, read_pieces
from tests.support.cluster import CoreCluster, allow_small_segments, core_cluster, rows_batch

LARGE_BYTES = 2 * limits.LOCAL_READ_BATCH_BYTES_MIN
SMALL_SEGMENTS = {"segment_bytes": 1_000_000, "retention_check_interval_ms": 10}


class Looks:
    """The reads from segment files, successful or failed; `before` is called before each."""

    def __init__(self) -> None:
        self.found: list[PlacedBatches] = []
        self.failed_count = 0
        self.before: Callable[[PlacedBatches], None] = lambda _: None

    def read(self, placed: PlacedBatches, piece_bytes: int) -> Iterator[ReceivedBatches]:
        self.before(placed)
        self.failed_count += 1
        pieces = read_pieces(placed, piece_bytes)
        first = next(pieces)
        self.failed_count -= 1
        self.found.append(placed)
        yield first
        yield from pieces


def watch_looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    """Record reads from segment files from now on; segments may have any size."""
    allow_small_segments(monkeypatch)
    looks = Looks()
    monkeypatch.setattr(local_log, "read_pieces", looks.read)
    return looks


def run(folder, body, **options):
    async def main():
        async with core_cluster(folder, **options) as cluster:
            await asyncio.wait_for(body(cluster), 120)

    asyncio.run(main())


def large_batch(stream_id: int, seed: int = 0) -> bytes:
    values = random.Random(seed).randbytes(LARGE_BYTES)
    return rows_batch([values[:1], values[1:]], stream_id)


async def new_stream(cluster: CoreCluster) -> int:
    (info,) = await cluster.client.create_streams([StreamSpec(None)])
    return info.stream_id


async def append(cluster: CoreCluster, stream_id: int, seeds: Sequence[int], **options) -> None:
    for seed in seeds:
        item = AppendItem(stream_id, large_batch(stream_id, seed))
        await cluster.client.append([item], **options)


def fetched(client: Client, item: FetchItem) -> FetchOutcome:
    (outcome,) = client.fetch([item])
    return outcome


def octets_of(client: Client, stream_id: int, start: int, bytes_max: int = 1 << 20) -> bytes:
    """All bytes of a stream from `start` to the tail."""
    data = b""
    while True:
        outcome = fetched(client, FetchItem(stream_id, start, None, bytes_max))
        if outcome.error is not None:
            raise outcome.error
        data += outcome.payload
        if outcome.next_offset == start:
            return data
        start = outcome.next_offset


async def check_same(cluster: CoreCluster, stream_id: int, start: int = 0) -> None:
    """Read a stream from the files, and through the server."""

    def read() -> tuple[bytes, bytes]:
        endpoint = cluster.pd.endpoint
        with Client(endpoint) as here, Client(endpoint, reads_locally=False) as far:
            return octets_of(here, stream_id, start), octets_of(far, stream_id, start)

    local, served = await asyncio.to_thread(read)
    assert local == served
    assert len(local) > LARGE_BYTES


def segments(folder: Path) -> list[Path]:
    return sorted((folder / "rs" / "log").glob("*.log"))


def remove_segments(folder: Path) -> None:
    for path in segments(folder):
        path.unlink()


def watch_local_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the bytes of each read of batches."""
    found: list[int] = []

    def preadv(*call) -> int:
        found.append(os.preadv(*call))
        return found[-1]

    class Watched:
        pass

    Watched.preadv, Watched.pread = staticmethod(preadv), staticmethod(os.pread)
    monkeypatch.setattr(local_batches, "os", Watched)
    return found
