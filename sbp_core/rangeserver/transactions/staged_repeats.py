"""A batch with the number of one that is staged: a repeat of it, or another one.

What is staged is on this server's disk until its transaction ends, so no digest of it is kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from sbp_core.errors import InvalidRequestError, LogError, SbpError, StatusCode
from sbp_core.log.durable_log import Log
from sbp_core.log.states.staged_states import Staging
from sbp_core.log.states.writer_states import NumberedBatch
from sbp_core.rangeserver.fetching.slot_reading import read_slots
from sbp_core.records import are_same

NO_OFFSET: Final = -1
"""What is staged has no offset."""


@dataclass(frozen=True, slots=True)
class StagedNumber:
    """What a transaction calls a batch of a range."""

    stream_id: int
    range_index: int
    txn_id: str
    sequence: int

    def __str__(self) -> str:
        return (
            f"batch {self.sequence} of transaction {self.txn_id} in range {self.range_index} of"
            f" stream {self.stream_id}"
        )

    @property
    def numberer(self) -> tuple[int, int, str]:
        """The transaction in the range."""
        return self.stream_id, self.range_index, self.txn_id


@dataclass(slots=True, eq=False)
class StagedRepeat:
    """A batch with the number of one that is staged, on disk; `staging` has that one.

    `refusal` says why it is no repeat, once it was compared.
    """

    number: StagedNumber
    staging: Staging
    record_count: int
    batch: memoryview
    refusal: SbpError | None = None

    def placed(self) -> NumberedBatch:
        """Return what is answered to a repeat."""
        return NumberedBatch(NO_OFFSET, self.record_count, self.staging.staged_at_ms)

    def compare(self, log: Log) -> None:
        """Look at what is staged, which may have to wait for the disk."""
        number = self.number
        try:
            slot = next(log.staged_from(self.staging, number.sequence))
            found = read_slots(log, (number.stream_id, number.range_index), [slot])
        except LogError as error:
            self.refusal = error
            return
        if found.error is not None:
            self.refusal = found.error
        elif not are_same(memoryview(b"".join(found.buffers)), self.batch):
            self.refusal = other_content(number)


class StagedContents:
    """Compares repeats with what is staged, on threads that may wait for the disk."""

    def __init__(self, log: Log, threads: ThreadPoolExecutor) -> None:
        self._log = log
        self._threads = threads

    async def compare(self, repeats: Sequence[StagedRepeat]) -> None:
        """Let each repeat know whether it is one."""
        if repeats:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._threads, self._compare, repeats)

    def _compare(self, repeats: Sequence[StagedRepeat]) -> None:
        for repeat in repeats:
            repeat.compare(self._log)


def other_content(number: StagedNumber) -> InvalidRequestError:
    """Return the error of a batch whose number another one has."""
    return InvalidRequestError(
        StatusCode.INVALID_REQUEST,
        f"{number} was staged before with other content, so this one was not stored: a retry must"
        " send the same bytes, and two transactions must not have the same id",
    )
