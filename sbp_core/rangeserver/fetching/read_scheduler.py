"""Which read of the log is next, and how many run at a time.

Classes take turns, in proportion to bytes: deficit round robin. A class is given READ_QUANTUM_BYTES
for each of its turns and starts reads as long as that lasts; the rest, less than its next read
needs, is kept for its next turn. So a read larger than a quantum comes about after a few turns, and
no class waits for more than the turns of the others. A class is known only while it has reads
waiting: one that comes back starts at the end of the round with nothing kept. Within a class reads
are first come, first served. A call has one read at a time and a connection RESPONSES_RESERVED_MAX,
so calls and connections take turns within a class as well.

A read keeps its place until its response frame was handed to the socket: reading is the smaller
part of what a frame costs, and so at most READS_AT_WORK_MAX frames lie in memory. Nothing may wait
for a peer in such a place: see `ServerCall.reserve`.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, TypeVar

from sbp_core import limits

_SHARED: Final = "*"
"""The isolation class of those beyond READ_CLASSES_MAX; no peer can name it."""


@dataclass(frozen=True, slots=True)
class ReadClass:
    """Reads that share a turn: the tail reads, or the catch-up reads, of an isolation class."""

    isolation: str
    is_tail: bool


@dataclass(frozen=True, slots=True, eq=False)
class ReadJob:
    """One read of the log that is to be answered in one frame. Each job is equal to itself only."""

    read_class: ReadClass
    length_bytes: int

    @property
    def charge_bytes(self) -> int:
        """Bytes that the class is charged for it."""
        return max(self.length_bytes, limits.READ_CHARGE_BYTES_MIN)


@dataclass(slots=True)
class _Backlog:
    """The jobs of a class, the oldest first, and the bytes that it may still read in its turn."""

    credit_bytes: int
    jobs: OrderedDict[ReadJob, None] = field(default_factory=OrderedDict)


class ReadQueue:
    """Jobs that wait for their turn. It needs no clock, thread or event loop."""

    def __init__(self) -> None:
        self._classes: OrderedDict[ReadClass, _Backlog] = OrderedDict()
        """By turn: the first one has it."""

    def push(self, job: ReadJob) -> None:
        """Let a job wait."""
        key = job.read_class
        if key not in self._classes and len(self._classes) >= limits.READ_CLASSES_MAX:
            key = _shared(key)
        if key not in self._classes:
            self._classes[key] = _Backlog(limits.READ_QUANTUM_BYTES)
        self._classes[key].jobs[job] = None

    def maybe_pop(self) -> ReadJob | None:
        """Take out the job whose turn it is; None when none waits."""
        while self._classes:
            key, backlog = next(iter(self._classes.items()))
            job = next(iter(backlog.jobs))
            if job.charge_bytes <= backlog.credit_bytes:
                backlog.credit_bytes -= job.charge_bytes
                self.remove(job)
                return job
            backlog.credit_bytes += limits.READ_QUANTUM_BYTES
            self._classes.move_to_end(key)
        return None

    def remove(self, job: ReadJob) -> bool:
        """Take out a job that waits; False if it does not."""
        for key in (job.read_class, _shared(job.read_class)):
            backlog = self._classes.get(key)
            if backlog is not None and job in backlog.jobs:
                del backlog.jobs[job]
                if not backlog.jobs:
                    del self._classes[key]
                return True
        return False


def _shared(read_class: ReadClass) -> ReadClass:
    return ReadClass(_SHARED, read_class.is_tail)


T = TypeVar("T")


class ReadScheduler:
    """Runs `at_work_max` reads at a time on the reader threads, in the order of a ReadQueue."""

    def __init__(self, readers: Executor, *, at_work_max: int = limits.READS_AT_WORK_MAX) -> None:
        self._at_work_max = at_work_max
        self._readers = readers
        self._queue = ReadQueue()
        self._turns: dict[ReadJob, asyncio.Future[None]] = {}
        self._at_work_count = 0

    @property
    def is_idle(self) -> bool:
        """Whether no read is running or waiting."""
        return not self._turns

    @asynccontextmanager
    async def read(self, job: ReadJob, read: Callable[[], T]) -> AsyncIterator[T]:
        """Run `read` on a thread when it is the turn of `job`; give what it returned.

        The next job begins when the body is over, or when this task is cancelled, though then the
        thread may be busy for a while yet. Exceptions of `read` are raised.
        """
        loop = asyncio.get_running_loop()
        turn = self._turns[job] = loop.create_future()
        self._queue.push(job)
        self._start_next()
        try:
            await turn
            yield await loop.run_in_executor(self._readers, read)
        finally:
            del self._turns[job]
            if not self._queue.remove(job):
                self._at_work_count -= 1
                self._start_next()

    def _start_next(self) -> None:
        while self._at_work_count < self._at_work_max:
            job = self._queue.maybe_pop()
            if job is None:
                return
            self._at_work_count += 1
            if not self._turns[job].done():  # cancelled, it gives its place back by itself
                self._turns[job].set_result(None)
