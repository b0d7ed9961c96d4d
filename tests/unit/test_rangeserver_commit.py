"""Group commit: sharing, order, and what happens when the disk fails."""

import asyncio
import gc

import pytest

from sbp_core import limits
from sbp_core.errors import LogError, LogWriteError, ThrottledError
from sbp_core.rangeserver.appending.commit import GroupCommitter
from tests.support.disk import HeldDisk
from tests.support.log import batch, created, open_log


def entry(number):
    return created(1, number)


def run(tmp_path, body, sync_interval_ms=0):
    async def main():
        disk = HeldDisk()
        disk.gate.set()
        log = open_log(disk, tmp_path / "log", segment_bytes=limits.SEGMENT_BYTES)
        disk.gate.clear()
        disk.sync_count = 0
        durable = []
        committer = GroupCommitter(log, sync_interval_ms)
        committer.start(lambda ranges: durable.extend(each.range_index for each in ranges))
        try:
            await asyncio.wait_for(body(committer, disk, durable), 30)
        finally:
            disk.error = None
            disk.gate.set()
            await committer.stop()
            log.close()

    asyncio.run(main())


def test_whatever_arrives_during_a_sync_shares_the_next_one(tmp_path):
    async def body(committer, disk, durable):
        first = committer.submit([entry(0)])
        await asyncio.sleep(0)
        rest = [committer.submit([entry(n)]) for n in range(1, 50)]
        assert not first.done()
        assert durable == []
        disk.gate.set()
        await asyncio.gather(first, *rest)
        assert durable == list(range(50))
        assert disk.sync_count <= 3

    run(tmp_path, body)


def test_entries_of_another_server_that_contradict_the_log_are_refused_alone(tmp_path, caplog):
    """And those behind them, which were queued; the ranges of others go on."""
    key = (1, 0)

    async def body(committer, disk, durable):
        first = committer.submit([created(*key)])
        await asyncio.sleep(0)
        good = committer.submit([batch(0, key=key)], 0, key)
        wrong = committer.submit([batch(7, key=key)], 30, key)
        behind = committer.submit([batch(1, key=key)], 0, key)
        other = committer.submit([created(2)], 0, (2, 0))
        disk.gate.set()
        await asyncio.gather(first, good, other)
        later = committer.submit([batch(1, key=key)], 0, key)
        for refused in (wrong, behind, later):
            with pytest.raises(LogError, match="offset 7"):
                await refused
        committer.forgive(key)
        await committer.submit([batch(1, key=key)], 0, key)
        assert not committer.failed.done()
        assert committer.pending_bytes == 0
        assert "entries of another server refused stream=1 range=0" in caplog.text
        own = committer.submit([batch(9, key=key)])
        with pytest.raises(LogWriteError):
            await own

    run(tmp_path, body)


def test_a_failure_without_a_waiter_is_not_reported_to_the_loop(tmp_path, caplog):
    async def body(committer, disk, durable):
        disk.error = OSError(5, "Input/output error")
        committer.submit([entry(0)])
        disk.gate.set()
        await committer.failed
        committer.submit([entry(1)])

    run(tmp_path, body)
    gc.collect()
    assert "never retrieved" not in caplog.text


def test_appends_that_wait_for_the_disk_are_bounded(tmp_path):
    async def body(committer, disk, durable):
        waiting = entry(0)
        done = committer.submit([waiting], 10_000)
        assert committer.pending_bytes == waiting.length
        committer.check_room(limits.PENDING_APPEND_BYTES_MAX - 10_000)
        with pytest.raises(ThrottledError):
            committer.check_room(limits.PENDING_APPEND_BYTES_MAX - 9_999)
        disk.gate.set()
        await done
        committer.check_room(limits.PENDING_APPEND_BYTES_MAX)

    run(tmp_path, body)


def test_stopping_commits_what_is_queued(tmp_path):
    async def body(committer, disk, durable):
        futures = [committer.submit([entry(n)]) for n in range(3)]
        disk.gate.set()
        await committer.stop()
        assert all(future.done() for future in futures)
        assert durable == [0, 1, 2]

    run(tmp_path, body)


async def begin(committer, disk):
    """Have a range to append to, and from now on no sync."""
    disk.gate.set()
    await committer.submit([created(1)])
    disk.gate.clear()
    disk.sync_count = 0


def test_batches_are_synced_after_the_interval(tmp_path):
    async def body(committer, disk, durable):
        await begin(committer, disk)
        disk.gate.set()
        for offset in range(4):
            await committer.submit([batch(offset)])
            if offset >= 2:
                while committer._log._active.synced_upto < committer._log.end_position:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
        assert disk.sync_count >= 2

    run(tmp_path, body, sync_interval_ms=20)


def test_a_sync_that_fails_later_ends_the_committer(tmp_path):
    async def body(committer, disk, durable):
        await begin(committer, disk)
        disk.error = OSError(5, "Input/output error")
        await committer.submit([batch(0)])
        disk.gate.set()
        error = await committer.failed
        assert "syncing" in str(error)
        with pytest.raises(LogWriteError, match="nothing more is acknowledged"):
            await committer.submit([batch(1)])

    run(tmp_path, body, sync_interval_ms=1)


def large(offset):
    return batch(offset, body=bytes(limits.OVERLAPPING_GROUP_BYTES_MIN))


async def until(condition):
    while not condition():  # noqa: ASYNC110 - what threads do raises no event here
        await asyncio.sleep(0.001)


def test_groups_are_acknowledged_in_their_order_whatever_the_threads_do(tmp_path):
    async def body(committer, disk, durable):
        await begin(committer, disk)
        done = []
        futures = [committer.submit([large(0)])]
        await asyncio.sleep(0)
        futures += [committer.submit([large(1)])]
        await until(lambda: len(committer._jobs) == 2)
        first, second = committer._jobs
        for number, future in enumerate(futures):
            future.add_done_callback(lambda _, number=number: done.append(number))
        told = committer._on_done
        held = []
        committer._on_done = held.append
        disk.gate.set()
        await until(lambda: len(held) == 2)
        told(second)
        await asyncio.sleep(0)
        assert done == []
        told(first)
        await asyncio.gather(*futures)
        assert done == [0, 1]
        committer._on_done = told

    run(tmp_path, body)


def test_a_failed_sync_fails_what_was_written_during_it(tmp_path):
    async def body(committer, disk, durable):
        await begin(committer, disk)
        futures = [committer.submit([large(0)])]
        await asyncio.sleep(0)
        futures += [committer.submit([large(1)])]
        await until(lambda: len(committer._jobs) == 2)
        queued = committer.submit([batch(2)])
        disk.error = OSError(5, "Input/output error")
        disk.gate.set()
        for future in (*futures, queued):
            with pytest.raises(LogWriteError, match="nothing more is acknowledged"):
                await future
        disk.error = None
        with pytest.raises(LogWriteError):
            await committer.submit([batch(2)])
        assert len(durable) == 1, "the range"
        assert committer.failed.done()

    run(tmp_path, body)


def test_the_next_group_waits_until_the_one_before_it_is_written(tmp_path):
    async def body(committer, disk, durable):
        await begin(committer, disk)
        log = committer._log
        first = committer.submit([large(0)])
        with log._writing:  # the thread cannot begin to write
            await until(lambda: len(committer._jobs) == 1)
            second = committer.submit([large(1)])
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert len(committer._jobs) == 1
        await until(lambda: len(committer._jobs) == 2)
        disk.gate.set()
        await asyncio.gather(first, second)

    run(tmp_path, body)
