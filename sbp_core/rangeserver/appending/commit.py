"""Group commit: the one way of an entry into the log, and from there to readers.

Entries that are queued while the disk is busy share the next write and sync. The way of each entry:

    submit -> write, and send to secondaries -> durable -> committed -> publish
           -> the future of `submit` ends

Every entry of a range takes it: batches and the marks of their writers, staged batches, ends of
transactions, seals, trims, deletions, new ranges, writers that came from another server. No other
module calls `Log.append`. The log itself adds only what follows from these entries: COMMIT entries,
and snapshots at the start of a segment.

Entries of replicated ranges that this server leads go to the secondaries while they are written
here (`Copies`, replicating/primary.py). Such a submission is committed once it is durable here and
on as many secondaries as the range needs. Submissions of other ranges do not wait for that. Groups
are durable in their order, and only `_on_durable` publishes (`RangeHost.publish`: the table of
ranges, which bounds every FETCH and DESCRIBE_RANGES) and ends futures.

Three things are visible earlier:

* Offsets are assigned, and a range is sealed or deleted in the table (`RangeTable.move`), when the
  entry is submitted, because the entries behind it follow from it. The range accepts nothing more
  from then on. It has no `end_offset` before its seal is committed.
* The log knows writers and staged batches when they are written, for the next group. Repeats are
  answered from InFlight until the original is committed, and END_TXN waits for that
  (`Stagings.settle`).
* A FETCH of the batches staged under a transaction may see a batch that is not synced yet.

With a sync interval batches are committed when they are written, and synced at most that much
later. A decision (a seal, a trim, a new range) is something others build on: it is synced before it
is committed, and with it everything that was written before. So are staged batches: a transaction
is decided elsewhere, and what was decided has to be here.
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
from sbp_core.rangeserver.metrics import GroupTally
from sbp_core.record_sizes import DEFAULT, RecordSizes
from sbp_core.segment_format import EntryKind
from sbp_core.server.runtime import Clock, LogTally, SystemClock

Publish = Callable[[Sequence[LoggedRange]], None]
"""Makes visible how ranges are, now that what changed them is committed."""

_LOG: Final = logging.getLogger(__name__)

_SLOW_MS: Final = 1_000
"""Time to write and sync a group from which on the disk is logged as slow."""
_SLOW_LOG_INTERVAL_MS: Final = 600_000
"""Between lines of the log about that."""
_UNSYNCED_KINDS: Final = APPENDED_KINDS - {EntryKind.STAGED}
"""Kinds that may be acknowledged before they are synced, with a sync interval."""


class Written(NamedTuple):
    """When entries were written, in ms since the epoch, UTC.

    Those of ranges that were `cut` are not in their ranges: these ended before them. Those of
    `unsettled` ranges are in them, and on too few disks to be acknowledged.
    """

    time_ms: int
    cut: Collection[RangeKey] = ()
    unsettled: Collection[RangeKey] = ()

    def check(self, key: RangeKey) -> None:
        """Raise RangeSealedError if a range ended before its entries.

        RequestTimeoutError, of unknown outcome, if they are on too few disks.
        """
        if key in self.unsettled:
            raise RequestTimeoutError.of(
                f"range {key[1]} of stream {key[0]} was sealed, and too few other servers have"
                " settled it in time: this is in the range, and lost if the disk here is; see that"
                " the other servers of the range run"
            )
        if key in self.cut:
            raise RangeSealedError.of(
                f"range {key[1]} of stream {key[0]} was sealed before this was committed; nothing"
                " was appended, and the stream goes on in the next range"
            )


Finish = Callable[[Collection[RangeKey], Collection[RangeKey]], None]
"""Called with the ranges in which entries were cut, and with those that are `unsettled`."""


class Copies(Protocol):
    """The copies of ranges on other servers, as the committer needs them."""

    def send(self, entries: Sequence[Entry]) -> Mapping[RangeKey, int]:
        """Number and send entries; return the last number in each range that is led here."""

    def flush(self) -> None:
        """Send what was numbered, if that waits for more."""

    def when_decided(self, numbers: Mapping[RangeKey, int], finish: Finish) -> None:
        """Call `finish` once it is known whether entries are committed."""


class NoCopies(Copies):
    """No range has copies."""

    def send(self, entries: Sequence[Entry]) -> Mapping[RangeKey, int]:
        """Return nothing."""
        del entries
        return {}

    def flush(self) -> None:
        """Do nothing."""

    def when_decided(self, numbers: Mapping[RangeKey, int], finish: Finish) -> None:
        """Call `finish`."""
        finish((), ())


@dataclass(frozen=True, slots=True)
class _Submission:
    entries: tuple[Entry, ...]
    length: int
    memory_bytes: int
    done: asyncio.Future[Written] = field(compare=False)
    copied: RangeKey | None = None
    """The range, if the entries are copies of those of another server."""


@dataclass(slots=True)
class _Job:
    """Work for a thread. `then` is called when it is done, as are the jobs before it.

    Once `is_written` the next job may begin: its group is written behind this one.
    """

    work: Callable[[], None]
    then: Callable[[], None]
    submissions: Sequence[_Submission] = ()
    began_at: float = 0.0
    is_written: bool = False
    is_done: bool = False


class GroupCommitter:
    """Writes entries to the log in the order of their submission, on threads of its own.

    One group is written and synced at a time. Only if much is queued by then is the next one
    written while that is synced. After a failed write or sync nothing is acknowledged any more:
    `failed` ends and every submission fails. `sync_interval_ms` is how long an acknowledged batch
    may stay unsynced, 0 for not at all. `sizes` bound a group, and the appends that are queued.
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
        self._copies: Copies = NoCopies()
        self._sizes = sizes
        self._sync_interval_ms = sync_interval_ms
        self._sync_timer: asyncio.TimerHandle | None = None
        self._is_sync_due = False
        self._queue: deque[_Submission] = deque()
        self._queued_bytes = 0
        self.pending_bytes = 0
        """Bytes that wait for the disk, and are in no index yet."""
        self.tally: Final = GroupTally()
        self._memory_bytes = 0
        self._jobs: deque[_Job] = deque()
        """The running jobs, in the order in which they are acknowledged."""
        self._threads: Final = ThreadPoolExecutor(2, thread_name_prefix="sbp-log-writer")
        self._loop = asyncio.get_running_loop()
        self._publish: Publish | None = None
        self._is_begin_due = False
        self._idle = asyncio.Event()
        """Whether the threads have nothing to do; nor will they at the end of the loop's turn."""
        self._idle.set()
        self.failed: asyncio.Future[SbpError] = self._loop.create_future()
        self._contradicted: dict[RangeKey, LogError] = {}
        """The ranges of which entries were refused, and why: nothing may follow these."""

    def start(self, publish: Publish, copies: Copies | None = None) -> None:
        """Begin to commit; call `publish` with what each group changed, before its answers."""
        self._publish = publish
        self._copies = copies or self._copies
        self._begin_soon()

    def check_room(self, memory_bytes: int) -> None:
        """Raise ThrottledError when there is no memory for another append to wait."""
        if self._memory_bytes + memory_bytes > self._sizes.pending_append_bytes:
            raise ThrottledError.of(
                f"{self.pending_bytes} bytes wait for the disk already; try again later"
            )

    @contextmanager
    def hold(self, memory_bytes: int) -> Iterator[None]:
        """Count the memory of a call that waits for entries of other calls (see `check_room`)."""
        self._memory_bytes += memory_bytes
        try:
            yield
        finally:
            self._memory_bytes -= memory_bytes

    def submit(
        self, entries: Sequence[Entry], memory_bytes: int = 0, copied: RangeKey | None = None
    ) -> asyncio.Future[Written]:
        """Queue entries for the next group commit; the future ends when they are acknowledged.

        They are written also if it is cancelled. It fails with LogWriteError when the log cannot be
        written any more. `memory_bytes` is what the entries count for until then (see
        `check_room`).

        Entries of a `copied` range come from another server, which may be wrong. If they contradict
        the log they are refused with LogError, and all that follow them, until `forgive`.
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
        """Accept copied entries of a range again: all that were refused are answered."""
        self._contradicted.pop(copied, None)

    async def stop(self) -> None:
        """Commit what is queued, then end."""
        await self._idle.wait()
        self._threads.shutdown()

    @property
    def write_began_at(self) -> float | None:
        """When the oldest write or sync in progress began, by the clock."""
        return self._jobs[0].began_at if self._jobs else None

    @property
    def _is_wanted(self) -> bool:
        """Whether a thread is to begin with what is queued: one, or another for a lot."""
        if not self._jobs:
            return bool(self._queue) or self._is_sync_due
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
        """Let a thread work once all that arrived in this turn of the loop is queued."""
        if self._publish is not None and not self._is_begin_due and self._is_wanted:
            self._is_begin_due = True
            self._idle.clear()
            self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        """Give the threads what is to be done next, if there is anything."""
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
            if self._is_lot_queued:  # else `submit` begins it, once more is queued
                self._loop.call_soon_threadsafe(self._begin_soon)

        def append() -> None:
            try:
                if not self._is_contradicted(submissions):
                    write(submissions)
                    return
            except LogWriteError:
                raise
            except LogError:  # nothing was written
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
        """Whether entries follow some that were refused."""
        return bool(self._contradicted) and any(
            each.copied in self._contradicted for each in submissions
        )

    def _contradicting(self, submissions: Sequence[_Submission]) -> dict[int, LogError]:
        """Return which copied entries of a group must not be written, by position; on a thread."""
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
        """Do the work on a thread; when it is done, go on here."""

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
        """Log that the disk is slow. Runs on the thread."""
        took_ms = round(1000 * seconds)
        if took_ms >= _SLOW_MS and (counts := self._slow.add(1)):
            _LOG.warning(
                "disk slow took_ms=%d count=%d folder=%s: appends wait for it",
                *(took_ms, *counts, self._log.directory),
            )

    def _on_done(self, job: _Job) -> None:
        """Finish the jobs that are done, in their order; begin the next."""
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
        self._publish(appended.ranges)
        for submission, numbered in zip(submissions, numbers, strict=True):
            self.pending_bytes -= submission.length
            if numbered:
                acknowledge = partial(self._acknowledge, submission, appended.time_ms)
                self._copies.when_decided(numbered, acknowledge)
            else:
                self._acknowledge(submission, appended.time_ms)

    def _acknowledge(
        self,
        submission: _Submission,
        time_ms: int,
        cut: Collection[RangeKey] = (),
        unsettled: Collection[RangeKey] = (),
    ) -> None:
        self._memory_bytes -= submission.memory_bytes
        if not submission.done.done():
            submission.done.set_result(Written(time_ms, cut, unsettled))

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
        """Fail all that is not acknowledged yet; running jobs change nothing any more."""
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
    """Fail a submission; the error counts as retrieved, as its caller may have left."""
    done.set_exception(
        LogWriteError(f"the log cannot be written, nothing more is acknowledged: {error}")
    )
    done.exception()
