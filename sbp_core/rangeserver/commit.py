"""Group commit: whatever was queued while the disk was busy shares the next write and sync.

With a sync interval batches are acknowledged when they are written, and synced at most so much
later. What is not a batch (a seal, a trim, a new range) is a decision that others build on: it is
synced before it is acknowledged, and with it all that was written before.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from sbp_core import limits
from sbp_core.errors import LogError, LogWriteError, SbpError, StatusCode, ThrottledError
from sbp_core.log.entry import Entry, EntryKind
from sbp_core.log.log import Log
from sbp_core.log.range_states import LoggedRange

OnCommit = Callable[[Sequence[LoggedRange]], None]


@dataclass(frozen=True, slots=True)
class _Submission:
    entries: tuple[Entry, ...]
    memory_bytes: int
    done: asyncio.Future[None] = field(compare=False)

    @property
    def length(self) -> int:
        return sum(entry.length for entry in self.entries)


class GroupCommitter:
    """Writes entries to the log in the order of their submission, on a thread of its own.

    After a failed write or sync nothing is acknowledged any more: `failed` ends and every
    submission fails. `sync_interval_ms` is how long an acknowledged batch may stay unsynced, 0 for
    not at all.
    """

    def __init__(self, log: Log, sync_interval_ms: int = 0) -> None:
        self._log = log
        self._sync_interval_ms = sync_interval_ms
        self._sync_timer: asyncio.TimerHandle | None = None
        self._is_sync_due = False
        self._queue: deque[_Submission] = deque()
        self._pending_bytes = 0
        self._memory_bytes = 0
        self._wakeup = asyncio.Event()
        self._thread: Final = ThreadPoolExecutor(1, thread_name_prefix="sbp-log-writer")
        self._task: asyncio.Task[None] | None = None
        self.failed: asyncio.Future[SbpError] = asyncio.get_running_loop().create_future()

    def start(self, on_commit: OnCommit) -> None:
        """Begin to commit; call `on_commit` with what each group changed, before its answers."""
        self._task = asyncio.create_task(self._run(on_commit))

    @property
    def pending_bytes(self) -> int:
        """Octets that wait for the disk, and are in no index yet."""
        return self._pending_bytes

    def check_room(self, memory_bytes: int) -> None:
        """Raise ThrottledError when an append would wait for which there is no memory."""
        if self._memory_bytes + memory_bytes > limits.PENDING_APPEND_BYTES_MAX:
            raise ThrottledError(
                StatusCode.TOO_MANY_REQUESTS,
                f"{self._pending_bytes} octets wait for the disk already; try again later",
            )

    def submit(self, entries: Sequence[Entry], memory_bytes: int = 0) -> asyncio.Future[None]:
        """Queue entries for the next group commit; the future ends when they are acknowledged.

        It fails with LogWriteError when the log cannot be written any more. `memory_bytes` is
        what the entries count for until they are written (see `check_room`).
        """
        submission = _Submission(
            tuple(entries), memory_bytes, asyncio.get_running_loop().create_future()
        )
        if self.failed.done():
            submission.done.set_exception(_dead(self.failed.result()))
            return submission.done
        self._queue.append(submission)
        self._pending_bytes += submission.length
        self._memory_bytes += memory_bytes
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

    async def _run(self, on_commit: OnCommit) -> None:
        while not self.failed.done():
            await self._wakeup.wait()
            self._wakeup.clear()
            while self._queue and not self.failed.done():
                await self._commit(self._take_group(), on_commit)
                await self._sync_if_due()
            await self._sync_if_due()

    async def _commit(self, group: Sequence[_Submission], on_commit: OnCommit) -> None:
        entries = [entry for submission in group for entry in submission.entries]
        is_durable = self._sync_interval_ms == 0 or any(
            entry.kind is not EntryKind.BATCH for entry in entries
        )
        loop = asyncio.get_running_loop()
        append = partial(self._log.append, entries, is_durable=is_durable)
        try:
            appended = await loop.run_in_executor(self._thread, append)
        except LogError as error:
            self._fail(group, error)
            return
        if is_durable:
            self._on_synced()
        elif self._sync_timer is None:
            self._sync_timer = loop.call_later(self._sync_interval_ms / 1000, self._on_sync_due)
        on_commit(appended.ranges)
        for submission in group:
            self._pending_bytes -= submission.length
            self._memory_bytes -= submission.memory_bytes
            if not submission.done.done():
                submission.done.set_result(None)

    async def _sync_if_due(self) -> None:
        if not self._is_sync_due or self.failed.done():
            return
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._log.sync)
        except LogError as error:
            self._fail((), error)
            return
        self._on_synced()

    def _on_sync_due(self) -> None:
        self._is_sync_due = True
        self._wakeup.set()

    def _on_synced(self) -> None:
        if self._sync_timer is not None:
            self._sync_timer.cancel()
        self._sync_timer = None
        self._is_sync_due = False

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
