"""Inspect a whole log for damage, and repair it.

`inspect_log` changes nothing, and reads every byte, from the disk and not from the page cache. The
loss follows from one rule: the log must have all records of a range that was not deleted, from its
start to its end. The bounds of ranges come from the snapshot of each segment, and from the entries
of the last one. So the loss is known exactly, also where damage hides entries. Unknown are only
entries behind the last intact entry of a range in the last segment.

`repair_log` keeps all intact entries. A damaged segment is rewritten with its intact batches; the
old file stays as `<segment>.log.damaged-N`. Replicated ranges keep the prefix before the first
missing entry. Writers of whom a batch may be lost are forgotten: their next append is refused,
unless it is their first batch. Lost offsets are not assigned again if anything behind them is
known: readers get an error for them, and the rest is served. Each step leaves a log that can be
inspected and repaired again, so a crash in between does no harm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, count, pairwise
from pathlib import Path

from sbp_core.errors import LogCorruptionError, LogError, LogWriteError
from sbp_core.log.boundaries import START_NAME, HighWater, read_high_water, read_start, write_start
from sbp_core.log.disk import Disk, DiskFile, translate_os_error
from sbp_core.log.entry import BATCH_KINDS
from sbp_core.log.index_file import SegmentIndex, index_path, read_index
from sbp_core.log.recovery.opening import TornTail
from sbp_core.log.recovery.salvage import Coverage, PrefixGaps, SegmentSalvage
from sbp_core.log.segment import Segment, file_size, open_segment, segment_bases
from sbp_core.log.segment_replay import LogFault
from sbp_core.log.segment_scan import Damage, SegmentScanner
from sbp_core.log.segment_writer import TimedEntry, replace_segment
from sbp_core.log.states.range_states import (
    LoggedRange,
    RangeKey,
    RangeState,
    RangeStates,
    RecordSpan,
)
from sbp_core.log.states.replicated_entries import is_numbered_in
from sbp_core.log.states.staged_entries import maybe_kept
from sbp_core.log.states.staged_states import StagedStates
from sbp_core.log.states.state_snapshot import encode_snapshot
from sbp_core.log.states.writer_states import WriterStates
from sbp_core.segment_format import (
    SEGMENT_HEADER_BYTES,
    SegmentHeader,
    decode_segment_header,
    segment_path,
)


@dataclass(frozen=True, slots=True)
class DamagedSegment:
    """A segment to rewrite, and the ranges that its snapshot should have.

    `segment.size` is the length of its readable part, 0 if the file is missing.
    """

    segment: Segment
    ranges: tuple[LoggedRange, ...]


@dataclass(frozen=True, slots=True)
class LogInspection:
    """The result of reading a whole log.

    `faults` are damaged files, `lost` the missing records, by these faults or since an earlier
    repair. A torn tail is not a fault: a crash leaves it, and the next start truncates it. `ranges`
    are all ranges at the end of the log, `writers` the writers without a lost batch, `staged` the
    whole transactions that seem undecided.

    A repair rewrites `damaged` segments and removes `useless_indexes`. Unless they are None, the
    log goes on in a new segment at `new_end`, and starts at `new_start`.
    """

    faults: tuple[LogFault, ...]
    lost: tuple[RecordSpan, ...]
    torn_tail: TornTail | None
    segment_count: int
    batch_count: int
    ranges: tuple[LoggedRange, ...]
    writers: WriterStates
    staged: StagedStates
    damaged: tuple[DamagedSegment, ...]
    useless_indexes: tuple[Path, ...]
    new_end: int | None
    new_start: int | None

    @property
    def is_intact(self) -> bool:
        """Whether nothing is damaged or lost."""
        return not self.faults and not self.lost


def inspect_log(
    disk: Disk,
    directory: Path,
    *,
    promised: int = 0,
    on_segment: Callable[[int, int], None] = lambda done, count: None,
) -> LogInspection:
    """Inspect the log in `directory`, which no process may have open.

    `promised` is a position up to which the log was synced, as the placement driver knows it.
    `on_segment` is called with the numbers of segments read, and of all. Raises LogError for files
    that cannot be read, and for files of another version or log.
    """
    return _Inspector(disk, directory, promised).inspect(on_segment)


class _Inspector:
    def __init__(self, disk: Disk, directory: Path, promised: int) -> None:
        self._disk = disk
        self._directory = directory
        self._promised = promised
        self._faults: list[LogFault] = []
        self._coverage = Coverage()
        self._gaps = PrefixGaps()
        self._states = RangeStates()
        self._torn_tail: TornTail | None = None
        self._batch_count = 0
        self._damaged: list[DamagedSegment] = []
        self._useless_indexes: list[Path] = []
        self._end: int | None = None
        self._start: int | None = None
        self._mark: HighWater | None = None

    def inspect(self, on_segment: Callable[[int, int], None]) -> LogInspection:
        self._mark, _ = read_high_water(self._disk, self._directory)
        if self._promised > (0 if self._mark is None else self._mark.position):
            self._mark = HighWater(self._promised)
        bases = self._bases()
        for done, (base, following) in enumerate(pairwise(bases)):
            on_segment(done, len(bases))
            self._inspect_sealed(base, following)
        if bases:
            self._inspect_last(bases[-1])
        return LogInspection(
            faults=tuple(self._faults),
            lost=tuple(self._lost()),
            torn_tail=self._torn_tail,
            segment_count=len(bases),
            batch_count=self._batch_count,
            ranges=tuple(self._gaps.applied(self._states)),
            writers=self._states.writers,
            staged=self._coverage.whole(self._states.staged),
            damaged=tuple(self._damaged),
            useless_indexes=tuple(self._useless_indexes),
            new_end=self._end,
            new_start=self._start,
        )

    def _lost(self) -> Iterator[RecordSpan]:
        for logged in self._states:
            if logged.state is not RangeState.DELETED:
                bounds = (logged.start_offset, logged.next_offset)
                for gap in self._coverage.missing(logged.key, *bounds):
                    yield RecordSpan(*logged.key, gap.start, gap.stop)

    def _bases(self) -> list[int]:
        try:
            start = read_start(self._disk, self._directory)
            bases = segment_bases(self._disk, self._directory, start)
        except LogCorruptionError as error:
            bases = segment_bases(self._disk, self._directory, 0)
            self._start = start = bases[0] if bases else 0
            self._fault(self._directory / START_NAME, 0, str(error.__cause__))
        if bases and bases[0] != start:
            self._miss(start, bases[0])
        if not bases and (start or self._mark is not None):
            self._fault(segment_path(self._directory, start), start, "the file is missing")
        return bases

    def _inspect_sealed(self, base: int, following: int) -> None:
        """Inspect a full segment, which should end where the next file starts."""
        faults_before = len(self._faults)
        with open_segment(self._disk, self._directory, base) as file:
            size = file_size(file)
            header = self._maybe_header(file, base)
            end = following if header is None else header.end or base + size
            segment = Segment(base, end, size, header.generation if header else 0)
            index = None
            if header is not None:
                index = self._maybe_index(segment, is_checked=end == following)
            if end > following:
                reason = f"it has grown, or another file is wrong: the next starts at {following}"
                self._fault(file.path, following, reason)
                end = following
            elif end < following and index is None and (header is None or not header.end):
                reason = f"the file ends here, and the next one starts at {following}"
                self._fault(file.path, end, f"{reason}: it was cut short, or a file is missing")
                end = following
            segment = Segment(base, end, min(size, end - base), segment.generation)
            reading = self._read(file, segment)
        if self._is_at_fault(file.path, faults_before):
            self._damaged.append(DamagedSegment(segment, reading.ranges_at_base))
        if index is not None:
            self._gaps.compare(self._states, index.ranges())
            self._states = RangeStates(index.ranges(), self._states.writers, self._states.staged)
        if end < following:
            self._miss(end, following)

    def _inspect_last(self, base: int) -> None:
        faults_before = len(self._faults)
        with open_segment(self._disk, self._directory, base) as file:
            size = file_size(file)
            promised = 0 if self._mark is None else self._mark.position
            if size <= SEGMENT_HEADER_BYTES and promised <= base + SEGMENT_HEADER_BYTES:
                self._tear(file, base, size, base, "it is not longer than a segment's header")
                self._end = base if self._faults else None
                return
            header = self._maybe_header(file, base)
            generation = header.generation if header else 0
            end = header.end or base + size if header else base + size
            segment = Segment(base, end, size, generation)
            if segment.is_cut:  # a recovery that went on behind the loss was interrupted
                promised, end = max(promised, end), base + size
            is_full = end != base + size or self._maybe_index(segment, is_checked=False) is not None
            is_short = not is_full and base + size < promised
            reading = self._read(file, segment, None if is_full else promised)
            if is_short:
                self._lose(file, promised, reading)
                segment = Segment(base, promised, size, generation)
            elif reading.torn is not None:
                self._tear(file, base, size, reading.torn.position, reading.torn.reason)
                segment = Segment(base, end, reading.torn.position - base, generation)
        goes_on_at = max(end, promised) if is_full or is_short else end
        if is_full:
            self._end = goes_on_at
            self._lose_file(end, promised)
        if self._is_at_fault(file.path, faults_before) or (
            self._faults and not (reading.has_snapshot and self._are_prefixes_whole())
        ):
            is_kept = reading.has_records or goes_on_at == promised
            self._end = goes_on_at if is_kept else base
            if is_kept:
                self._damaged.append(DamagedSegment(segment, reading.ranges_at_base))

    def _are_prefixes_whole(self) -> bool:
        """Whether no replicated range has a gap.

        Otherwise the log must go on behind a snapshot that records the gaps.
        """
        return list(self._gaps.applied(self._states)) == list(self._states)

    def _lose(self, file: DiskFile, promised: int, reading: SegmentSalvage) -> None:
        """Note the lost end of the last segment, and its records."""
        position = reading.end
        reason = (
            f"the file ends here, and was synced up to position {promised}: {promised - position}"
            f" bytes are missing"
        )
        if not self._restore_tails(position, promised):
            reason = f"{reason}, of which ranges is not known"
        self._fault(file.path, position, reason)

    def _lose_file(self, base: int, promised: int) -> None:
        """Note that the last segment is missing, which reached at least up to `promised`."""
        if promised > base:
            self._miss(base, promised)
            self._restore_tails(base, promised)
        else:
            self._fault(segment_path(self._directory, base), base, "the file is missing")

    def _restore_tails(self, position: int, promised: int) -> bool:
        """Restore the ranges as of `promised`; return False if they are unknown."""
        mark = self._mark
        if mark is None or mark.tails is None:
            return False
        if mark.position != promised or mark.tails_from > position:
            return False
        self._states.restore_tails(mark.tails)
        return True

    def _is_at_fault(self, path: Path, faults_before: int) -> bool:
        return any(fault.path == path for fault in self._faults[faults_before:])

    def _tear(self, file: DiskFile, base: int, size: int, position: int, reason: str) -> None:
        self._torn_tail = TornTail(file.path, position, base + size - position, reason)

    def _read(
        self, file: DiskFile, segment: Segment, promised: int | None = None
    ) -> SegmentSalvage:
        reading = SegmentSalvage(file, segment, self._states, self._gaps, promised)
        for each in reading.entries():
            if not each.is_damaged:
                self._coverage.add(each.entry, each.location)
                self._batch_count += each.entry.kind in BATCH_KINDS
        self._faults += reading.faults
        self._states = reading.states
        return reading

    def _maybe_header(self, file: DiskFile, base: int) -> SegmentHeader | None:
        with translate_os_error(LogError, "reading", file.path):
            file.drop_cache()
            data = file.pread(SEGMENT_HEADER_BYTES, 0)
        try:
            return decode_segment_header(data, base)
        except LogCorruptionError as error:
            self._fault(file.path, base, str(error))
            return None

    def _maybe_index(self, segment: Segment, *, is_checked: bool) -> SegmentIndex | None:
        """Return the index of a segment; if `is_checked`, an invalid index is a fault."""
        path = index_path(self._directory, segment.base)
        try:
            with (
                translate_os_error(LogError, "reading", path),
                closing(self._disk.open(path, is_writable=False)) as file,
            ):
                file.drop_cache()
                return read_index(file, segment)
        except LogCorruptionError as error:
            if is_checked:
                reason = f"{error}; nothing is lost, it can be made again from its segment"
                self._fault(path, segment.base, reason)
                self._useless_indexes.append(path)
            return None
        except LogError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
            return None

    def _miss(self, base: int, end: int) -> None:
        reason = f"the file is missing, with positions [{base}, {end})"
        self._fault(segment_path(self._directory, base), base, reason)
        self._damaged.append(DamagedSegment(Segment(base, end, 0), tuple(self._states)))
        self._states.forget_writers()
        self._gaps.add_hole(self._states)

    def _fault(self, path: Path, position: int, reason: str) -> None:
        self._faults.append(LogFault(path, position, reason))


def repair_log(disk: Disk, directory: Path, found: LogInspection, now_ms: int) -> tuple[Path, ...]:
    """Repair the faults in `found`; return the copies of damaged files that were kept.

    No process may have the log open. `now_ms` is the wall clock. A log without faults is not
    touched. Raises LogError if no segment is left, or the disk fails.
    """
    if not found.faults:
        return ()
    if not found.segment_count:
        raise LogError(f"no segment is left in {directory}: restore the log from a backup")
    return _Repair(disk, directory, now_ms).run(found)


class _Repair:
    def __init__(self, disk: Disk, directory: Path, now_ms: int) -> None:
        self._kept: list[Path] = []
        self._disk = disk
        self._directory = directory
        self._now_ms = now_ms
        self._unsettled: frozenset[RangeKey] = frozenset()

    def run(self, found: LogInspection) -> tuple[Path, ...]:
        self._unsettled = frozenset(each.key for each in found.ranges if each.is_unsettled)
        if found.new_start is not None:
            self._keep(self._directory / START_NAME)
            write_start(self._disk, self._directory, found.new_start)
        # The new end first: recovery takes a rewritten segment that is the last one for a compacted
        # segment whose successors are missing.
        if found.new_end is not None:
            self._set_aside(found.new_end)
            segment = Segment(found.new_end, found.new_end, 0)
            states = RangeStates(found.ranges, found.writers, found.staged)
            self._rewrite(SegmentHeader(found.new_end), segment, states)
        for damaged in found.damaged:
            self._set_aside(damaged.segment.base)
            segment = damaged.segment
            header = SegmentHeader(segment.base, segment.generation + 1, segment.end)
            # The last segment's snapshot counts for writers and staged batches.
            self._rewrite(header, segment, RangeStates(damaged.ranges))
        for path in found.useless_indexes:
            self._remove(path)
        return tuple(self._kept)

    def _rewrite(self, header: SegmentHeader, damaged: Segment, states: RangeStates) -> None:
        """Replace a damaged segment by a snapshot of `states` and its intact entries, durably."""
        begin = [(entry, self._now_ms) for entry in encode_snapshot(states)]
        entries = chain(begin, self._intact(damaged))
        replace_segment(self._disk, self._directory, header, entries)

    def _intact(self, segment: Segment) -> Iterator[TimedEntry]:
        """Yield the intact entries of a segment: batches, ends, and what replicas may need."""
        if not segment.size:
            return
        with open_segment(self._disk, self._directory, segment.base) as file:
            scanner = SegmentScanner(file, segment.base, segment.size)
            for item in scanner.entries():
                if isinstance(item, Damage):
                    continue
                is_unsettled = is_numbered_in(item[0], self._unsettled)
                kept = maybe_kept(*item, is_unsettled=is_unsettled)
                if kept is not None:
                    yield kept, scanner.time_ms

    def _set_aside(self, base: int) -> None:
        """Keep a segment's file under a second name, and remove its index."""
        self._keep(segment_path(self._directory, base))
        self._remove(index_path(self._directory, base))

    def _keep(self, path: Path) -> None:
        with translate_os_error(LogWriteError, "keeping a copy of", path):
            names = set(self._disk.list_names(path.parent))
            if path.name not in names:
                return
            copy = next(
                copy
                for number in count(1)
                if (copy := path.with_name(f"{path.name}.damaged-{number}")).name not in names
            )
            self._disk.link(path, copy)
            self._disk.fsync_dir(path.parent)
        self._kept.append(copy)

    def _remove(self, path: Path) -> None:
        with translate_os_error(LogWriteError, "removing", path):
            if path.name in self._disk.list_names(path.parent):
                self._disk.remove(path)
