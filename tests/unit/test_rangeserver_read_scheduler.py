"""Reads of the log take one of a few places, and always give it back."""

import asyncio
import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from sbp_core import limits
from sbp_core.rangeserver.fetching.read_scheduler import ReadClass, ReadJob, ReadScheduler

PLACES = limits.READS_AT_WORK_MAX
CATCH_UP, TAIL = ReadClass("", False), ReadClass("", True)


class Bench:
    """A scheduler, and what was read by it; a body holds its place until `release`."""

    def __init__(self, readers):
        self.scheduler = ReadScheduler(readers)
        self.read = []
        self.bodies = []
        self._holds = {}

    def start(self, name, read_class=CATCH_UP, length=limits.READ_QUANTUM_BYTES):
        self._holds[name] = asyncio.Event()
        return asyncio.create_task(self._run(name, ReadJob(read_class, length)))

    async def _run(self, name, job):
        async with self.scheduler.read(job, lambda: self.read.append(name)):
            self.bodies.append(name)
            await self._holds[name].wait()

    def release(self, name):
        self._holds[name].set()

    async def until(self, is_so):
        while not is_so():  # noqa: ASYNC110
            await asyncio.sleep(0)

    async def fill(self):
        """Start as many reads as there are places; they hold them."""
        tasks = [self.start(number) for number in range(PLACES)]
        await self.until(lambda: len(self.bodies) == PLACES)
        return tasks

    async def check_all_places_are_free(self):
        before = len(self.bodies)
        tasks = [self.start(f"last-{number}") for number in range(PLACES)]
        await self.until(lambda: len(self.bodies) == before + PLACES)
        for number in range(PLACES):
            self.release(f"last-{number}")
        await asyncio.gather(*tasks)
        assert not self.scheduler._turns
        assert self.scheduler._at_work_count == 0


def run(body):
    async def main():
        with ThreadPoolExecutor(PLACES) as readers:
            bench = Bench(readers)
            async with asyncio.timeout(60):
                await body(bench)
                await bench.check_all_places_are_free()

    asyncio.run(main())


async def cancel(task):
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()


def test_a_read_holds_its_place_until_it_is_answered():
    async def body(bench):
        tasks = [*await bench.fill(), bench.start("next")]
        for _ in range(10):
            await asyncio.sleep(0)
        assert "next" not in bench.read
        bench.release(0)
        await bench.until(lambda: "next" in bench.bodies)
        for name in (1, 2, 3, "next"):
            bench.release(name)
        await asyncio.gather(*tasks)

    run(body)


def test_the_body_gets_the_bytes_read_and_errors_pass_through():
    async def body(bench):
        async with bench.scheduler.read(ReadJob(TAIL, 1), lambda: b"bytes") as data:
            assert data == b"bytes"
        for _ in range(2 * PLACES):
            with pytest.raises(ZeroDivisionError):
                async with bench.scheduler.read(ReadJob(TAIL, 1), lambda: 1 // 0):
                    pytest.fail("nothing was read")
            with pytest.raises(KeyError):
                async with bench.scheduler.read(ReadJob(TAIL, 1), lambda: b""):
                    raise KeyError

    run(body)


@pytest.mark.parametrize("seed", range(20))
def test_no_place_is_lost_whichever_read_is_cancelled(seed):
    async def body(bench):
        choose = random.Random(seed)
        tasks = {}
        for number in range(200):
            tasks[number] = bench.start(number, choose.choice([TAIL, CATCH_UP]))
            bench.release(number)
            for _ in range(choose.randrange(4)):
                await asyncio.sleep(0)
            if choose.random() < 0.4:
                tasks[choose.randrange(number + 1)].cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)
        assert len(bench.read) == len(set(bench.read))
        answered = {number for number, task in tasks.items() if not task.cancelled()}
        assert answered <= set(bench.bodies) <= set(bench.read)
        assert 0 < len(answered) < 200

    run(body)
