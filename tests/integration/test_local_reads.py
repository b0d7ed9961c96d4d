"""Readers on the machine of a range server read its files; what they get is what it would send."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from core_cluster import CoreCluster, core_cluster, rows_batch
from raw_client import RawClient
from staged_appends import end, one_stream

from sbp_core import limits
from sbp_core.client import (
    AppendItem,
    AsyncClient,
    Client,
    FetchItem,
    FetchOutcome,
    StreamSpec,
    Writer,
    blocking_runner,
)
from sbp_core.client.local_log import PlacedBatches, read_placed
from sbp_core.errors import OffsetOutOfRangeError
from sbp_core.log.files import INSTANCE_NAME, SegmentHeader, encode_segment_header
from sbp_core.wire.headers import (
    AppendInfo,
    AppendRequest,
    FetchInfo,
    FetchRequest,
    FetchResponse,
    StreamRange,
    decode_header,
)
from sbp_core.wire.opcodes import Opcode
from sbp_core.wire.status import maybe_error

LARGE_BYTES = 2 * limits.LOCAL_READ_BATCH_BYTES_MIN
SMALL_SEGMENTS = {"segment_bytes": 1_000_000, "retention_check_interval_ms": 10}


class Looks:
    """What readers look for in files, and whether they find it; `before` is called before."""

    def __init__(self) -> None:
        self.found: list[PlacedBatches] = []
        self.failed_count = 0
        self.before: Callable[[PlacedBatches], None] = lambda _: None

    def read(self, placed: PlacedBatches) -> memoryview:
        self.before(placed)
        self.failed_count += 1
        payload = read_placed(placed)
        self.failed_count -= 1
        self.found.append(placed)
        return payload


@pytest.fixture(autouse=True)
def looks(monkeypatch):
    monkeypatch.setattr("sbp_core.limits.SEGMENT_BYTES_MIN", 1)
    looks = Looks()
    monkeypatch.setattr(blocking_runner, "read_placed", looks.read)
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
    """All octets of a stream from `start` to the tail."""
    octets = b""
    while True:
        outcome = fetched(client, FetchItem(stream_id, start, None, bytes_max))
        if outcome.error is not None:
            raise outcome.error
        octets += outcome.payload
        if outcome.next_offset == start:
            return octets
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


def test_batches_of_all_kinds_in_many_segments(tmp_path, looks):
    async def body(cluster, stream_id, client):
        rng = random.Random(1)
        writer = Writer("w")
        for number in range(40):
            match rng.choice(("plain", "numbered", "staged", "dropped", "small")):
                case "plain":
                    await append(cluster, stream_id, [number])
                case "numbered":
                    await append(cluster, stream_id, [number], writer=writer)
                case "staged":
                    await stage_large(client, stream_id, f"t{number}", number)
                    await append(cluster, stream_id, [number])
                    ended = await end(client, stream_id, f"t{number}", count=4)
                    assert isinstance(ended, tuple)
                case "dropped":
                    await stage_large(client, stream_id, f"t{number}", number)
                    await end(client, stream_id, f"t{number}", commit=False)
                case "small":
                    item = AppendItem(stream_id, rows_batch([b"small"], stream_id))
                    await cluster.client.append([item])
        await check_same(cluster, stream_id)
        places = [place for placed in looks.found for place in placed.places]
        assert len({place.segment for place in places}) > 3
        assert {place.prefix_length > 0 for place in places} == {True, False}
        assert looks.failed_count == 0

    async def main():
        async with one_stream(tmp_path, **SMALL_SEGMENTS) as parts:
            await asyncio.wait_for(body(*parts), 120)

    asyncio.run(main())


async def stage_large(client: RawClient, stream_id: int, txn_id: str, seed: int) -> None:
    batches = [large_batch(stream_id, seed), large_batch(stream_id, seed + 1)]
    infos = tuple(
        AppendInfo(
            StreamRange(stream_id=stream_id, range_index=0),
            at,
            len(batch),
            stream_id,
            None,
            at,
            txn_id,
        )
        for at, batch in enumerate(batches)
    )
    (answer,) = await client.ask(Opcode.APPEND, AppendRequest(0, infos), batches)
    assert [maybe_error(result.status) for result in answer.append_responses] == [None, None]


def test_segments_that_were_rewritten(tmp_path, looks, monkeypatch):
    """Batches stand elsewhere then, those that were staged too; it may go on meanwhile."""
    monkeypatch.setattr(limits, "LOCAL_READ_PAUSE_MS", 0)

    async def main():
        options = SMALL_SEGMENTS | {"segment_bytes": 4_000_000}
        async with one_stream(tmp_path, **options) as (cluster, stream_id, client):
            other = await new_stream(cluster)
            for number in range(4):
                await append(cluster, stream_id, [number])
                await append(cluster, other, range(20))
                await stage_large(client, stream_id, f"t{number}", number)
                await append(cluster, other, range(20))
                assert isinstance(await end(client, stream_id, f"t{number}", count=4), tuple)
            await cluster.client.delete_streams([other])
            await until_small(tmp_path, 10_000_000)
            await check_same(cluster, stream_id)
        places = [place for placed in looks.found for place in placed.places]
        assert {place.generation > 0 for place in places if place.prefix_length} >= {True}

    asyncio.run(asyncio.wait_for(main(), 120))


async def until_small(folder: Path, bytes_max: int) -> None:
    give_up_at = time.monotonic() + 60
    while sum(os.stat(path).st_size for path in segments(folder)) > bytes_max:  # noqa: PTH116
        assert time.monotonic() < give_up_at, "the log was not cleaned"
        await asyncio.sleep(0.02)


def segments(folder: Path) -> list[Path]:
    return sorted((folder / "rs" / "log").glob("*.log"))


def test_small_batches_come_through_the_server(tmp_path, looks):
    async def body(cluster):
        stream_id = await new_stream(cluster)
        for _ in range(6):
            item = AppendItem(stream_id, rows_batch([bytes(LARGE_BYTES // 4)], stream_id))
            await cluster.client.append([item])
        await check_same(cluster, stream_id)
        assert looks.found == []

    run(tmp_path, body)


def test_the_tail_is_waited_for(tmp_path, looks):
    async def body(cluster):
        stream_id = await new_stream(cluster)

        def wait() -> FetchOutcome:
            with Client(cluster.pd.endpoint) as client:
                items = [FetchItem(stream_id, 0, None, 1 << 20)]
                (outcome,) = client.fetch(items, max_wait_ms=60_000)
                return outcome

        waiting = asyncio.create_task(asyncio.to_thread(wait))
        await append(cluster, stream_id, [1])
        outcome = await waiting
        assert (len(looks.found), outcome.next_offset) == (1, 2)

    run(tmp_path, body)


def test_trimmed_records_are_as_out_of_range_as_ever(tmp_path):
    async def body(cluster):
        stream_id = await new_stream(cluster)
        await append(cluster, stream_id, range(4))
        await cluster.client.trim_streams({stream_id: 4})

        def read() -> FetchOutcome:
            with Client(cluster.pd.endpoint) as client:
                return fetched(client, FetchItem(stream_id, 0, None, 1 << 20))

        outcome = await asyncio.to_thread(read)
        assert isinstance(outcome.error, OffsetOutOfRangeError)
        assert outcome.error.maybe_bounds == (4, 8)
        await check_same(cluster, stream_id, 4)

    run(tmp_path, body)


def remove_segments(folder: Path) -> None:
    for path in segments(folder):
        path.unlink()


def replace_segments(folder: Path) -> None:
    """As the cleaner does: another file, of the next generation, has the name."""
    for path in segments(folder):
        other = path.with_suffix(".tmp")
        other.write_bytes(encode_segment_header(SegmentHeader(int(path.stem), 1)))
        other.replace(path)


def cut_segments(folder: Path) -> None:
    for path in segments(folder):
        other = path.with_suffix(".tmp")
        other.write_bytes(path.read_bytes()[: -LARGE_BYTES // 2])
        other.replace(path)


def flip_octets(folder: Path) -> None:
    for path in segments(folder):
        with path.open("r+b") as file:
            file.seek(-100, os.SEEK_END)
            octet = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([octet[0] ^ 1]))


def shift_entries(folder: Path) -> None:
    """What stands in the file is whole, but belongs to another place."""
    for path in segments(folder):
        other = path.with_suffix(".tmp")
        data = path.read_bytes()
        other.write_bytes(data[:40] + data[44:] + data[40:44])
        other.replace(path)


def name_another_server(folder: Path) -> None:
    (folder / "rs" / "log" / INSTANCE_NAME).write_text("another")


def forget_the_server(folder: Path) -> None:
    (folder / "rs" / "log" / INSTANCE_NAME).unlink()


def put_a_pipe_there(folder: Path) -> None:
    """Opened for reading, it would wait for a writer."""
    forget_the_server(folder)
    os.mkfifo(folder / "rs" / "log" / INSTANCE_NAME)


@pytest.mark.parametrize(
    "harm",
    [
        remove_segments,
        replace_segments,
        cut_segments,
        flip_octets,
        shift_entries,
        name_another_server,
        forget_the_server,
        put_a_pipe_there,
    ],
)
def test_what_is_not_in_the_files_comes_through_the_server(tmp_path, looks, harm):
    """The server has its files open, and the last batches in memory. It is not asked for places for
    a while then."""

    async def body(cluster):
        stream_id = await new_stream(cluster)
        await append(cluster, stream_id, range(4))

        def harm_once(_):
            looks.before = lambda _: None
            harm(tmp_path)

        looks.before = harm_once

        def read() -> list[bytes]:
            with Client(cluster.pd.endpoint) as here:
                return [octets_of(here, stream_id, 0, 1 << 22) for _ in range(3)]

        with_server = await asyncio.to_thread(read)
        assert (looks.found, looks.failed_count) == ([], 1)
        with Client(cluster.pd.endpoint, reads_locally=False) as far:
            assert with_server == 3 * [await asyncio.to_thread(octets_of, far, stream_id, 0)]

    run(tmp_path, body)


def test_files_are_tried_again_after_a_while(tmp_path, looks, monkeypatch):
    monkeypatch.setattr(limits, "LOCAL_READ_PAUSE_MS", 0)

    async def body(cluster):
        stream_id = await new_stream(cluster)
        await append(cluster, stream_id, range(4))
        instance = tmp_path / "rs" / "log" / INSTANCE_NAME
        own = instance.read_bytes()
        instance.write_text("another")

        def let_it_be(_):
            if looks.failed_count == 1:
                instance.write_bytes(own)

        looks.before = let_it_be
        await check_same(cluster, stream_id)
        assert looks.failed_count == 1
        assert looks.found

    run(tmp_path, body)


def test_a_server_that_keeps_its_files_to_itself(tmp_path, looks):
    async def body(cluster):
        stream_id = await new_stream(cluster)
        await append(cluster, stream_id, range(4))
        await check_same(cluster, stream_id)
        assert (looks.found, looks.failed_count) == ([], 0)

    run(tmp_path, body, local_reads=False)


def test_a_log_whose_instance_cannot_be_written(tmp_path, looks, caplog):
    (tmp_path / "rs" / "log").mkdir(parents=True)
    (tmp_path / "rs" / "log" / INSTANCE_NAME).mkdir()

    async def body(cluster):
        stream_id = await new_stream(cluster)
        await append(cluster, stream_id, range(4))
        await check_same(cluster, stream_id)
        assert (looks.found, looks.failed_count) == ([], 0)

    run(tmp_path, body)
    assert "readers on this machine go through the server" in caplog.text


def test_who_does_not_ask_gets_octets(tmp_path):
    """As older clients and the asyncio client do."""

    async def body(cluster):
        stream_id = await new_stream(cluster)
        await append(cluster, stream_id, [1])
        async with AsyncClient(cluster.pd.endpoint) as client:
            item = FetchItem(stream_id, 0, None, 1 << 20)
            (outcome,) = [outcome async for outcome in client.fetch([item])]
            assert len(outcome.payload) > LARGE_BYTES

    run(tmp_path, body)


@pytest.mark.parametrize(("address", "is_here"), [("127.0.0.1", True), ("127.0.0.2", False)])
def test_who_comes_from_elsewhere_gets_octets(tmp_path, address, is_here):
    async def body(cluster):
        stream_id = await new_stream(cluster)
        await append(cluster, stream_id, [1])
        info = FetchInfo(StreamRange(stream_id=stream_id), batch_max_bytes=1 << 20)
        async with RawClient.at(cluster.server.endpoint, from_address=address) as client:
            (frame,) = await client.call(
                Opcode.FETCH, FetchRequest(0, 1, (info,), takes_places=True)
            )
        answer = decode_header(FetchResponse, frame.header)
        (result,) = answer.fetch_responses
        assert (bool(result.places), not frame.payload) == (is_here, is_here)
        assert (answer.log_directory is not None) == is_here

    run(tmp_path, body)
