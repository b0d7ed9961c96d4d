"""END_TXN: staged batches become visible in one step, in order, once; or they are dropped."""

from __future__ import annotations

import asyncio
import time

import pytest
from msgspec.structs import replace

from sbp_core import limits
from sbp_core.client import AppendItem, FetchItem, StreamSpec, StreamUpdate
from sbp_core.errors import (
    InvalidRequestError,
    OffsetOutOfRangeError,
    RequestTimeoutError,
    TxnEndedError,
    TxnIncompleteError,
)
from sbp_core.log.states.staged_states import StagedStates
from sbp_core.rangeserver.appending.append_items import InFlight, PendingAppend
from sbp_core.rangeserver.appending.end_txn import EndTxnHandler
from sbp_core.rangeserver.appending.staging import Stagings
from sbp_core.session.negotiation import NO_FEATURES
from sbp_core.wire.headers import EndTxnInfo, EndTxnRequest
from sbp_core.wire.opcodes import Opcode
from tests.support.appends import (
    end,
    end_all,
    letters_of,
    one_driven_stream,
    open_txns,
    read_staged,
    stage,
)
from tests.support.clock import ManualClock
from tests.support.cluster import Known, core_cluster, driver_at, rows_batch
from tests.support.disk import HeldDisk
from tests.support.wire import RawClient


def run(folder, body, **options):
    async def main():
        async with one_driven_stream(folder, **options) as parts:
            await asyncio.wait_for(body(*parts), 60)

    asyncio.run(main())


async def eventually(is_so):
    give_up_at = time.monotonic() + 30
    while not await is_so():
        assert time.monotonic() < give_up_at, "it did not happen in time"
        await asyncio.sleep(0.02)


async def append(cluster, stream_id, letter):
    (outcome,) = await cluster.client.append([AppendItem(stream_id, rows_batch([letter.encode()]))])
    return outcome.base_offset


def test_items_of_a_frame_share_a_sync_and_fail_alone(tmp_path):
    async def body(cluster, stream_id, client):
        specs = [StreamSpec(f"s{number}") for number in range(50)]
        streams = [each.stream_id for each in await cluster.client.create_streams(specs)]
        for each in streams:
            assert await stage(client, each, "t", "ab") == [-1]
        count = disk.sync_count
        infos = [EndTxnInfo(each, at, ("t",), True, 0, 2) for at, each in enumerate(streams)]
        infos[7] = replace(infos[7], record_count=3)
        infos[8] = replace(infos[8], commit=False)
        outcomes = await end_all(client, *infos)
        assert disk.sync_count - count <= 2
        assert isinstance(outcomes.pop(7), TxnIncompleteError)
        assert outcomes.pop(7) == (-1, 2)
        assert outcomes == [(0, 2)] * 48
        assert await open_txns(client) == [("t", 0, 2)]
        assert await letters_of(cluster, streams[0]) == "ab"
        assert await letters_of(cluster, streams[8]) == ""

    disk = HeldDisk()
    disk.gate.set()
    run(tmp_path, body, disk=disk)


def test_an_end_waits_for_pending_appends_and_refuses_new_ones(tmp_path):
    async def body(cluster, stream_id, client):
        async with (
            RawClient.at(cluster.server.endpoint) as appender,
            driver_at(cluster.server.endpoint, tmp_path / "rs") as ender,
        ):
            await stage(client, stream_id, "other", "-")  # the server knows the stream then
            disk.gate.clear()

            async def refusal():
                """The refusal of a batch that is never the next one; it reports the progress."""
                (refused,) = await stage(appender, stream_id, "t", "z", first=9)
                return refused

            async def is_taken():
                return (await refusal()).expected == 1

            async def is_closing():
                return isinstance(await refusal(), TxnEndedError)

            staging = asyncio.create_task(stage(appender, stream_id, "t", "ab"))
            await eventually(is_taken)
            ending = [
                asyncio.create_task(end(each, stream_id, "t", count=2)) for each in (ender, client)
            ]
            await eventually(is_closing)
            late = await asyncio.gather(
                stage(appender, stream_id, "t", "c", first=1),
                stage(appender, stream_id, "t", "ab"),
            )
            assert all(isinstance(each, TxnEndedError) for (each,) in late)
            assert not staging.done()
            disk.gate.set()
            assert await staging == [-1]
            assert await asyncio.gather(*ending) == [(0, 2), (0, 2)]
            assert await letters_of(cluster, stream_id) == "ab"

    disk = HeldDisk()
    disk.gate.set()
    run(tmp_path, body, disk=disk)


def test_an_end_whose_caller_left_is_completed(tmp_path):
    async def body(cluster, stream_id, client):
        await stage(client, stream_id, "t", "a")
        disk.gate.clear()
        info = EndTxnInfo(stream_id, 0, ("t",), True, 0, 1)
        async with RawClient.at(cluster.server.endpoint) as hasty:
            assert (await hasty.greet(NO_FEATURES)).has_deadline
            await Known.of(tmp_path / "rs").prove(hasty)
            with pytest.raises(RequestTimeoutError):
                await hasty.ask(Opcode.END_TXN, EndTxnRequest(1, (info,)))
            while not cluster.server._committer.pending_bytes:  # it was late before it began
                with pytest.raises(RequestTimeoutError):
                    await hasty.ask(Opcode.END_TXN, EndTxnRequest(100, (info,)))
        (late,) = await stage(client, stream_id, "t", "b", first=1)
        assert isinstance(late, TxnEndedError)
        disk.gate.set()
        assert await end(client, stream_id, "t", count=1) == (0, 1)
        assert await letters_of(cluster, stream_id) == "a"

    disk = HeldDisk()
    disk.gate.set()
    run(tmp_path, body, disk=disk)


def test_readers_that_wait_see_all_of_it_at_once(tmp_path):
    async def body(cluster, stream_id, client):
        item = FetchItem(stream_id, 0, None, 1 << 20)

        async def first():
            (outcome,) = [each async for each in cluster.client.fetch([item], max_wait_ms=30_000)]
            return outcome

        reading = asyncio.create_task(first())
        await stage(client, stream_id, "t", "ab", "c")
        await stage(client, stream_id, "u", "d")
        assert not reading.done()
        assert await end(client, stream_id, "t", "u") == (0, 4)
        assert (await reading).next_offset == 4

    run(tmp_path, body)


def test_published_records_are_of_the_time_of_their_end(tmp_path):
    async def body(cluster, stream_id, client):
        await append(cluster, stream_id, "-")
        first_ms = clock.wall_ms()
        clock.advance(1_000)
        await stage(client, stream_id, "t", "a")
        clock.advance(1_000)
        await append(cluster, stream_id, "-")
        clock.advance(1_000)
        assert await end(client, stream_id, "t") == (2, 1)
        times = [await cluster.client.append_times({stream_id: offset}) for offset in range(3)]
        assert [each[stream_id] - first_ms for each in times] == [0, 2_000, 3_000]
        since = {stream_id: 1000 * (first_ms + 2_001)}
        assert await cluster.client.lookup_offsets(since) == {stream_id: 2}

    clock = ManualClock()
    run(tmp_path, body, clock=clock)


def test_published_records_are_trimmed_and_kept_as_all_others(tmp_path):
    async def body(cluster, stream_id, client):
        await stage(client, stream_id, "t", "ab", "cd")
        await end(client, stream_id, "t")
        await append(cluster, stream_id, "-")
        await cluster.client.trim_streams({stream_id: 2})
        with pytest.raises(OffsetOutOfRangeError):
            await cluster.read(stream_id)
        assert [value for _, value in await cluster.read(stream_id, 2)] == [b"c", b"d", b"-"]
        assert await end(client, stream_id, "t") == (0, 4)
        await cluster.client.update_streams([StreamUpdate(stream_id, retention_bytes=1)])

        async def begins_behind():
            return (await cluster.client.stream_bounds([stream_id]))[0].start_offset == 4

        await eventually(begins_behind)
        assert [value for _, value in await cluster.read(stream_id, 4)] == [b"-"]

    run(tmp_path, body, retention_check_interval_ms=10)


def test_a_batch_staged_many_segments_ago_is_published(tmp_path):
    """Also after those segments were rewritten, and the server was restarted."""
    large = "x" * (1 << 20)

    async def main():
        async with one_driven_stream(tmp_path, **options) as (cluster, stream_id, client):
            assert await stage(client, stream_id, "t", "ab", "c") == [-1, -1]
            other = (await cluster.client.create_streams([StreamSpec("other")]))[0].stream_id
            for _ in range(8):
                item = AppendItem(other, rows_batch([large.encode()] * 5))
                await cluster.client.append([item])
            await cluster.client.delete_streams([other])

            async def is_clean():
                files = (tmp_path / "rs" / "log").glob("*.log")
                return sum(file.stat().st_size for file in files) < 2 * limits.SEGMENT_BYTES_MIN

            await eventually(is_clean)
        async with (
            core_cluster(tmp_path, **options) as cluster,
            driver_at(cluster.server.endpoint, tmp_path / "rs") as client,
        ):
            assert await read_staged(client, stream_id, "t") == ("abc", 2)
            assert await end(client, stream_id, "t", count=3) == (0, 3)
            assert await letters_of(cluster, stream_id) == "abc"

    options = {"segment_bytes": limits.SEGMENT_BYTES_MIN, "retention_check_interval_ms": 10}
    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_stopping_server_completes_ends():
    async def main():
        in_flight = InFlight()
        handler = EndTxnHandler(None, Stagings(StagedStates(), in_flight), None)
        written = asyncio.get_running_loop().create_future()
        pending = PendingAppend((1, 0, "t"), 0, -1, 1, memoryview(b""), 0)
        in_flight.begin(pending)
        in_flight.follow([pending], written)
        dropping = asyncio.create_task(handler.drop(1, 0, ["t"]))
        await asyncio.sleep(0)
        dropping.cancel()
        stopping = asyncio.create_task(handler.stop())
        await asyncio.wait([stopping], timeout=0.1)
        assert not stopping.done(), "a batch waits for the disk, and the end for that"
        written.set_result(9)
        await asyncio.wait_for(stopping, 10)
        await handler.stop()

    asyncio.run(main())


def test_a_refusal_does_not_grow_with_the_transactions(tmp_path):
    async def body(cluster, stream_id, client):
        ids = [f"{number:0>{limits.TXN_ID_LENGTH_MAX}}" for number in range(500)]
        await stage(client, stream_id, ids[0], "a")
        assert await end(client, stream_id, *ids) == (0, 1)
        refused = await end(client, stream_id, ids[1])
        assert isinstance(refused, InvalidRequestError)
        assert "with others, 500 in all" in str(refused)
        assert len(str(refused)) < limits.KIB

    run(tmp_path, body)
