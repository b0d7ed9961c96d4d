"""Group commit: whatever was queued while the disk was busy shares the next write and sync."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from sbp_core import limits
from sbp_core.errors import LogError, LogWriteError, SbpError, StatusCode, ThrottledError
from sbp_core.log.entry import Entry
from sbp_core.log.log import Log
from sbp_core.log.range_states import LoggedRange

OnDurable = Callable[[Sequence[LoggedRange]], None]


@dataclass(frozen=True, slots=True)
class _Submission:
    entries: tuple[Entry, ...]
    done: asyncio.Future[None] = field(compare=False)

    @property
    def length(self) -> int:
        return sum(entry.length for entry in self.entries)


class GroupCommitter:
    """Writes entries to the log in the order of their submission, on a thread of its own.

    After a failed write nothing is acknowledged any more: `failed` ends and every submission fails.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._queue: deque[_Submission] = deque()
        self._pending_bytes = 0
        self._wakeup = asyncio.Event()
        self._thread: Final = ThreadPoolExecutor(1, thread_name_prefix="sbp-log-writer")
        self._task: asyncio.Task[None] | None = None
        self.failed: asyncio.Future[SbpError] = asyncio.get_running_loop().create_future()

    def start(self, on_durable: OnDurable) -> None:
        """Begin to commit; call `on_durable` with what each group changed, once it is on disk."""
        self._task = asyncio.create_task(self._run(on_durable))

    @property
    def pending_bytes(self) -> int:
        """Octets that wait for the disk, and are in no index yet."""
        return self._pending_bytes

    def check_room(self, length: int) -> None:
        """Raise ThrottledError when `length` more octets would wait for the disk than allowed."""
        if self._pending_bytes + length > limits.PENDING_APPEND_BYTES_MAX:
            raise ThrottledError(
                StatusCode.TOO_MANY_REQUESTS,
                f"{self._pending_bytes} octets wait for the disk already; try again later",
            )

    def submit(self, entries: Sequence[Entry]) -> asyncio.Future[None]:
        """Queue entries for the next group commit; the future ends when they are durable.

        It fails with LogWriteError when the log cannot be written any more.
        """
        submission = _Submission(tuple(entries), asyncio.get_running_loop().create_future())
        if self.failed.done():
            submission.done.set_exception(_dead(self.failed.result()))
            return submission.done
        self._queue.append(submission)
        self._pending_bytes += submission.length
        self._wakeup.set()
        return submission.done

    def run_between_groups(self, change: Callable[[], None]) -> None:
        """Run `change` where the log is written; return when it is done. For other threads."""
        self._thread.submit(change).result()

    async def stop(self) -> None:
        """Commit what is queued, then end."""
        if self._task is not None:
            while self._queue and not self.failed.done():
                await asyncio.wait([self._queue[-1].done])
            self._task.cancel()
            await asyncio.wait([self._task])
        self._thread.shutdown()

    async def _run(self, on_durable: OnDurable) -> None:
        loop = asyncio.get_running_loop()
        while not self.failed.done():
            await self._wakeup.wait()
            self._wakeup.clear()
            while self._queue and not self.failed.done():
                group = self._take_group()
                entries = [entry for submission in group for entry in submission.entries]
                try:
                    appended = await loop.run_in_executor(self._thread, self._log.append, entries)
                except LogError as error:
                    self._fail(group, error)
                    return
                on_durable(appended.ranges)
                for submission in group:
                    self._pending_bytes -= submission.length
                    if not submission.done.done():
                        submission.done.set_result(None)

    def _take_group(self) -> list[_Submission]:
        group = [self._queue.popleft()]
        length = group[0].length
        while self._queue and length + self._queue[0].length <= limits.GROUP_COMMIT_BYTES_MAX:
            group.append(self._queue.popleft())
            length += group[-1].length
        return group

    def _fail(self, group: Sequence[_Submission], error: LogError) -> None:
        self.failed.set_result(error)
        for submission in (*group, *self._queue):
            if not submission.done.done():
                submission.done.set_exception(_dead(error))
        self._queue.clear()


def _dead(error: SbpError) -> LogWriteError:
    return LogWriteError(f"the log cannot be written, nothing more is acknowledged: {error}")
