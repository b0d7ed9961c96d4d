"""The log: append groups of entries durably, read them back.

Threads: `append` and `close` belong to one thread, the writer. `read` and `read_entry` may run in
any number of other threads at the same time: what they share with the writer is one immutable
value, the extent of what is durable, which the writer replaces when a group is synced. So nothing
is ever read that could still be lost.
"""

from __future__ import annotations

import enum
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from sbp_core.errors import (
    ConfigurationError,
    LogError,
    LogWriteError,
    Outcome,
)
from sbp_core.failpoints import failpoint
from sbp_core.limits import ENTRY_BYTES_MAX, GROUP_COMMIT_BYTES_MAX, SEGMENT_BYTES
from sbp_core.log.disk import (
    DirectoryLock,
    Disk,
    DiskFile,
    describe_os_error,
    translate_os_error,
)
from sbp_core.log.entry import (
    COMMIT_BYTES,
    ENTRY_PREFIX_BYTES,
    Entry,
    EntryKind,
    Location,
    commit_entry,
    decode_entry,
    decode_entry_length,
    encode_entry,
)
from sbp_core.log.recovery import OnEntry, RecoveryReport, corruption, naming_damage, recover
from sbp_core.log.segment import (
    SEGMENT_HEADER_BYTES,
    SegmentReaders,
    create_segment,
    segment_path,
)
from sbp_core.wire.checksum import Octets


class LogState(enum.Enum):
    """OPEN takes appends. FAILED and CLOSED never do again; FAILED still reads."""

    OPEN = "open"
    FAILED = "failed"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class _Extent:
    """What is durable: the segments by base position, and the end of the last one."""

    bases: tuple[int, ...]
    end: int


class Log:
    """An open log; see `Log.open`. A context manager that closes it."""

    def __init__(
        self,
        directory: Path,
        *,
        disk: Disk,
        lock: DirectoryLock,
        segment_bytes: int,
        recovery: RecoveryReport,
    ) -> None:
        self.recovery = recovery
        self._directory = directory
        self._disk = disk
        self._lock = lock
        self._segment_bytes = segment_bytes
        self._readers = SegmentReaders(disk, directory)
        self._extent = _Extent(recovery.segment_bases, recovery.end_position)
        self._durable_upto = recovery.durable_upto
        self._state = LogState.OPEN
        self._failure = ""
        path = segment_path(directory, self._active_base)
        with translate_os_error(LogError, "opening", path):
            self._active: DiskFile = disk.open(path, is_writable=True)

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        on_entry: OnEntry,
        disk: Disk,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> Self:
        """Open or create the log in `directory`, exclusively, and recover it.

        `on_entry(entry, location)` is called for every entry in the order of the log. The body is
        a view that is valid during the call only: copy what is to be kept. What it raises passes
        through. A segment is closed when the next group would make it longer than `segment_bytes`.

        Raises LogError if another process has the log open or it cannot be read,
        LogCorruptionError if it is damaged, and LogWriteError if a torn tail cannot be cut.
        """
        if segment_bytes <= 0:
            raise ConfigurationError(f"segment_bytes is {segment_bytes}, expected a positive size")
        with translate_os_error(LogError, "creating", directory):
            disk.make_directory(directory)
        try:
            with translate_os_error(LogError, "locking", directory):
                lock = disk.lock_directory(directory)
        except LogError as error:
            if not isinstance(error.__cause__, BlockingIOError):
                raise
            raise LogError(
                f"the log in {directory} is in use: stop the process that has it open, or choose "
                f"another directory"
            ) from error
        try:
            recovery = recover(disk, directory, on_entry)
            return cls(
                directory,
                disk=disk,
                lock=lock,
                segment_bytes=segment_bytes,
                recovery=recovery,
            )
        except BaseException:
            lock.release()
            raise

    @property
    def state(self) -> LogState:
        """Whether the log takes appends."""
        return self._state

    @property
    def end_position(self) -> int:
        """Position after the last durable octet: readable are the positions below it."""
        return self._extent.end

    def append(self, entries: Sequence[Entry]) -> list[Location]:
        """Write `entries` as one group commit; return where they are, once they are durable.

        An empty group makes provable that all before it was synced. A group is not atomic: after
        a crash in here any number of its first entries may be found. Together the entries may have
        at most GROUP_COMMIT_BYTES_MAX octets, each at most ENTRY_BYTES_MAX, or LogError is raised
        and nothing is written.

        After any failure of a write or a sync the log is dead: this call and all later ones raise
        LogWriteError. Its outcome is UNKNOWN if the group may have been written.
        """
        self._check_open()
        length = COMMIT_BYTES + _check_group(entries)
        if self._active_size + length > self._segment_bytes and self._has_entries:
            self._roll()
        position = self._extent.end
        buffers: list[Octets] = encode_entry(commit_entry(position), position)
        locations = []
        next_position = position + COMMIT_BYTES
        for entry in entries:
            buffers += encode_entry(entry, next_position)
            locations.append(Location(next_position, entry.length))
            next_position += entry.length
        with self._dies_of_failure(f"writing {self._active.path}", Outcome.UNKNOWN):
            failpoint("log.before_write")
            self._active.pwritev(buffers, position - self._active_base)
            failpoint("log.before_sync")
            self._active.fdatasync()
            failpoint("log.after_sync")
        self._durable_upto = position
        self._extent = _Extent(self._extent.bases, next_position)
        return locations

    def read(self, position: int, length: int) -> bytes:
        """Return `length` octets from `position`, which must lie in one segment; not verified.

        Meant for bodies, in whole or in part: (location.body_position, location.body_length).
        Their checksum was verified when the log was opened, or computed when they were appended.
        Raises LogError for what is not durable, not in one segment, or cannot be read.
        """
        if self._state is LogState.CLOSED:
            raise LogError("the log is closed")
        base, end = self._segment_at(position)
        if not base <= position <= position + length <= end:
            raise LogError(
                f"{length} octets at position {position} are not in one segment or not durable: "
                f"the segment is [{base}, {end})"
            )
        path = segment_path(self._directory, base)
        with translate_os_error(LogError, "reading", path):
            data = self._readers.file(base).pread(length, position - base)
        if len(data) < length:
            raise corruption(path, position + len(data), "the file is shorter than it was")
        return data

    def is_one_segment(self, start: int, end: int) -> bool:
        """Whether the octets [start, end) lie in one segment, so that `read` takes them in one."""
        bases = self._extent.bases
        return bisect_right(bases, start) == bisect_right(bases, end - 1)

    def read_entry(self, position: int, length: int | None = None) -> Entry:
        """Return the entry at `position`, its checksum verified.

        `length` is that of the entry; a caller who knows it saves a read. Raises LogError as
        `read` does, and LogCorruptionError if the entry is damaged or there is none.
        """
        base, end = self._segment_at(position)
        path = segment_path(self._directory, base)
        if length is None:
            prefix = self.read(position, ENTRY_PREFIX_BYTES)
            with naming_damage(path, position):
                length = decode_entry_length(prefix)
            if position + length > end:
                reason = f"an entry of {length} octets runs beyond the segment's end at {end}"
                raise corruption(path, position, reason)
        data = self.read(position, length)
        with naming_damage(path, position):
            return decode_entry(memoryview(data), position)

    def close(self) -> None:
        """Close the log and give the directory back. Idempotent.

        The last group is made provable, so that damage to it is told from a torn tail after a
        clean end; LogWriteError if that fails (nothing that was acknowledged is lost by it).
        """
        if self._state is LogState.CLOSED:
            return
        try:
            if self._state is LogState.OPEN and self._has_unproven_entries:
                self.append([])
        finally:
            self._state = LogState.CLOSED
            self._active.close()
            self._readers.clear()
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _segment_at(self, position: int) -> tuple[int, int]:
        """Return [base, end) of the segment that `position` is in, or is nearest to."""
        extent = self._extent
        after = bisect_right(extent.bases, position, lo=1)
        end = extent.bases[after] if after < len(extent.bases) else extent.end
        return extent.bases[after - 1], end

    @property
    def _active_base(self) -> int:
        return self._extent.bases[-1]

    @property
    def _active_size(self) -> int:
        return self._extent.end - self._active_base

    @property
    def _has_entries(self) -> bool:
        return self._active_size > SEGMENT_HEADER_BYTES

    @property
    def _has_unproven_entries(self) -> bool:
        """Whether the active segment ends with anything but an empty group."""
        return self._has_entries and self._durable_upto < self._extent.end - COMMIT_BYTES

    def _roll(self) -> None:
        base = self._extent.end
        path = segment_path(self._directory, base)
        with self._dies_of_failure(f"creating {path}", Outcome.NOT_APPLIED):
            file = create_segment(self._disk, self._directory, base)
            self._active.close()
        self._active = file
        self._extent = _Extent((*self._extent.bases, base), base + SEGMENT_HEADER_BYTES)

    def _check_open(self) -> None:
        if self._state is LogState.CLOSED:
            raise LogError("the log is closed")
        if self._state is LogState.FAILED:
            raise _write_error(
                f"the log takes no more appends: {self._failure}. Fix the disk and restart",
                Outcome.NOT_APPLIED,
            )

    @contextmanager
    def _dies_of_failure(self, action: str, outcome: Outcome) -> Iterator[None]:
        """Whatever the body raises is the end of the log: what is on disk is not known any more."""
        try:
            yield
        except OSError as error:
            self._state = LogState.FAILED
            self._failure = f"{action} failed: {describe_os_error(error)}"
            raise _write_error(self._failure, outcome) from error
        except BaseException:
            self._state = LogState.FAILED
            self._failure = f"{action} was interrupted"
            raise


def _check_group(entries: Sequence[Entry]) -> int:
    """Return the octets that the entries take. Raises LogError if they are over a limit."""
    total = 0
    for entry in entries:
        assert entry.kind is not EntryKind.COMMIT, "the log writes its own"
        if entry.length > ENTRY_BYTES_MAX:
            raise LogError(
                f"an entry of {entry.length} octets is over the limit of {ENTRY_BYTES_MAX}"
            )
        total += entry.length
    if total > GROUP_COMMIT_BYTES_MAX:
        raise LogError(
            f"a group of {total} octets is over the limit of {GROUP_COMMIT_BYTES_MAX}: split it"
        )
    return total


def _write_error(message: str, outcome: Outcome) -> LogWriteError:
    error = LogWriteError(message)
    error.outcome = outcome
    return error
