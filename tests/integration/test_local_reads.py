"""Readers on the machine of a range server read its files; what they get is what it would send."""

from __future__ import annotations

import asyncio
import os
import random
import time
from pathlib import Path

import pytest

from sbp_core import limits
from sbp_core.client import (
    LATEST,
    AppendItem,
    AsyncClient,
    Client,
    FetchItem,
    FetchOutcome,
    Writer,
)
from sbp_core.errors import OffsetOutOfRangeError
from sbp_core.segment_format import INSTANCE_NAME, SegmentHeader, encode_segment_header
from sbp_core.session.negotiation import Wishes
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
from tests.support.appends import end, one_driven_stream
from tests.support.cluster import CoreCluster, rows_batch
from tests.support.local_reads import (
    LARGE_BYTES,
    SMALL_SEGMENTS,
    append,
    check_same,
    fetched,
    large_batch,
    new_stream,
    octets_of,
    remove_segments,
    run,
    segments,
    watch_looks,
)
from tests.support.wire import RawClient


@pytest.fixture(autouse=True)
def looks(monkeypatch):
    return watch_looks(monkeypatch)


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
        async with one_driven_stream(tmp_path, **SMALL_SEGMENTS) as parts:
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
    """Batches, staged ones too, have moved then; the rewrite may go on during the read."""
    monkeypatch.setattr(limits, "LOCAL_READ_PAUSE_MS", 0)

    async def main():
        options = SMALL_SEGMENTS | {"segment_bytes": 4_000_000}
        async with one_driven_stream(tmp_path, **options) as (cluster, stream_id, client):
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


def test_small_batches_come_through_the_server(tmp_path, looks):
    async def body(cluster):
        stream_id = await new_stream(cluster)
        for _ in range(6):
            item = AppendItem(stream_id, rows_batch([bytes(LARGE_BYTES // 4)], stream_id))
            await cluster.client.append([item])
        await check_same(cluster, stream_id)
        assert (looks.found, looks.failed_count) == ([], 0)

    run(tmp_path, body)


def test_the_tail_is_waited_for(tmp_path, looks):
    async def body(cluster):
        stream_id = await new_stream(cluster)
        waiting = asyncio.create_task(asyncio.to_thread(wait_at, cluster, stream_id, 0))
        await until_waited_for(cluster)
        await append(cluster, stream_id, [1])
        outcome = await waiting
        assert (len(looks.found), outcome.next_offset) == (1, 2)

    run(tmp_path, body)


def test_the_tail_that_was_waited_for_is_not_passed_over(tmp_path, looks):
    """Asked again for bytes, the server would take the tail of then for the one that is meant."""

    async def body(cluster):
        stream_id = await new_stream(cluster)
        await append(cluster, stream_id, [1])
        (tmp_path / "rs" / "log" / INSTANCE_NAME).write_text("another")
        waiting = asyncio.create_task(asyncio.to_thread(wait_at, cluster, stream_id, LATEST))
        await until_waited_for(cluster)
        await append(cluster, stream_id, [2])
        outcome = await waiting
        assert looks.failed_count == 1
        assert (outcome.next_offset, len(outcome.payload) > LARGE_BYTES) == (4, True)

    run(tmp_path, body)


def wait_at(cluster: CoreCluster, stream_id: int, offset: int) -> FetchOutcome:
    with Client(cluster.pd.endpoint) as client:
        items = [FetchItem(stream_id, offset, None, 1 << 20)]
        (outcome,) = client.fetch(items, max_wait_ms=60_000)
        return outcome


async def until_waited_for(cluster: CoreCluster) -> None:
    give_up_at = time.monotonic() + 60
    while not cluster.server._waiters._events:
        assert time.monotonic() < give_up_at, "no fetch waits"
        await asyncio.sleep(0.005)


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
        assert outcome.error.bounds == (4, 8)
        await check_same(cluster, stream_id, 4)

    run(tmp_path, body)


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


def flip_bytes(folder: Path) -> None:
    for path in segments(folder):
        with path.open("r+b") as file:
            file.seek(-100, os.SEEK_END)
            byte = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte[0] ^ 1]))


def shift_entries(folder: Path) -> None:
    """The entries are whole, but belong to another position."""
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
        flip_bytes,
        shift_entries,
        name_another_server,
        forget_the_server,
        put_a_pipe_there,
    ],
)
def test_bytes_missing_from_the_files_come_through_the_server(tmp_path, looks, harm):
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


def test_a_log_whose_folder_is_no_text(tmp_path, looks, caplog):
    folder = tmp_path / os.fsdecode(b"\xff")

    async def body(cluster):
        stream_id = await new_stream(cluster)
        await append(cluster, stream_id, range(4))
        await check_same(cluster, stream_id)
        assert (looks.found, looks.failed_count) == ([], 0)

    run(folder, body)
    assert "local reads off" in caplog.text


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
    assert "local reads off" in caplog.text


def test_a_client_that_does_not_ask_gets_bytes(tmp_path):
    """As older clients and the asyncio client do."""

    async def body(cluster):
        stream_id = await new_stream(cluster)
        await append(cluster, stream_id, [1])
        async with AsyncClient(cluster.pd.endpoint) as client:
            item = FetchItem(stream_id, 0, None, 1 << 20)
            (outcome,) = [outcome async for outcome in client.fetch([item])]
            assert len(outcome.payload) > LARGE_BYTES

    run(tmp_path, body)


@pytest.mark.parametrize(
    ("address", "isolation", "is_here"),
    [("127.0.0.1", "", True), ("127.0.0.2", "", False), ("127.0.0.1", "backfill", False)],
)
def test_a_remote_or_isolated_client_gets_bytes(tmp_path, address, isolation, is_here):
    async def body(cluster):
        stream_id = await new_stream(cluster)
        await append(cluster, stream_id, [1])
        info = FetchInfo(StreamRange(stream_id=stream_id), batch_max_bytes=1 << 20)
        async with RawClient.at(cluster.server.endpoint, from_address=address) as client:
            await client.greet(Wishes(isolation=isolation))
            (frame,) = await client.call(
                Opcode.FETCH, FetchRequest(0, 1, (info,), takes_places=True)
            )
        answer = decode_header(FetchResponse, frame.header)
        (result,) = answer.fetch_responses
        assert (bool(result.places), not frame.payload) == (is_here, is_here)
        assert (answer.log_directory is not None) == is_here

    run(tmp_path, body)
