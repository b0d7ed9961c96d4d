"""Group commit: sharing, order, and what happens when the disk fails."""

import asyncio

import pytest
from held_disk import HeldDisk
from log_files import created, open_log

from sbp_core import limits
from sbp_core.errors import LogWriteError, ThrottledError
from sbp_core.rangeserver.commit import GroupCommitter


def entry(number):
    return created(1, number)


def run(tmp_path, body):
    async def main():
        disk = HeldDisk()
        disk.gate.set()
        log = open_log(disk, tmp_path / "log")
        disk.gate.clear()
        disk.sync_count = 0
        durable = []
        committer = GroupCommitter(log)
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


def test_after_a_failed_sync_nothing_is_acknowledged(tmp_path):
    async def body(committer, disk, durable):
        disk.error = OSError(5, "Input/output error")
        pending = [committer.submit([entry(n)]) for n in range(3)]
        disk.gate.set()
        for future in pending:
            with pytest.raises(LogWriteError, match="nothing more is acknowledged"):
                await future
        disk.error = None
        with pytest.raises(LogWriteError):
            await committer.submit([entry(9)])
        assert durable == []
        assert committer.failed.done()

    run(tmp_path, body)


def test_what_waits_for_the_disk_is_bounded(tmp_path):
    async def body(committer, disk, durable):
        waiting = entry(0)
        committer.submit([waiting])
        assert committer.pending_bytes == waiting.length
        with pytest.raises(ThrottledError):
            committer.check_room(limits.PENDING_APPEND_BYTES_MAX)
        committer.check_room(1000)
        disk.gate.set()

    run(tmp_path, body)


def test_stopping_commits_what_is_queued(tmp_path):
    async def body(committer, disk, durable):
        futures = [committer.submit([entry(n)]) for n in range(3)]
        disk.gate.set()
        await committer.stop()
        assert all(future.done() for future in futures)
        assert durable == [0, 1, 2]

    run(tmp_path, body)
