"""Group commit: whatever was queued while the disk was busy shares the next write and sync.

With a sync interval batches are acknowledged when they are written, and synced at most so much
later. What is not a batch (a seal, a trim, a new range) is a decision that others build on: it is
synced before it is acknowledged, and with it all that was written before.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

from sbp_core import limits
from sbp_core.errors import LogWriteError, SbpError, StatusCode, ThrottledError
from sbp_core.log.entry import Entry, EntryKind
from sbp_core.log.log import Appended, Log
from sbp_core.log.range_states import LoggedRange

T = TypeVar("T")
OnCommit = Callable[[Sequence[LoggedRange]], None]

_LOG: Final = logging.getLogger(__name__)
_APPENDED: Final = (EntryKind.BATCH, EntryKind.WRITER_MARK)


@dataclass(frozen=True, slots=True)
class _Submission:
    entries: tuple[Entry, ...]
    length: int
    memory_bytes: int
    done: asyncio.Future[int] = field(compare=False)


@dataclass(frozen=True, slots=True)
class _Group:
    """Submissions that are written together, and synced before they are acknowledged or not."""

    submissions: tuple[_Submission, ...] = ()
    is_durable: bool = True


_NO_GROUP: Final = _Group()


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
        self._thread: Final = ThreadPoolExecutor(1, thread_name_prefix="sbp-log-writer")
        self._loop = asyncio.get_running_loop()
        self._on_commit: OnCommit | None = None
        self._idle = asyncio.Event()
        """Whether the thread has nothing to do; nor will it have at the end of the loop's turn."""
        self._idle.set()
        self.failed: asyncio.Future[SbpError] = self._loop.create_future()

    def start(self, on_commit: OnCommit) -> None:
        """Begin to commit; call `on_commit` with what each group changed, before its answers."""
        self._on_commit = on_commit
        self._begin_soon()

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

    def submit(self, entries: Sequence[Entry], memory_bytes: int = 0) -> asyncio.Future[int]:
        """Queue entries for the next group commit; the future ends when they are acknowledged.

        Its result is when they were written, in ms since the epoch, as the log has it. They are
        written also if it is cancelled. It fails with LogWriteError when the log cannot be written
        any more. `memory_bytes` is what the entries count for until then (see `check_room`).
        """
        done: asyncio.Future[int] = self._loop.create_future()
        if self.failed.done():
            done.set_exception(_dead(self.failed.result()))
            return done
        length = sum([entry.length for entry in entries])
        self._queue.append(_Submission(tuple(entries), length, memory_bytes, done))
        self._pending_bytes += length
        self._memory_bytes += memory_bytes
        self._begin_soon()
        return done

    def run_between_groups(self, change: Callable[[], None]) -> None:
        """Run `change` where the log is written; return when it is done. For other threads."""
        self._thread.submit(change).result()

    async def stop(self) -> None:
        """Commit what is queued, then end."""
        await self._idle.wait()
        self._thread.shutdown()

    def _begin_soon(self) -> None:
        """Let the thread work once all that arrived in this turn of the loop is queued."""
        if self._on_commit is not None and self._idle.is_set():
            self._idle.clear()
            self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        """Give the thread what is to be done next, if there is anything."""
        if self.failed.done() or not (self._queue or self._is_sync_due):
            self._idle.set()
        elif self._is_sync_due:
            self._run(self._log.sync, self._on_synced)
        else:
            self._commit(self._take_group())

    def _commit(self, submissions: Sequence[_Submission]) -> None:
        entries = [entry for submission in submissions for entry in submission.entries]
        is_durable = self._sync_interval_ms == 0 or any(
            entry.kind not in _APPENDED for entry in entries
        )
        group = _Group(tuple(submissions), is_durable)
        append = partial(self._log.append, entries, is_durable=is_durable)
        self._run(append, partial(self._on_written, group), group)

    def _run(
        self, work: Callable[[], T], then: Callable[[T], None], group: _Group = _NO_GROUP
    ) -> None:
        """Do `work` on the thread, then call `then` with its result here, and begin anew."""

        def on_thread() -> None:
            try:
                result = work()
            except SbpError as error:
                self._loop.call_soon_threadsafe(self._fail, group, error)
            except Exception as error:  # noqa: BLE001 - whoever waits must be told of all failures
                _LOG.exception("the log failed unexpectedly")
                failure = LogWriteError(f"the log failed unexpectedly: {error}")
                self._loop.call_soon_threadsafe(self._fail, group, failure)
            else:
                self._loop.call_soon_threadsafe(go_on, result)

        def go_on(result: T) -> None:
            try:
                then(result)
            finally:
                self._begin()

        self._thread.submit(on_thread)

    def _on_written(self, group: _Group, appended: Appended) -> None:
        if group.is_durable:
            self._on_synced()
        elif self._sync_timer is None:
            self._sync_timer = self._loop.call_later(
                self._sync_interval_ms / 1000, self._on_sync_due
            )
        assert self._on_commit is not None
        self._on_commit(appended.ranges)
        for submission in group.submissions:
            self._pending_bytes -= submission.length
            self._memory_bytes -= submission.memory_bytes
            if not submission.done.done():
                submission.done.set_result(appended.time_ms)

    def _on_sync_due(self) -> None:
        self._is_sync_due = True
        self._begin_soon()

    def _on_synced(self, _: None = None) -> None:
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

    def _fail(self, group: _Group, error: SbpError) -> None:
        self.failed.set_result(error)
        for submission in (*group.submissions, *self._queue):
            if not submission.done.done():
                submission.done.set_exception(_dead(error))
        self._queue.clear()
        self._idle.set()


def _dead(error: SbpError) -> LogWriteError:
    return LogWriteError(f"the log cannot be written, nothing more is acknowledged: {error}")
