"""Open a log: replay the last segment, truncate a torn tail, refuse rot.

Only the last segment is replayed: its snapshot has the ranges at its start, its entries what came
after. For the other segments only headers are read, so that a missing file is noticed; their
entries are verified when they are served.

Unsynced bytes reach the disk in any order, or not at all, so after a mere crash a damaged entry may
precede intact ones. Every group commit carries `durable_upto`, which separates rot from a torn
tail: all bytes below the highest `durable_upto` were synced.

* Damage at or above it is in bytes that may be unsynced, such as the last group before an unclean
  end. With `fsync = "always"` these were not acknowledged. The log is truncated there, and goes on
  in a new segment, away from blocks that may fail.
* Damage below it to the body of a batch is reported, and a FETCH of that batch is refused. All else
  is served.
* Damage below it to the snapshot of the last segment is reported. The ranges are taken from the
  segment before, and the log goes on in a new segment.
* All bytes below the high-water mark (boundaries.py) were synced, too. If the last segment ends
  before the mark it lost its end. The log goes on behind the mark, in a new segment, with the
  offsets that the ranges had. Lost batches are refused by name, and served again when the file is
  put back whole.
* Any other damage below it, and a missing segment, raise LogCorruptionError, and nothing is
  changed. If the last segment is missing, the index of the segment before shows that: an index is
  written only when the next segment is durable.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from sbp_core.errors import LogCorruptionError, LogError, LogWriteError
from sbp_core.failpoints import failpoint
from sbp_core.log.boundaries import START_NAME, HighWater, read_high_water, read_start
from sbp_core.log.disk import TEMPORARY_SUFFIX, DirectoryLock, Disk, DiskFile, translate_os_error
from sbp_core.log.index_file import SegmentIndex, open_index
from sbp_core.log.segment import (
    Segment,
    corruption,
    create_segment,
    file_size,
    open_segment,
    read_segment,
    segment_bases,
    write_segment_header,
)
from sbp_core.log.segment_replay import LogFault, SegmentReplay, StatesAtBase, replay_states
from sbp_core.log.segment_rows import SegmentRows
from sbp_core.log.segment_writer import replace_segment
from sbp_core.log.states.range_states import RangeStates, RecordSpan
from sbp_core.log.states.state_snapshot import encode_snapshot
from sbp_core.segment_format import SEGMENT_HEADER_BYTES, SegmentHeader, segment_path
from sbp_core.wording import listed

_LOG: Final = logging.getLogger(__name__)

_OWN_NAME: Final = re.compile(r"([0-9]{20})\.(?:log|idx)(?:\.tmp)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class TornTail:
    """A torn tail: `cut_bytes` of `path` from log position `position` on, and the reason."""

    path: Path
    position: int
    cut_bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class LostTail:
    """The lost end of a segment: synced log positions [position, end), and their `records`."""

    path: Path
    position: int
    end: int
    records: tuple[RecordSpan, ...]


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """The findings of recovery.

    `entry_count` counts the entries of the last segment without COMMIT and snapshot. `durable_upto`
    is the highest position whose sync is proven, `newest_ms` the time of the last group, or 0.
    """

    segment_bases: tuple[int, ...]
    entry_count: int
    end_position: int
    durable_upto: int
    newest_ms: int
    torn_tail: TornTail | None
    lost_tail: LostTail | None = None
    damaged_batches: tuple[LogFault, ...] = ()
    damaged_snapshot: LogFault | None = None

    def lines(self) -> list[str]:
        """Return what an operator must know, one finding in each line."""
        lines = []
        if self.torn_tail is not None:
            tail = self.torn_tail
            lines.append(
                f"cut {tail.cut_bytes} bytes that were never synced off {tail.path}, at log"
                f" position {tail.position}: {tail.reason}"
            )
        if self.lost_tail is not None:
            lost = self.lost_tail
            lines.append(
                f"{lost.path} lost its end, log positions [{lost.position}, {lost.end}): restore"
                " the file, or see `sbp log check`"
            )
            lines += [f"lost: {records}" for records in lost.records]
        if self.damaged_snapshot is not None:
            snapshot = self.damaged_snapshot
            lines.append(
                f"{snapshot.path} is damaged at log position {snapshot.position}: nothing is lost,"
                " its ranges are known from other entries"
            )
        lines += [
            f"{damaged.path} is damaged at log position {damaged.position}: {damaged.records}"
            " cannot be served"
            for damaged in self.damaged_batches
        ]
        return lines


@dataclass(frozen=True, slots=True)
class LastSegment:
    """The last segment, replayed to its end, and the `rows` of its batches.

    The log was synced at least up to `promised`, so nothing below is a torn tail. A segment that
    `is_cut` ends before that and must not be touched.
    """

    file: DiskFile
    replay: SegmentReplay
    rows: SegmentRows
    entry_count: int
    promised: int
    torn_tail: TornTail | None

    @property
    def is_cut(self) -> bool:
        """Whether the segment lost synced bytes."""
        return self.replay.end < self.promised

    def repair(self) -> None:
        """Truncate the torn tail, if there is one. Raises LogWriteError."""
        if self.torn_tail is None:
            return
        base = self.replay.segment.base
        with translate_os_error(LogWriteError, "cutting the torn tail of", self.file.path):
            failpoint("log.recovery.before_cut")
            if self.torn_tail.position == base:
                write_segment_header(self.file, base)
            else:
                self.file.truncate(self.replay.end - base)
                self.file.fsync()
            failpoint("log.recovery.after_cut")


@dataclass(frozen=True, slots=True)
class Recovered:
    """A log that is ready to append to its `last` segment, behind the `sealed` ones.

    A last segment without a snapshot is empty, and the snapshot is still to be written.
    `next_sequence` is the sequence of the next high-water mark.
    """

    sealed: tuple[Segment, ...]
    last: LastSegment
    high_water: HighWater | None
    next_sequence: int
    lost_tail: LostTail | None = None

    @property
    def report(self) -> RecoveryReport:
        """The findings of recovery."""
        replay = self.last.replay
        return RecoveryReport(
            segment_bases=tuple(each.base for each in (*self.sealed, replay.segment)),
            entry_count=self.last.entry_count,
            end_position=replay.end,
            durable_upto=replay.durable_upto,
            newest_ms=replay.newest_ms,
            torn_tail=self.last.torn_tail,
            lost_tail=self.lost_tail,
            damaged_batches=tuple(each for each in replay.faults if each.records is not None),
            damaged_snapshot=replay.damaged_snapshot,
        )


def lock_log(disk: Disk, directory: Path) -> DirectoryLock:
    """Create `directory` if missing, and lock it. Raises LogError, also if it is in use."""
    with translate_os_error(LogError, "creating", directory):
        disk.make_directory(directory)
    try:
        with translate_os_error(LogError, "locking", directory):
            return disk.lock_directory(directory)
    except LogError as error:
        if not isinstance(error.__cause__, BlockingIOError):
            raise
        raise LogError(
            f"the log in {directory} is in use: stop the process that has it open, or choose"
            " another directory"
        ) from error


def recover(disk: Disk, directory: Path) -> Recovered:
    """Recover the log in `directory`, and leave it ready to append.

    Raises LogCorruptionError for damage that no crash explains, LogError for files that cannot be
    read, LogWriteError if a torn tail cannot be truncated.
    """
    noted = mark, _ = read_high_water(disk, directory)
    start = read_start(disk, directory)
    bases = segment_bases(disk, directory, start)
    if not bases and not start:
        if mark is not None:
            reason = f"all segments are missing, and it was synced up to {mark.position}"
            raise corruption(segment_path(directory, 0), 0, reason)
        with translate_os_error(LogWriteError, "creating", segment_path(directory, 0)):
            create_segment(disk, directory, 0).close()
        bases = [0]
    sealed = tuple(_sealed_segments(disk, directory, bases, start))
    recovered = _recover_last_segment(disk, directory, bases[-1], sealed, noted)
    if isinstance(recovered, LostTail):
        return _recover_with_loss(disk, directory, recovered)
    _remove_leftovers(disk, directory, bases)
    return recovered


def has_segments(disk: Disk, directory: Path) -> bool:
    """Whether `directory` has any segment. Raises LogError."""
    try:
        return bool(segment_bases(disk, directory))
    except LogError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return False
        raise


def _sealed_segments(
    disk: Disk, directory: Path, bases: list[int], start: int
) -> Iterator[Segment]:
    """Yield all segments but the last. Raises LogCorruptionError for a gap between segments."""
    expected = start
    for base in bases:
        path = segment_path(directory, base)
        if base != expected:
            raise corruption(
                path,
                min(base, expected),
                f"this segment starts at position {base}, and the segment before it ends at"
                f" {expected}: a file is missing, was cut short or has grown",
            )
        if base != bases[-1]:
            with open_segment(disk, directory, base) as file:
                segment = read_segment(file, base)
            yield segment
            expected = segment.end
    if not bases:
        path = segment_path(directory, start)
        raise corruption(path, start, "the log starts here, and the file is missing")


def _recover_last_segment(
    disk: Disk,
    directory: Path,
    base: int,
    sealed: tuple[Segment, ...],
    noted: tuple[HighWater | None, int],
) -> Recovered | LostTail:
    """Recover the last segment; return the loss if the log was made to go on behind it."""
    mark, next_sequence = noted
    promised = 0 if mark is None else mark.position
    with open_segment(disk, directory, base, is_writable=True) as file:
        _check_is_last(disk, directory, file, base)
        _settle(disk, directory, file)
        states_at_base = partial(_states_at, disk, directory, base, sealed)
        last = _read_last_segment(file, base, states_at_base, promised)
        if last.is_cut:
            return _go_on_behind(disk, last, mark)
        last.repair()
    return Recovered(sealed, last, mark, next_sequence)


def _read_last_segment(
    file: DiskFile, base: int, states_at_base: StatesAtBase, promised: int
) -> LastSegment:
    """Replay the last segment; change nothing. Raises LogError."""
    size = file_size(file)
    torn_tail = None
    try:
        segment = read_segment(file, base)
    except LogCorruptionError as error:
        if size > SEGMENT_HEADER_BYTES:  # entries are written only behind a synced header
            raise
        segment = Segment(base, base + SEGMENT_HEADER_BYTES, SEGMENT_HEADER_BYTES)
        torn_tail = TornTail(file.path, base, size, str(error))
    if segment.is_cut:  # a start that went on behind it was interrupted
        promised = max(promised, segment.end)
    elif segment.end != base + segment.size:
        reason = "this segment was compacted, and the next segments are missing"
        raise corruption(file.path, segment.end, reason)
    replay = SegmentReplay(file, segment, states_at_base, promised)
    rows, entry_count = SegmentRows(base), 0
    for each in replay.entries():
        rows.add(each.entry, each.location, each.time_ms)
        entry_count += 1
    if replay.torn is not None and replay.end < base + segment.size:
        cut_bytes = base + segment.size - replay.end
        torn_tail = TornTail(file.path, replay.end, cut_bytes, replay.torn.reason)
    if replay.end < promised:  # a loss, not a torn tail: the file must stay as it is
        torn_tail = None
    return LastSegment(file, replay, rows, entry_count, promised, torn_tail)


def _go_on_behind(disk: Disk, last: LastSegment, mark: HighWater | None) -> LostTail:
    """Begin a new segment where the log would go on without the loss.

    The rest of the damaged segment stays, so that a whole copy of the file can be put back. Raises
    LogCorruptionError if the ends of ranges are unknown: offsets might be assigned twice.
    """
    replay, path, end = last.replay, last.file.path, last.promised
    base, found_end = replay.segment.base, replay.end
    missing = f"the log ends here, and was synced up to position {end}: {end - found_end} bytes"
    if mark is None or mark.position != end or mark.tails is None or mark.tails_from != base:
        raise corruption(path, found_end, f"{missing} are missing, of which ranges is unknown")
    records = replay.states.restore_tails(mark.tails)
    with translate_os_error(LogWriteError, "closing", path):
        write_segment_header(last.file, base, end)
    begin = [(entry, replay.newest_ms) for entry in encode_snapshot(replay.states)]
    replace_segment(disk, path.parent, SegmentHeader(end), begin)
    return LostTail(path, found_end, end, records)


def _recover_with_loss(disk: Disk, directory: Path, lost: LostTail) -> Recovered:
    _LOG.error(
        "end of the log lost path=%s position=%d synced_position=%d: lost: %s. Put the file back"
        " whole, or see `sbp log check`; all else is served",
        lost.path,
        lost.position,
        lost.end,
        listed(lost.records) or "no records",
    )
    # The last segment is now the empty one behind the loss, so this does not recur again.
    return replace(recover(disk, directory), lost_tail=lost)


def _check_is_last(disk: Disk, directory: Path, file: DiskFile, base: int) -> None:
    """Raise LogCorruptionError if an index proves that there was a next segment."""
    size = file_size(file)
    segment = Segment(base, base + size, size)
    if _maybe_index(disk, directory, segment) is None:
        return
    path = segment_path(directory, segment.end)
    reason = "the index of the segment before it says that it was there, and the file is missing"
    raise corruption(path, segment.end, reason)


def _settle(disk: Disk, directory: Path, file: DiskFile) -> None:
    """Sync what the previous process left unsynced, and drop the page cache, before any read.

    Otherwise recovery could read, and acknowledge, bytes that a power cut takes back.
    """
    with translate_os_error(LogWriteError, "syncing", file.path):
        file.fdatasync()
        file.drop_cache()
        disk.fsync_dir(directory)


def _states_at(
    disk: Disk,
    directory: Path,
    base: int,
    sealed: tuple[Segment, ...],
    known: RangeStates | None,
) -> RangeStates:
    """Return the states at `base`, from the segment that ends there.

    The index of that segment has only the ranges. If the rest is not `known` it is replayed.
    """
    if sealed:
        index = _maybe_index(disk, directory, sealed[-1])
        if index is not None and known is not None:
            return RangeStates(index.ranges(), known.writers, known.staged)
        with open_segment(disk, directory, sealed[-1].base) as file:
            return replay_states(file, sealed[-1])
    if base:
        path = segment_path(directory, base)
        reason = "the snapshot of its ranges is not whole, and no older segment is left"
        raise corruption(path, base, reason)
    return RangeStates()


def _maybe_index(disk: Disk, directory: Path, segment: Segment) -> SegmentIndex | None:
    try:
        return open_index(disk, directory, segment)
    except (LogCorruptionError, OSError):  # an index can be rebuilt from its segment
        return None


def _remove_leftovers(disk: Disk, directory: Path, bases: list[int]) -> None:
    """Remove files of segments that left the log, and unfinished files."""
    with translate_os_error(LogError, "listing", directory):
        names = disk.list_names(directory)
    kept = {f"{base:020d}" for base in bases}
    for name in names:
        match = _OWN_NAME.fullmatch(name)
        is_gone = match is not None and match[1] not in kept
        is_unfinished = name.endswith(TEMPORARY_SUFFIX) and (
            match is not None or name == f"{START_NAME}{TEMPORARY_SUFFIX}"
        )
        if is_gone or is_unfinished:
            with translate_os_error(LogWriteError, "removing", directory / name):
                failpoint("log.recovery.before_remove")
                disk.remove(directory / name)
