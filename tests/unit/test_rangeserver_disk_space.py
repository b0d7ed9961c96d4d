"""The floor below which appends are refused, with the clock and the disk held still."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sbp_core import limits
from sbp_core.errors import DiskFullError
from sbp_core.rangeserver.housekeeping.disk_space import DiskSpace
from tests.support.clock import ManualClock
from tests.support.disk import FixedProbe

FLOOR = 1000


class Machine:
    def __init__(self, threads: ThreadPoolExecutor, free: int | None) -> None:
        self.clock = ManualClock()
        self.probe = FixedProbe(free)
        self.pending = 0
        self.space = DiskSpace(
            Path("/data"),
            FLOOR,
            probe=self.probe,
            clock=self.clock,
            threads=threads,
            pending_bytes=lambda: self.pending,
        )

    async def looked_again(self) -> None:
        assert self.space._look is not None
        await self.space._look


def run(free, test):
    async def body():
        with ThreadPoolExecutor(1) as threads:
            await test(Machine(threads, free))

    asyncio.run(body())


def test_bytes_admitted_since_the_last_probe_are_subtracted():
    async def body(machine):
        assert await machine.space.measure() == FLOOR + 100
        machine.space.admit(60)
        with pytest.raises(DiskFullError, match=f"{FLOOR + 40} bytes left, of which {FLOOR}"):
            machine.space.admit(41)
        machine.space.admit(40)
        with pytest.raises(DiskFullError):
            machine.space.admit(1)
        await machine.space.measure()
        machine.space.admit(100)

    run(FLOOR + 100, body)


def test_bytes_that_the_log_has_not_written_yet_are_subtracted():
    async def body(machine):
        machine.space.admit(70)
        machine.pending = 50
        await machine.space.measure()
        machine.space.admit(50)
        with pytest.raises(DiskFullError):
            machine.space.admit(1)

    run(FLOOR + 100, body)


def test_appends_make_it_look_again_but_not_each_of_them():
    async def body(machine):
        await machine.space.refresh()
        machine.probe.free = FLOOR
        for _ in range(10):
            machine.space.admit(1)
        assert machine.probe.look_count == 1
        machine.clock.advance(limits.DISK_LOOK_INTERVAL_MS)
        for _ in range(10):
            machine.space.admit(1)
        await machine.looked_again()
        assert machine.probe.look_count == 2
        with pytest.raises(DiskFullError):
            machine.space.admit(1)
        machine.probe.free = 10 * FLOOR
        machine.clock.advance(limits.DISK_LOOK_INTERVAL_MS)
        with pytest.raises(DiskFullError):
            machine.space.admit(1)
        await machine.looked_again()
        machine.space.admit(1)

    run(10 * FLOOR, body)


def test_a_disk_that_does_not_tell_leaves_what_was_known():
    async def body(machine):
        await machine.space.refresh()
        machine.space.admit(10**9)
        machine.probe.free = 0
        await machine.space.refresh()
        machine.probe.free = None
        await machine.space.refresh()
        with pytest.raises(DiskFullError):
            machine.space.admit(1)
        with pytest.raises(OSError, match="gone"):
            await machine.space.measure()

    run(None, body)


def test_refusing_appends_and_accepting_them_again_are_logged_once(caplog):
    def told():
        messages = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return messages

    async def body(machine):
        await machine.space.measure()
        for _ in range(3):
            with pytest.raises(DiskFullError):
                machine.space.admit(101)
        (message,) = told()
        assert f"{FLOOR + 100} bytes left" in message
        assert "/data" in message
        machine.space.admit(100)
        await machine.space.measure()
        assert not told(), "there is room, but not for every append"
        machine.probe.free = FLOOR + limits.FRAME_BYTES_MAX
        await machine.space.measure()
        await machine.space.measure()
        (message,) = told()
        assert "accepted again" in message
        machine.probe.free = FLOOR
        await machine.space.measure()
        with pytest.raises(DiskFullError):
            machine.space.admit(1)
        assert len(told()) == 1

    run(FLOOR + 100, body)
