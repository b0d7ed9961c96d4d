"""A few reads of the log at a time, each from its start to the end of its answer.

A read keeps its place until its response frame was handed to the socket: reading is the smaller
part of what a frame costs, and so no more than READS_AT_WORK_MAX frames lie in memory. Who waits
for a peer must not do it in such a place: see `ServerCall.reserve`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from typing import TypeVar

from sbp_core import limits
from sbp_core.rangeserver.fetching.read_queue import ReadJob, ReadQueue

T = TypeVar("T")


class ReadScheduler:
    """Runs READS_AT_WORK_MAX reads at a time on the reader threads, in the order of a ReadQueue."""

    def __init__(self, readers: Executor) -> None:
        self._readers = readers
        self._queue = ReadQueue()
        self._turns: dict[ReadJob, asyncio.Future[None]] = {}
        self._at_work_count = 0

    @property
    def is_idle(self) -> bool:
        """Whether nobody reads and nobody waits."""
        return not self._turns

    @asynccontextmanager
    async def read(self, job: ReadJob, read: Callable[[], T]) -> AsyncIterator[T]:
        """Run `read` on a thread when it is the turn of `job`; give what it returned.

        The next job begins when the body is over, or when this task is cancelled, though then the
        thread may be busy for a while yet. What `read` raises passes through.
        """
        async with self._turn(job):
            yield await asyncio.get_running_loop().run_in_executor(self._readers, read)

    @asynccontextmanager
    async def _turn(self, job: ReadJob) -> AsyncIterator[None]:
        turn = self._turns[job] = asyncio.get_running_loop().create_future()
        self._queue.push(job)
        self._start_next()
        try:
            await turn
            yield
        finally:
            del self._turns[job]
            if not self._queue.remove(job):
                self._at_work_count -= 1
                self._start_next()

    def _start_next(self) -> None:
        while self._at_work_count < limits.READS_AT_WORK_MAX:
            job = self._queue.maybe_pop()
            if job is None:
                return
            self._at_work_count += 1
            if not self._turns[job].done():  # cancelled, it gives its place back by itself
                self._turns[job].set_result(None)
