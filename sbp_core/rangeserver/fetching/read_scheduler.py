"""Schedule reads of the log: fair turns between classes, and a bounded number at a time.

Classes take turns by bytes (deficit round robin). Each turn gives a class READ_QUANTUM_BYTES, and
it starts reads while its credit lasts. The rest is kept for its next turn, so a read larger than a
quantum starts after a few turns, and no class waits for more than a turn of each other class. A
class without waiting reads is forgotten, and comes back at the end of the round without credit.
Within a class reads are first come, first served. A call has one read at a time and a connection
RESPONSES_RESERVED_MAX, so calls and connections take turns within a class as well.

A read is at work until its response frame was handed to the socket: reading is the smaller part of
the cost of a frame, and so at most READS_AT_WORK_MAX frames are in memory. A read at work must not
wait for a peer (see `ServerCall.reserve`).
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
"""The shared isolation class beyond READ_CLASSES_MAX classes. No peer can name it."""


@dataclass(frozen=True, slots=True)
class ReadClass:
    """Reads that share turns: the tail reads, or the catch-up reads, of an isolation class."""

    isolation: str
    is_tail: bool


@dataclass(frozen=True, slots=True, eq=False)
class ReadJob:
    """One read of the log for one frame. A job is equal to itself only."""

    read_class: ReadClass
    length_bytes: int

    @property
    def charge_bytes(self) -> int:
        """Bytes that the class is charged for the job."""
        return max(self.length_bytes, limits.READ_CHARGE_BYTES_MIN)


@dataclass(slots=True)
class _Backlog:
    """The jobs of a class, the oldest first, and its credit in this turn."""

    credit_bytes: int
    jobs: OrderedDict[ReadJob, None] = field(default_factory=OrderedDict)


class ReadQueue:
    """Jobs that wait for their turn. Needs no clock, thread or event loop."""

    def __init__(self) -> None:
        self._classes: OrderedDict[ReadClass, _Backlog] = OrderedDict()
        """In the order of turns: it is the turn of the first."""

    def push(self, job: ReadJob) -> None:
        """Add a job."""
        key = job.read_class
        if key not in self._classes and len(self._classes) >= limits.READ_CLASSES_MAX:
            key = _shared(key)
        if key not in self._classes:
            self._classes[key] = _Backlog(limits.READ_QUANTUM_BYTES)
        self._classes[key].jobs[job] = None

    def maybe_pop(self) -> ReadJob | None:
        """Remove and return the job whose turn it is; None if no job waits."""
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
        """Remove a waiting job; return False if it does not wait."""
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
        """Run `read` on a thread when it is the turn of `job`; yield its result.

        The next job begins when the block ends, or when this task is cancelled, though the thread
        may be busy for a while then. Exceptions of `read` are raised.
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
            if not self._turns[job].done():  # else it was cancelled, and ends in `read`
                self._turns[job].set_result(None)
