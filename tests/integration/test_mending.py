"""Damage in the log of one of three servers, while the others are whole."""

import asyncio
from pathlib import Path

import pytest
from test_replication import append, hosted_at, is_sealed, read_all, run, seal

from sbp_core.client import AppendItem, StreamSpec, Writer
from sbp_core.errors import StatusCode
from sbp_core.log.disk import OsDisk
from sbp_core.log.segment_scan import Damage, SegmentScanner
from sbp_core.log.states.replicated_entries import NUMBERED_KINDS
from sbp_core.rangeserver.server import RangeServer
from sbp_core.segment_format import EntryKind
from sbp_core.wire.headers import FetchInfo, FetchRequest, StreamRange
from sbp_core.wire.opcodes import Opcode
from tests.support.appends import end, stage
from tests.support.cluster import driver_at, rows_batch
from tests.support.log import bodies
from tests.support.wire import RawClient


def spoil(path: Path, kinds) -> int:
    """Flip a bit in the bodies of all entries of some kinds; return how many these are."""
    data, count = bytearray(path.read_bytes()), 0
    base = int(path.stem)
    file = OsDisk().open(path, is_writable=False)
    for item in SegmentScanner(file, base, len(data)).entries():
        assert not isinstance(item, Damage)
        entry, location = item
        if entry.kind in kinds and entry.body:
            data[location.end - base - 1] ^= 8
            count += 1
    path.write_bytes(data)
    return count


def log_file(server) -> Path:
    return min((server._settings.data_dir / "log").glob("*.log"))


def is_whole(server, stream_id):
    return server._log.maybe_range((stream_id, 0)).is_whole


async def fetched(client, stream_id):
    info = FetchInfo(StreamRange(stream_id=stream_id, range_index=0), fetch_offset=0)
    (answer,) = await client.ask(Opcode.FETCH, FetchRequest(30_000, 1, (info,)))
    return answer.fetch_responses[0].status.code


async def a_range_with_all_kinds(cluster, client):
    """A stream whose open range is equal on all servers, and its primary."""
    (stream,) = await client.create_streams([StreamSpec("copied", replica_count=3)])
    writer = Writer()
    for number in range(4):
        item = AppendItem(stream.stream_id, rows_batch([b"%d" % number]))
        await client.append([item], writer=writer, retry_unknown=True)
    copies = hosted_at(cluster, stream.stream_id, 0)
    led = next(each for each in cluster._range_servers if copies[each.endpoint].is_led)
    async with driver_at(led.endpoint, led._settings.data_dir) as driver:
        assert await stage(driver, stream.stream_id, "t", "a", "bc") == [-1, -1]
        assert await end(driver, stream.stream_id, "t") == (4, 3)
    while len({each.durable for each in copies.values()}) > 1:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    return stream.stream_id, led


@pytest.mark.parametrize("is_primary", [True, False])
def test_the_scrub_mends_what_is_damaged_in_an_open_range(tmp_path, is_primary):
    async def body(cluster, client):
        stream_id, led = await a_range_with_all_kinds(cluster, client)
        victim = next(each for each in cluster._range_servers if (each is led) == is_primary)
        path = log_file(victim)
        before = path.read_bytes()
        kinds = NUMBERED_KINDS - {EntryKind.TXN_END}
        assert spoil(path, kinds) == 4 + 4 + 2
        victim._log.end_segment()
        while path.read_bytes() != before:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        assert await append(client, stream_id, b"on") == 7
        assert victim._settler.scrubber.damaged_count == 0

    run(tmp_path, body, scrub_bytes_per_s=1 << 20)


def test_what_cannot_be_mended_is_counted(tmp_path, caplog):
    async def body(cluster, client):
        (stream,) = await client.create_streams([StreamSpec("alone")])
        for number in range(3):
            await append(client, stream.stream_id, b"%d" % number)
        (server,) = cluster._range_servers
        assert spoil(log_file(server), {EntryKind.BATCH}) == 3
        server._log.end_segment()
        scrubber = server._settler.scrubber
        while not scrubber.damaged_count:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        assert (await server._report(None)).range_missing_replica_cnt == 1
        assert "restore the file from a backup" in caplog.text

    run(tmp_path, body, range_servers=1, scrub_bytes_per_s=1 << 20)


@pytest.mark.parametrize("is_settled", [False, True])
def test_a_damaged_copy_is_passed_over_and_becomes_whole(tmp_path, is_settled):
    """A secondary starts again with damage to what it had; the others end the range without it.

    Or the range was settled there before.
    """

    async def body(cluster, client):
        stream_id, led = await a_range_with_all_kinds(cluster, client)
        victim = next(each for each in cluster._range_servers if each is not led)
        if is_settled:
            await seal(cluster, stream_id)
            while not is_sealed(victim, stream_id):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        await victim.stop()
        assert spoil(log_file(victim), {EntryKind.BATCH, EntryKind.STAGED}) == 6
        again = RangeServer(victim._settings)
        cluster._range_servers[cluster._range_servers.index(victim)] = again
        await again.start()
        assert not is_whole(again, stream_id)
        if not is_settled:
            await seal(cluster, stream_id)
        records = await read_all(client, stream_id)
        assert [offset for offset, _ in records] == list(range(7))
        while not (is_sealed(again, stream_id) and is_whole(again, stream_id)):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        assert again._log.maybe_range((stream_id, 0)) == led._log.maybe_range((stream_id, 0))
        assert bodies(again._log, 0, (stream_id, 0)) == bodies(led._log, 0, (stream_id, 0))
        assert spoil(log_file(again), {EntryKind.BATCH}) == 4  # a reader finds it
        async with RawClient.at(again.endpoint) as reader:
            assert await fetched(reader, stream_id) == StatusCode.RS_DATA_CORRUPTED
            while await fetched(reader, stream_id) != StatusCode.NONE:  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    run(tmp_path, body)
