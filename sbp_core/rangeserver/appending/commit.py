"""Group commit: every entry reaches the log, and then readers, through `GroupCommitter`.

Entries that are queued while the disk is busy share the next write and sync. The way of each entry:

    submit -> write, and send to secondaries -> durable -> committed -> publish
           -> the future of `submit` ends

No other module calls `Log.append`. The log itself adds only COMMIT entries, and snapshots at the
start of a segment.

Entries of replicated ranges that this server leads are sent to the secondaries while they are
written here (`Copies`, replicating/primary.py). Such a submission is committed when it is durable
here and on as many secondaries as the range needs. Submissions of other ranges do not wait for
that. Groups become durable in their order. `_on_durable` publishes and ends futures, for
replicated ranges when primary.py has enough answers (`RangeHost.publish`: the table of ranges,
which bounds every FETCH and DESCRIBE_RANGE).

Three things are visible earlier:

* Offsets are assigned, and a range is sealed or deleted in the table (`RangeTable.move`), when the
  entry is submitted, because the entries behind it follow from it. The range accepts nothing more
  from then on. It has no `end_offset` before its seal is committed.
* The log knows writers and staged batches when they are written, for the next group. Repeats are
  answered from InFlight until the original is committed, and END_TXN waits for that
  (`Stagings.settle`).
* A FETCH of the batches staged under a transaction may see a batch that is not synced yet.

With a sync interval batches are committed when they are written, and synced at most that much
later. Decisions (a seal, a trim, a new range) are synced before they are committed, because others
build on them. So are staged batches: their transaction is decided elsewhere, and a power cut must
not take back batches of a decided transaction.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple, Protocol

from sbp_core import limits
from sbp_core.errors import (
    LogError,
    LogWriteError,
    RangeSealedError,
    RequestTimeoutError,
    SbpError,
    ThrottledError,
)
from sbp_core.log.durable_log import Appended, Log
from sbp_core.log.entry import APPENDED_KINDS, Entry
from sbp_core.log.states.range_states import LoggedRange, RangeKey
from sbp_core.rangeserver.server_load import GroupTally
from sbp_core.record_sizes import DEFAULT, RecordSizes
from sbp_core.segment_format import EntryKind
from sbp_core.server.runtime import Clock, LogTally, SystemClock

Publish = Callable[[Sequence[LoggedRange]], None]
"""Makes the states of ranges visible after a group that changed them is durable."""

_LOG: Final = logging.getLogger(__name__)

_SLOW_MS: Final = 1_000
"""The disk is logged as slow if writing and syncing a group takes this long."""
_SLOW_LOG_INTERVAL_MS: Final = 600_000
"""Pause between two log lines about a slow disk."""
_UNSYNCED_KINDS: Final = APPENDED_KINDS - {EntryKind.STAGED}
"""Kinds that may be acknowledged before they are synced, if there is a sync interval."""


class Written(NamedTuple):
    """The time when entries were written, in ms since the epoch, UTC.

    `truncated`: ranges that were sealed at an offset before these entries. The entries are not part
    of the range. `unsettled`: ranges that have the entries, on too few disks to acknowledge them.
    """

    time_ms: int
    truncated: Collection[RangeKey] = ()
    unsettled: Collection[RangeKey] = ()

    def check(self, key: RangeKey) -> None:
        """Raise RangeSealedError if a range ended before its entries.

        Raises RequestTimeoutError, of unknown outcome, if they are on too few disks.
        """
        if key in self.unsettled:
            raise RequestTimeoutError.of(
                f"range {key[1]} of stream {key[0]} was sealed, and too few other servers have"
                " settled it in time: this is in the range, and lost if the disk here is; see that"
                " the other servers of the range run"
            )
        if key in self.truncated:
            raise RangeSealedError.of(
                f"range {key[1]} of stream {key[0]} was sealed before this was committed; nothing"
                " was appended, and the stream goes on in the next range"
            )


Finish = Callable[[Collection[RangeKey], Collection[RangeKey]], None]
"""Called with the ranges whose entries were truncated, and with the unsettled ranges."""


class Copies(Protocol):
    """The copies of ranges on other servers, as the committer uses them."""

    def send(self, entries: Sequence[Entry]) -> Mapping[RangeKey, int]:
        """Number and send entries; return the last number in each led range."""

    def flush(self) -> None:
        """Send numbered entries that wait for more."""

    def when_decided(self, numbers: Mapping[RangeKey, int], finish: Finish) -> None:
        """Call `finish` when entries are committed, or never will be."""


@dataclass(frozen=True, slots=True)
class _Submission:
    entries: tuple[Entry, ...]
    length: int
    memory_bytes: int
    done: asyncio.Future[Written] = field(compare=False)
    copied: RangeKey | None = None
    """The range, if the entries come from another server."""


@dataclass(slots=True)
class _Job:
    """Work for a thread. `then` is called when this job and all jobs before it are done.

    The next job may begin when `is_written`: its group is written behind this one.
    """

    work: Callable[[], None]
    then: Callable[[], None]
    submissions: Sequence[_Submission] = ()
    began_at: float = 0.0
    is_written: bool = False
    is_done: bool = False


class GroupCommitter:
    """Writes entries to the log in the order of their submission, on threads of its own.

    One group is written and synced at a time. If much is queued, the next group is written while
    the group before it is synced. After a failed write or sync nothing is acknowledged any more:
    `failed` is done, and every submission fails. An acknowledged batch may stay unsynced for
    `sync_interval_ms`; 0 syncs it before. `sizes` bound a group, and the queued appends.
    """

    def __init__(
        self,
        log: Log,
        sync_interval_ms: int = 0,
        sizes: RecordSizes = DEFAULT,
        clock: Clock | None = None,
    ) -> None:
        self._log = log
        self._clock = clock or SystemClock()
        self._slow = LogTally(self._clock, _SLOW_LOG_INTERVAL_MS)
        self._copies: Copies | None = None
        self._sizes = sizes
        self._sync_interval_ms = sync_interval_ms
        self._sync_timer: asyncio.TimerHandle | None = None
        self._is_sync_due = False
        self._queue: deque[_Submission] = deque()
        self._queued_bytes = 0
        self.pending_bytes = 0
        """Bytes that wait for the disk."""
        self.tally: Final = GroupTally()
        self._memory_bytes = 0
        self._jobs: deque[_Job] = deque()
        """The running jobs, in the order of acknowledgement."""
        self._threads: Final = ThreadPoolExecutor(2, thread_name_prefix="sbp-log-writer")
        self._loop = asyncio.get_running_loop()
        self._publish: Publish | None = None
        self._is_begin_due = False
        self._idle = asyncio.Event()
        """Set while the threads have nothing to do, now or at the end of the loop's turn."""
        self._idle.set()
        self.failed: asyncio.Future[SbpError] = self._loop.create_future()
        self._contradicted: dict[RangeKey, LogError] = {}
        """The reason, by range whose copied entries were refused: nothing may follow them."""

    def start(self, publish: Publish, copies: Copies | None = None) -> None:
        """Begin to commit; `publish` gets the ranges that a group changed, before its answers."""
        self._publish = publish
        self._copies = copies
        self._begin_soon()

    def check_room(self, memory_bytes: int) -> None:
        """Raise ThrottledError if there is no memory for another waiting append."""
        if self._memory_bytes + memory_bytes > self._sizes.pending_append_bytes:
            raise ThrottledError.of(
                f"{self.pending_bytes} bytes wait for the disk already; try again later"
            )

    @contextmanager
    def hold(self, memory_bytes: int) -> Iterator[None]:
        """Count the memory of a call that only waits for entries of other calls."""
        self._memory_bytes += memory_bytes
        try:
            yield
        finally:
            self._memory_bytes -= memory_bytes

    def submit(
        self, entries: Sequence[Entry], memory_bytes: int = 0, copied: RangeKey | None = None
    ) -> asyncio.Future[Written]:
        """Queue entries for the next group commit; the future is done when they are acknowledged.

        Entries are written also if the future is cancelled. The future fails with LogWriteError
        when the log has failed. The entries count as `memory_bytes` until then (see `check_room`).

        Entries of a `copied` range come from another server, which may be wrong. Entries that
        contradict the log are refused with LogError, and so are all later entries of the range,
        until `forgive`.
        """
        done: asyncio.Future[Written] = self._loop.create_future()
        if self.failed.done():
            _refuse(done, self.failed.result())
            return done
        length = sum([entry.length for entry in entries])
        self._queue.append(_Submission(tuple(entries), length, memory_bytes, done, copied))
        self._queued_bytes += length
        self.pending_bytes += length
        self._memory_bytes += memory_bytes
        self._begin_soon()
        return done

    def forgive(self, copied: RangeKey) -> None:
        """Accept copied entries of a range again, after all refused ones were answered."""
        self._contradicted.pop(copied, None)

    async def stop(self) -> None:
        """Commit all queued entries, then end."""
        await self._idle.wait()
        self._threads.shutdown()

    @property
    def write_began_at(self) -> float | None:
        """The time by the clock when the oldest write or sync in progress began."""
        return self._jobs[0].began_at if self._jobs else None

    @property
    def _is_wanted(self) -> bool:
        """Whether a thread should begin: the first for anything queued, the second for a lot."""
        if not self._jobs:
            return bool(self._queue) or self._is_sync_due
        # Two groups at a time pay only if a group is long. With a sync interval a group is only
        # written, which is over before a second thread could help.
        return (
            self._is_lot_queued
            and len(self._jobs) == 1
            and self._jobs[0].is_written
            and self._sync_interval_ms == 0
        )

    @property
    def _is_lot_queued(self) -> bool:
        return self._queued_bytes >= limits.OVERLAPPING_GROUP_BYTES_MIN

    def _begin_soon(self) -> None:
        """Begin at the end of this turn of the loop, so that all its arrivals share a group."""
        if self._publish is not None and not self._is_begin_due and self._is_wanted:
            self._is_begin_due = True
            self._idle.clear()
            self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        """Start the next job, if there is one."""
        self._is_begin_due = False
        if not self.failed.done() and self._is_wanted:
            if self._is_sync_due:
                self._run(_Job(self._log.sync, self._on_synced))
            else:
                self._commit(self._pop_group())
        elif not self._jobs:
            self._idle.set()

    def _commit(self, submissions: Sequence[_Submission]) -> None:
        entries = [entry for submission in submissions for entry in submission.entries]
        numbers: list[Mapping[RangeKey, int]]
        if self._copies is None:
            numbers = [{}] * len(submissions)
        else:  # sent before the write here, so that all disks work at the same time
            numbers = [self._copies.send(submission.entries) for submission in submissions]
            self._copies.flush()
        is_durable = self._sync_interval_ms == 0 or any(
            entry.kind not in _UNSYNCED_KINDS for entry in entries
        )
        appended: list[Appended] = []
        seconds = 0.0
        refused: dict[int, LogError] = {}

        def on_written() -> None:
            job.is_written = True
            if self._is_lot_queued:  # else `submit` begins the next job when more is queued
                self._loop.call_soon_threadsafe(self._begin_soon)

        def append() -> None:
            try:
                if not self._is_contradicted(submissions):
                    write(submissions)
                    return
            except LogWriteError:
                raise
            except LogError:  # nothing was written: find the submissions to refuse
                pass
            refused.update(self._contradicting(submissions))
            write([each for at, each in enumerate(submissions) if at not in refused])

        def write(group: Sequence[_Submission]) -> None:
            chosen = [entry for each in group for entry in each.entries]
            nonlocal seconds
            began_at = self._clock.monotonic()
            appended.append(self._log.append(chosen, is_durable=is_durable, on_written=on_written))
            seconds = self._clock.monotonic() - began_at

        def on_durable() -> None:
            self.tally.add(len(entries), sum([each.length for each in submissions]), seconds)
            for at, error in refused.items():
                self._on_refused(submissions[at], error)
            left = [at for at in range(len(submissions)) if at not in refused]
            self._on_durable(
                [submissions[at] for at in left],
                [numbers[at] for at in left],
                appended[0],
                is_durable=is_durable,
            )

        job = _Job(append, on_durable, submissions)
        self._run(job)

    def _is_contradicted(self, submissions: Sequence[_Submission]) -> bool:
        """Whether any submission follows refused entries of its range."""
        return bool(self._contradicted) and any(
            each.copied in self._contradicted for each in submissions
        )

    def _contradicting(self, submissions: Sequence[_Submission]) -> dict[int, LogError]:
        """Return the copied submissions that contradict the log, by index. Runs on the thread."""
        refused: dict[int, LogError] = {}
        accepted: list[Entry] = []
        for at, each in enumerate(submissions):
            if each.copied is not None:
                try:
                    if each.copied in self._contradicted:
                        raise self._contradicted[each.copied]
                    self._log.check([*accepted, *each.entries])
                except LogError as error:
                    self._contradicted[each.copied] = refused[at] = error
                    continue
            accepted += each.entries
        return refused

    def _on_refused(self, submission: _Submission, error: LogError) -> None:
        self.pending_bytes -= submission.length
        self._memory_bytes -= submission.memory_bytes
        assert submission.copied is not None
        _LOG.error(
            "entries of another server refused stream=%d range=%d: %s", *submission.copied, error
        )
        if not submission.done.done():
            submission.done.set_exception(error)
            submission.done.exception()  # retrieved, as its caller may have left

    def _run(self, job: _Job) -> None:
        """Run a job on a thread; `_on_done` follows on the loop."""

        def on_thread() -> None:
            began_at = self._clock.monotonic()
            try:
                job.work()
            except SbpError as error:
                self._loop.call_soon_threadsafe(self._fail, error)
            except Exception as error:  # noqa: BLE001 - every failure ends all waiting calls
                _LOG.exception("the log failed unexpectedly")
                failure = LogWriteError(f"the log failed unexpectedly: {error}")
                self._loop.call_soon_threadsafe(self._fail, failure)
            else:
                self._note_duration(self._clock.monotonic() - began_at)
                self._loop.call_soon_threadsafe(self._on_done, job)

        job.began_at = self._clock.monotonic()
        self._jobs.append(job)
        self._threads.submit(on_thread)

    def _note_duration(self, seconds: float) -> None:
        """Log a slow disk. Runs on the thread."""
        took_ms = round(1000 * seconds)
        if took_ms >= _SLOW_MS and (counts := self._slow.add(1)):
            _LOG.warning(
                "disk slow took_ms=%d count=%d folder=%s: appends wait for it",
                *(took_ms, *counts, self._log.directory),
            )

    def _on_done(self, job: _Job) -> None:
        """Finish jobs that are done, in their order; start the next."""
        job.is_done = True
        try:
            while self._jobs and self._jobs[0].is_done:
                self._jobs.popleft().then()
        finally:
            self._begin()

    def _on_durable(
        self,
        submissions: Sequence[_Submission],
        numbers: Sequence[Mapping[RangeKey, int]],
        appended: Appended,
        *,
        is_durable: bool,
    ) -> None:
        if is_durable:
            self._on_synced()
        elif self._sync_timer is None:
            self._sync_timer = self._loop.call_later(
                self._sync_interval_ms / 1000, self._on_sync_due
            )
        assert self._publish is not None
        self._publish(appended.ranges)  # before the answers: a client may read what it appended
        for submission, numbered in zip(submissions, numbers, strict=True):
            self.pending_bytes -= submission.length
            if numbered and self._copies is not None:
                acknowledge = partial(self._acknowledge, submission, appended.time_ms)
                self._copies.when_decided(numbered, acknowledge)
            else:
                self._acknowledge(submission, appended.time_ms)

    def _acknowledge(
        self,
        submission: _Submission,
        time_ms: int,
        truncated: Collection[RangeKey] = (),
        unsettled: Collection[RangeKey] = (),
    ) -> None:
        self._memory_bytes -= submission.memory_bytes
        if not submission.done.done():
            submission.done.set_result(Written(time_ms, truncated, unsettled))

    def _on_sync_due(self) -> None:
        self._is_sync_due = True
        self._begin_soon()

    def _on_synced(self) -> None:
        if self._sync_timer is not None:
            self._sync_timer.cancel()
        self._sync_timer = None
        self._is_sync_due = False

    def _pop_group(self) -> list[_Submission]:
        group = [self._queue.popleft()]
        length = group[0].length
        while self._queue and length + self._queue[0].length <= self._sizes.group_commit_bytes:
            group.append(self._queue.popleft())
            length += group[-1].length
        self._queued_bytes -= length
        return group

    def _fail(self, error: SbpError) -> None:
        """Fail all submissions that are not acknowledged; running jobs have no effect any more."""
        if self.failed.done():
            return
        self.failed.set_result(error)
        at_work = [submission for job in self._jobs for submission in job.submissions]
        for submission in (*at_work, *self._queue):
            if not submission.done.done():
                _refuse(submission.done, error)
        self._queue.clear()
        self._jobs.clear()
        self._idle.set()


def _refuse(done: asyncio.Future[Written], error: SbpError) -> None:
    """Fail a submission; the error counts as retrieved, because its caller may be gone."""
    done.set_exception(
        LogWriteError(f"the log cannot be written, nothing more is acknowledged: {error}")
    )
    done.exception()
