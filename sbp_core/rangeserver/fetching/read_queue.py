"""Which read of the log is next: classes take turns, in proportion to octets.

Deficit round robin. A class is given READ_QUANTUM_BYTES for each of its turns and starts reads as
long as what it was given lasts; what is left, less than its next read needs, is kept for its next
turn. So a read larger than a quantum comes about after a few turns, and no class waits for more
than the turns of the others. A class is known only while it has reads waiting: one that comes
back begins anew, at the end of the round.

Within a class reads are first come, first served. A call has one read at a time and a connection
RESPONSES_RESERVED_MAX, so calls and connections take turns there, too.

No clock, thread or event loop is needed here; `read_scheduler` adds them.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from sbp_core import limits

_SHARED: Final = "*"
"""The isolation class of those beyond READ_CLASSES_MAX; no peer can name it."""


@dataclass(frozen=True, slots=True)
class ReadClass:
    """What is served apart from the rest: an isolation class, its tail and its catch-up reads."""

    isolation: str
    is_tail: bool


@dataclass(frozen=True, slots=True, eq=False)
class ReadJob:
    """One read of the log that is to be answered in one frame. Each job is equal to itself only."""

    read_class: ReadClass
    length_bytes: int

    @property
    def charge_bytes(self) -> int:
        """What the class pays for it."""
        return max(self.length_bytes, limits.READ_CHARGE_BYTES_MIN)


@dataclass(slots=True)
class _Backlog:
    """The jobs of a class, the oldest first, and what it may still spend in its turn."""

    credit_bytes: int
    jobs: OrderedDict[ReadJob, None] = field(default_factory=OrderedDict)


class ReadQueue:
    """Jobs that wait for their turn."""

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
        """Take out a job whose turn never came; False when it waits no more."""
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
