"""A range server with many segments, lost indexes, or damaged log files."""

from __future__ import annotations

import asyncio
import random

import pytest

from sbp_core import limits
from sbp_core.client import AppendItem, FetchItem, StreamSpec
from sbp_core.errors import StatusCode, StorageError
from sbp_core.log.disk import OsDisk, OsFile
from sbp_core.log.entry import SNAPSHOT_KINDS
from sbp_core.log.states.range_states import RecordSpan
from sbp_core.rangeserver.appending.commit import GroupCommitter
from sbp_core.segment_format import SEGMENT_HEADER_BYTES, EntryKind
from tests.support.appends import end, one_driven_stream, stage
from tests.support.cluster import core_cluster, rows_batch, values_of
from tests.support.log import logged

STREAM, OTHER = 1, 2


def run(test, folder, **options):
    async def body():
        async with core_cluster(folder, **options) as cluster:
            return await asyncio.wait_for(test(cluster), 60)

    return asyncio.run(body())


async def create_streams(cluster):
    specs = [StreamSpec("one"), StreamSpec("other")]
    streams = await cluster.client.create_streams(specs)
    assert [stream.stream_id for stream in streams] == [STREAM, OTHER]


async def append(cluster, stream_id, *values):
    (outcome,) = await cluster.client.append([AppendItem(stream_id, rows_batch(values))])
    return outcome.base_offset


async def fetch(cluster, stream_id, offset):
    item = FetchItem(stream_id, offset, None, 1 << 20)
    (outcome,) = [outcome async for outcome in cluster.client.fetch([item])]
    if outcome.error is not None:
        raise outcome.error
    return values_of(outcome.payload)


def log_files(folder, suffix):
    return sorted((folder / "rs" / "log").glob(f"*.{suffix}"))


def flip(path, position):
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def test_old_segments_are_read_by_offset_after_a_restart_with_and_without_their_indexes(tmp_path):
    values = [random.Random(number).randbytes(3 << 20) for number in range(16)]
    options = {"segment_bytes": limits.SEGMENT_BYTES_MIN}

    async def fill(cluster):
        await create_streams(cluster)
        for number, value in enumerate(values):
            assert await append(cluster, STREAM, value) == number
            await append(cluster, OTHER, b"%d" % number)

    async def check(cluster):
        for offset in (0, 7, 3, 15, 11):
            assert await fetch(cluster, STREAM, offset) == [(offset, values[offset])]
        assert await cluster.read(OTHER, max_bytes=1) == [(n, b"%d" % n) for n in range(16)]
        assert len(await fetch(cluster, OTHER, 2)) == 14, "one answer goes over segments"

    run(fill, tmp_path, **options)
    assert len(log_files(tmp_path, "log")) > 2
    before = {path: path.read_bytes() for path in log_files(tmp_path, "idx")}
    run(check, tmp_path, **options)
    for path in before:
        path.unlink()
    run(check, tmp_path, **options)
    assert {path: path.read_bytes() for path in before} == before


def test_a_damaged_batch_is_refused_by_name_and_everything_else_is_served(tmp_path):
    async def fill(cluster):
        await create_streams(cluster)
        for stream_id in (STREAM, OTHER):
            for number in range(4):
                await append(cluster, stream_id, b"value-%d-of-%d" % (number, stream_id))

    async def check(cluster):
        (damaged,) = cluster.server._log.recovery.damaged_batches
        assert damaged.records == RecordSpan(STREAM, 0, 2, 3)
        assert await fetch(cluster, STREAM, 0) == [
            (number, b"value-%d-of-1" % number) for number in range(2)
        ]
        with pytest.raises(StorageError) as caught:
            await fetch(cluster, STREAM, 2)
        assert caught.value.code == StatusCode.RS_DATA_CORRUPTED
        assert not caught.value.retriable
        for part in (str(path), "offsets [2, 3)", "range 0", f"stream {STREAM}"):
            assert part in caught.value.message
        assert await fetch(cluster, STREAM, 3) == [(3, b"value-3-of-1")]
        assert len(await cluster.read(OTHER)) == 4
        items = [FetchItem(STREAM, 2, None, 1 << 20), FetchItem(OTHER, 2, None, 1 << 20)]
        outcomes = {each.stream_id: each async for each in cluster.client.fetch(items)}
        assert isinstance(outcomes[STREAM].error, StorageError)
        assert len(values_of(outcomes[OTHER].payload)) == 2
        assert await append(cluster, STREAM, b"on it goes") == 4

    run(fill, tmp_path)
    (path,) = log_files(tmp_path, "log")
    flip(path, path.read_bytes().index(b"value-2-of-1"))
    run(check, tmp_path)


def test_a_batch_that_rots_while_the_server_runs_is_never_served(tmp_path):
    async def fill(cluster):
        await create_streams(cluster)
        await append(cluster, STREAM, b"a value")

    async def body(cluster):
        assert await fetch(cluster, STREAM, 0) == [(0, b"a value")]
        (path,) = log_files(tmp_path, "log")
        with path.open("r+b") as file:
            file.seek(path.read_bytes().index(b"a value"))
            file.write(b"b")
        with pytest.raises(StorageError, match=r"offsets \[0, 1\).*checksum"):
            await fetch(cluster, STREAM, 0)

    run(fill, tmp_path)
    run(body, tmp_path)  # after a restart it has nothing in memory


def test_a_damaged_header_refuses_the_start_and_changes_nothing(tmp_path):
    async def fill(cluster):
        await create_streams(cluster)
        await append(cluster, STREAM, b"a value")

    run(fill, tmp_path)
    (path,) = log_files(tmp_path, "log")
    flip(path, SEGMENT_HEADER_BYTES + 5)
    before = path.read_bytes()
    with pytest.raises(Exception, match=f"{path} is damaged at log position"):
        run(fill, tmp_path)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "cache", [OsFile.maybe_pread_cached, lambda *_: None], ids=["cached", "uncached"]
)
def test_the_same_is_served_with_and_without_cached_reads(tmp_path, monkeypatch, cache):
    monkeypatch.setattr(OsFile, "maybe_pread_cached", cache)

    async def body(cluster):
        await create_streams(cluster)
        for number in range(5):
            await append(cluster, STREAM, b"value %d" % number)
        wanted = [(number, b"value %d" % number) for number in range(5)]
        assert await cluster.read(STREAM) == wanted
        assert await cluster.read(STREAM, 3) == wanted[3:]

    run(body, tmp_path)


def test_every_entry_of_the_log_was_submitted_to_the_group_committer(tmp_path, monkeypatch):
    """Entries that bypass it would not be copied to other servers."""
    submitted = []
    submit = GroupCommitter.submit

    def noted(committer, entries, memory_bytes=0):
        submitted.extend(entries)
        return submit(committer, entries, memory_bytes)

    monkeypatch.setattr(GroupCommitter, "submit", noted)

    async def body():
        async with one_driven_stream(tmp_path) as (cluster, stream_id, client):
            await append(cluster, stream_id, b"a")
            assert await stage(client, stream_id, None, "b", writer="w") == [1]
            assert await stage(client, stream_id, "t", "c") == [-1]
            assert await end(client, stream_id, "t") == (2, 1)
            assert await stage(client, stream_id, "u", "d") == [-1]
            assert await end(client, stream_id, "u", commit=False) == (-1, 1)
            await cluster.client.trim_streams({stream_id: 1})
            await cluster.client.seal_streams([stream_id])
            await append(cluster, stream_id, b"e")
            await cluster.client.delete_streams([stream_id])

    asyncio.run(asyncio.wait_for(body(), 60))
    found = [entry for entry, _ in logged(OsDisk(), tmp_path / "rs" / "log")]
    kinds = {entry.kind for entry in found}
    moved_only = {EntryKind.RANGE_WRITERS}  # only for a range moved from another server
    replicated_only = {EntryKind.FENCED, EntryKind.SETTLED, EntryKind.COPY_BEGUN}
    own = {EntryKind.COMMIT} | SNAPSHOT_KINDS
    assert kinds == set(EntryKind) - own - moved_only - replicated_only

    def of(entry):
        return entry.kind, entry.stream_id, entry.range_index, entry.base_offset, entry.count

    assert list(map(of, found)) == list(map(of, submitted))
