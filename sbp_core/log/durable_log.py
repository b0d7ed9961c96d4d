"""The log: append groups of entries durably, find batches by stream, range and offset.

Read entry.py and segment_format.py first (the bytes), then segment_writer.py (how a group is
written), batch_lookup.py and bodies.py (how batches are found and read), recovery/opening.py.

Threads: two may append at a time. Groups are written and synced in the same order, but a group may
be written while the group before it is synced. `open`, `close` and `ranges` belong to the threads
that append. All else, above all readable_log.py, may run in any number of other threads. Rows are
added when their group is synced, or written if it is not to be synced at once. So readers find a
batch only when it is about to be acknowledged.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self, TypeVar

from sbp_core.errors import ConfigurationError, LogError, LogWriteError, Outcome
from sbp_core.limits import SEGMENT_BYTES, SNAPSHOT_RANGES_PER_ENTRY
from sbp_core.log.batch_lookup import Extent
from sbp_core.log.boundaries import HighWaterKeeper
from sbp_core.log.disk import DirectoryLock, Disk, describe_os_error, translate_os_error
from sbp_core.log.entry import APPENDED_KINDS, COMMIT_BYTES, Entry, Location
from sbp_core.log.index_file import SegmentIndex, encode_index
from sbp_core.log.readable_log import LogState, ReadableLog
from sbp_core.log.recovery.opening import Recovered, RecoveryReport, lock_log, recover
from sbp_core.log.replica_reading import ReplicaStates, truncate_after
from sbp_core.log.segment import Segment
from sbp_core.log.segment_rows import SegmentRows
from sbp_core.log.segment_writer import ActiveSegment, check_group
from sbp_core.log.states.range_states import LoggedRange, RangeKey
from sbp_core.log.states.state_snapshot import encode_snapshot
from sbp_core.replication import Prefix
from sbp_core.segment_format import SEGMENT_HEADER_BYTES, EntryKind, segment_path

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Appended:
    """An appended group: the locations of its entries, and the ranges that it changed.

    `time_ms` is the time of the write, since the epoch, UTC.
    """

    time_ms: int
    locations: tuple[Location, ...]
    ranges: tuple[LoggedRange, ...]


@dataclass(frozen=True, slots=True)
class _Group:
    """A group that was written, and the ranges as it changed them."""

    entries: Sequence[Entry]
    is_durable: bool
    time_ms: int
    locations: tuple[Location, ...]
    changed: Mapping[RangeKey, LoggedRange]
    end: int


class Log(ReadableLog):
    """An open log, made by `Log.open`. A context manager that closes the log."""

    def __init__(
        self,
        directory: Path,
        *,
        disk: Disk,
        lock: DirectoryLock,
        now_ms: Callable[[], int],
        segment_bytes: int,
        recovered: Recovered,
        ranges_per_entry: int = SNAPSHOT_RANGES_PER_ENTRY,
        written_by: Disk,
    ) -> None:
        self.recovery: RecoveryReport = recovered.report
        last = recovered.last
        self._written_by = written_by
        self._lock = lock
        self._now_ms = now_ms
        self._segment_bytes = segment_bytes
        self._ranges_per_entry = ranges_per_entry
        self._failure = ""
        self._writing = threading.Lock()
        self._syncing = threading.Lock()
        """A thread that takes both locks takes `_writing` first."""
        self.high_water = HighWaterKeeper(
            disk, directory, recovered.high_water, recovered.next_sequence
        )
        base, end = last.replay.segment.base, last.replay.end
        with translate_os_error(LogError, "opening", segment_path(directory, base)):
            proven_upto = last.replay.durable_upto
            self._active = ActiveSegment.open(
                written_by, directory, base, end=end, proven_upto=proven_upto
            )
            view = self._active.view(disk)
        self.high_water.on_segment(base, end, last.replay.changed)
        extent = Extent(recovered.sealed, view, last.rows)
        super().__init__(directory, disk, last.replay.states, extent)
        self._streams_held: set[int] | None = None
        self._is_active_empty = last.entry_count == 0

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        disk: Disk,
        now_ms: Callable[[], int],
        segment_bytes: int = SEGMENT_BYTES,
        ranges_per_entry: int = SNAPSHOT_RANGES_PER_ENTRY,
        written_by: Disk | None = None,
    ) -> Self:
        """Open or create the log in `directory`, exclusively, and recover it.

        `now_ms` returns the wall clock, in milliseconds since the epoch, for the times of groups. A
        segment is full when the next group would make it longer than `segment_bytes`. A snapshot
        has an entry for every `ranges_per_entry` ranges. `written_by` is the disk for writes that
        the log needs to go on; it may wait for space.

        Raises LogError if another process has the log open or it cannot be read,
        LogCorruptionError if it is damaged, and LogWriteError if a torn tail cannot be truncated.
        """
        if segment_bytes <= 0:
            raise ConfigurationError(f"segment_bytes is {segment_bytes}, expected a positive size")
        lock = lock_log(disk, directory)
        try:
            recovered = recover(written_by or disk, directory)
            log = cls(
                directory,
                disk=disk,
                lock=lock,
                now_ms=now_ms,
                segment_bytes=segment_bytes,
                recovered=recovered,
                ranges_per_entry=ranges_per_entry,
                written_by=written_by or disk,
            )
            last = recovered.last
            if not last.replay.has_snapshot:
                log._write_snapshot()
            # A torn tail may come from blocks that fail, so nothing is written behind it there.
            elif last.torn_tail or last.replay.damaged_snapshot:
                log._roll()
            return log
        except BaseException:
            lock.release()
            raise

    @property
    def end_position(self) -> int:
        """Position after the last byte."""
        return self._active.end

    def ranges(self) -> list[LoggedRange]:
        """Return all ranges as they are now, by stream and index."""
        return list(self._states)

    def append(
        self,
        entries: Sequence[Entry],
        *,
        is_durable: bool = True,
        on_written: Callable[[], None] = lambda: None,
    ) -> Appended:
        """Write `entries` as one group commit; return once they are durable.

        Without `is_durable` the group is only written. The group survives the end of this process,
        and a power cut once a later group is durable or `sync` was called. Only batches and their
        marks may be written so: the cleaner acts on trims and deletions, and a power cut must not
        undo them after the records were removed.

        `on_written` is called when another thread can write the next group, and not for a group
        with decisions: the next group waits until this call returns.

        An empty group proves that the groups before it were synced. A group is not atomic: after a
        crash any number of its first entries may be found. Raises LogError, and writes nothing, if
        the entries contradict the log, have more than `LARGEST.group_commit_bytes`, or one has more
        than `LARGEST.frame_bytes` (record_sizes.py).

        After a failed write or sync the log is dead: this call and all later ones raise
        LogWriteError. Its outcome is UNKNOWN if the group may have been written.
        """
        has_decisions = any(entry.kind not in APPENDED_KINDS for entry in entries)
        with self._writing:
            group = self._write(entries, is_durable=is_durable)
            if has_decisions:  # nothing may act on decisions, or follow from them, before the sync
                with self._syncing:
                    appended = self._finish(group)
                    self._note(group)
                    return appended
            self._note(group)
            self._syncing.acquire()  # before `_writing` is released: syncs keep the order of writes
        try:
            on_written()
            return self._finish(group)
        finally:
            self._syncing.release()

    def check(self, entries: Sequence[Entry]) -> None:
        """Raise LogError if entries contradict the log, as `append` would."""
        with self._writing:
            self._states.after(entries)

    def sync(self) -> None:
        """Make all appended groups durable. After LogWriteError the log is dead."""
        with self._syncing:
            self._sync(Outcome.NOT_APPLIED)

    def truncation(self, key: RangeKey, end_offset: int, end: Prefix) -> Entry:
        """Return the SETTLED entry that truncates a replicated range to `end`.

        It also settles a range whose damaged entries were mended. Nothing else may be appended to
        the range afterwards. Raises LogError if `end` is not a prefix of the entries here, or if it
        is unknown what was staged at `end`.
        """
        logged = self._replica_range(key, end.seq, is_mended=True)
        with self._writing:
            is_last = all(each.key <= key for each in self._states if each.stream_id == key[0])
        now = ReplicaStates(logged, self.staged, self.writers, is_last)
        return self._looked_up(
            lambda extent: truncate_after(self._reader(extent, logged), now, end_offset, end)
        )

    def unsettled(self) -> frozenset[RangeKey]:
        """Return the replicated ranges that are not settled: other replicas may need entries."""
        with self._writing:
            return frozenset(each.key for each in self._states if each.is_unsettled)

    def replace_sealed(self, changes: Mapping[Segment, Segment | None]) -> None:
        """Remove full segments from the extent, or replace them."""
        with self._writing:
            sealed = (changes.get(segment, segment) for segment in self.extent.sealed)
            kept = tuple(segment for segment in sealed if segment is not None)
            self.extent = replace(self.extent, sealed=kept)

    def note_streams(self, extent: Extent, stream_ids: Iterable[int]) -> None:
        """Note the streams that have batches in the full segments of `extent`.

        The next snapshot leaves out deleted streams without any batch.
        """
        with self._writing:
            if extent.active is self.extent.active:  # else a segment became full in between
                self._streams_held = set(stream_ids)

    def end_segment(self) -> None:
        """Begin a new segment, so that the active one is full and can be cleaned.

        If the disk has no room for `snapshot_bytes` the log is dead, and LogWriteError is raised.
        """
        with self._writing:
            self._check_open()
            if not self._is_active_empty:
                self._roll()

    def snapshot_bytes(self) -> int:
        """Return the length in bytes of a new segment with its snapshot."""
        with self._writing:
            entries = self._snapshot()
        return SEGMENT_HEADER_BYTES + COMMIT_BYTES + sum(entry.length for entry in entries)

    def active_index(self) -> tuple[Segment, SegmentIndex]:
        """Return the active segment as if it were full, with its index."""
        self._check_readable()
        with self._writing, self._syncing:
            segment = self._active.to_full()
            buffers = encode_index(segment, list(self._states), self.extent.rows)
        return segment, SegmentIndex(b"".join(buffers))

    def close(self) -> None:
        """Close the log and release its directory. Idempotent.

        An empty group proves the sync of the last one, and the high-water mark is written, so that
        later damage is not mistaken for a torn tail. Raises LogWriteError if that fails; synced
        entries are not lost by it.
        """
        if self.state is LogState.CLOSED:
            return
        try:
            if self.state is LogState.OPEN:
                if not (self._is_active_empty or self._active.is_proven):
                    self.sync()
                    self.append([])
                self.high_water.note(is_durable=True)
        finally:
            self.state = LogState.CLOSED
            self._active.close()
            self.lookup.clear()
            del self.extent  # the file is closed when its last reader is done
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, entries: Sequence[Entry], *, is_durable: bool) -> _Group:
        """Write a group at the end of the log, in a new segment if the active one is full."""
        self._check_open()
        length = check_group(entries)
        if self._active.size + length > self._segment_bytes and not self._is_active_empty:
            self._roll()
        changed = self._states.after(entries)
        locations, time_ms = self._write_group(entries, Outcome.UNKNOWN)
        self._is_active_empty = self._is_active_empty and not entries
        return _Group(entries, is_durable, time_ms, locations, changed, self._active.end)

    def _note(self, group: _Group) -> None:
        """Apply a group to the states from which the next group follows."""
        self._states.update(group.changed)
        for entry, location in zip(group.entries, group.locations, strict=True):
            if entry.kind is not EntryKind.BATCH:
                self.writers.apply(entry, group.time_ms)
                self.staged.apply(entry, location, group.time_ms)

    def _finish(self, group: _Group) -> Appended:
        """Sync a group if it is to be durable, then make it visible to readers."""
        self.high_water.on_written(group.changed, group.end)
        if group.is_durable:
            self._sync(Outcome.UNKNOWN)
        # Bodies before rows: a reader that finds a row then finds its body in memory.
        self.recent.keep(group.entries, group.locations)
        for entry, location in zip(group.entries, group.locations, strict=True):
            self.extent.rows.add(entry, location, group.time_ms)
        return Appended(group.time_ms, group.locations, tuple(group.changed.values()))

    def _write_group(
        self, entries: Sequence[Entry], outcome: Outcome
    ) -> tuple[tuple[Location, ...], int]:
        """Write a group; return the locations of its entries, and its time."""
        time_ms = self._now_ms()
        with self._dies_of_failure(f"writing {self._active.path}", outcome):
            return self._active.write(entries, time_ms), time_ms

    def _sync(self, outcome: Outcome) -> None:
        """Sync the active segment; `outcome` is the outcome of the caller if that fails."""
        self._check_open(outcome)
        with self._dies_of_failure(f"syncing {self._active.path}", outcome):
            self._active.sync()
        self.high_water.on_synced()

    def _snapshot(self) -> list[Entry]:
        return encode_snapshot(self._states, ranges_per_entry=self._ranges_per_entry)

    def _write_snapshot(self) -> None:
        """Begin the empty active segment with a snapshot of all states."""
        self._write_group(self._snapshot(), Outcome.NOT_APPLIED)
        self.sync()
        self.high_water.on_segment(self._active.base, self._active.end)
        self._is_active_empty = True

    def _roll(self) -> None:
        """Sync the active segment, and begin a new one."""
        self.sync()
        # From here to the end any failure is fatal: the new segment may exist, and a second try at
        # the same position would find it in the way.
        before, full = self.extent, self._active.to_full()
        path = segment_path(self.directory, full.end)
        with self._syncing, self._dies_of_failure(f"creating {path}", Outcome.NOT_APPLIED):
            active = ActiveSegment.create(self._written_by, self.directory, full.end)
            self._active.close()
            self._active = active
            view = active.view(self.disk)
        # Only now that the new segment is durable: recovery takes an index as the proof that its
        # segment has a successor.
        self.lookup.write_index(full, list(self._states), before.rows)
        if self._streams_held is not None:
            self._streams_held |= before.rows.stream_ids
            self._states.forget_deleted(self._streams_held)
        self._write_snapshot()
        self.extent = Extent((*before.sealed, full), view, SegmentRows(full.end))

    def _check_open(self, outcome: Outcome = Outcome.NOT_APPLIED) -> None:
        self._check_readable()
        if self.state is LogState.FAILED:
            failed = LogWriteError(
                f"the log accepts no more appends: {self._failure}. Fix the disk, then restart the"
                " server"
            )
            failed.outcome = outcome
            raise failed

    @contextmanager
    def _dies_of_failure(self, action: str, outcome: Outcome) -> Iterator[None]:
        """Let the log fail if the block fails: the content of the file is unknown then.

        Nothing is retried, because a second fsync may succeed although pages were lost.
        """
        try:
            yield
        except OSError as error:
            self.state = LogState.FAILED
            self._failure = f"{action} failed: {describe_os_error(error)}"
            failed = LogWriteError(self._failure)
            failed.outcome = outcome
            raise failed from error
        except BaseException:
            self.state = LogState.FAILED
            self._failure = f"{action} was interrupted"
            raise
