"""The segment in which a log goes on: where it ends, what a crash tore, what is damaged.

The rules that separate a torn tail from damage are in opening.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from sbp_core.errors import LogCorruptionError, LogWriteError
from sbp_core.failpoints import failpoint
from sbp_core.log.disk import DiskFile, translate_os_error
from sbp_core.log.entry import SNAPSHOT_KINDS, Entry, Location
from sbp_core.log.segment import corruption, file_size, read_segment, write_segment_header
from sbp_core.log.segment_rows import SegmentRows
from sbp_core.log.segment_scan import Damage, Replay, SegmentScanner, maybe_find_proof
from sbp_core.log.states.range_states import RangeStates, RecordSpan
from sbp_core.segment_format import SEGMENT_HEADER_BYTES, EntryKind


@dataclass(frozen=True, slots=True)
class TornTail:
    """The bytes that were cut: `cut_bytes` of `path`, from log position `position` on, and why."""

    path: Path
    position: int
    cut_bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class LostTail:
    """The missing end of a segment: log positions [position, end), which were synced.

    `records` are those that were there.
    """

    path: Path
    position: int
    end: int
    records: tuple[RecordSpan, ...]


@dataclass(frozen=True, slots=True)
class LogFault:
    """Damage to a file at a log position; `records` are those that were there, if known."""

    path: Path
    position: int
    reason: str
    records: RecordSpan | None = None

    def __str__(self) -> str:
        what = f" ({self.records})" if self.records else ""
        return f"{self.path} is damaged at log position {self.position}{what}: {self.reason}"


class LastSegment:
    """The segment in which the log goes on: `read` it, then `repair` it where a crash tore it.

    Then it ends at `end`. Below `promised` nothing is torn: the log was synced up to there, or
    farther. If it `is_cut`, it ends before that and must not be touched. `states_at_base` returns
    the states from the segment before, given those of this one's snapshot if only ranges are
    missing there; it raises LogError.
    """

    def __init__(
        self,
        file: DiskFile,
        base: int,
        states_at_base: Callable[[RangeStates | None], RangeStates],
        promised: int = 0,
    ) -> None:
        self.promised = promised
        self.replay = Replay(file.path, SegmentRows(base))
        self.states_at_base = states_at_base
        self.durable_upto = base
        self.newest_ms = 0
        self.torn_tail: TornTail | None = None
        self.damaged_batches: list[LogFault] = []
        """Acknowledged batches that cannot be served."""
        self.damaged_snapshot: LogFault | None = None
        self.end = base + SEGMENT_HEADER_BYTES
        self._file = file
        self._base = base
        self._size = file_size(file)

    @property
    def has_snapshot(self) -> bool:
        """Whether the first group is there; without it, nothing is."""
        return self.replay.has_snapshot

    @property
    def is_cut(self) -> bool:
        """Whether it lost bytes that were synced."""
        return self.end < self.promised

    def read(self) -> None:
        """Read all that is there; change nothing. Raises LogError."""
        try:
            segment = read_segment(self._file, self._base)
        except LogCorruptionError as error:
            if self._size > SEGMENT_HEADER_BYTES:  # entries are written only behind a synced header
                raise
            if not self.is_cut:
                self.torn_tail = TornTail(self._file.path, self._base, self._size, str(error))
            return
        if segment.is_cut:  # a start that went on behind it was interrupted
            self.promised = max(self.promised, segment.end)
        elif segment.end != self._base + self._size:
            reason = "this segment was compacted, and the ones behind it are missing"
            raise corruption(self._file.path, segment.end, reason)
        scanner = SegmentScanner(self._file, self._base, self._size)
        torn = self._read_entries(scanner)
        self.durable_upto = max(self.durable_upto, scanner.durable_upto)
        self.newest_ms = scanner.time_ms
        if self.has_snapshot:
            self.end = torn.position if torn else scanner.position
        if self.end < self._base + self._size and not self.is_cut:
            reason = torn.reason if torn else "the file ends within the snapshot of its ranges"
            cut_bytes = self._base + self._size - self.end
            self.torn_tail = TornTail(self._file.path, self.end, cut_bytes, reason)

    def repair(self) -> None:
        """Cut what is torn. Raises LogWriteError."""
        if self.torn_tail is None:
            return
        with translate_os_error(LogWriteError, "cutting the torn tail of", self._file.path):
            failpoint("log.recovery.before_cut")
            if self.torn_tail.position == self._base:
                write_segment_header(self._file, self._base)
            else:
                self._file.truncate(self.end - self._base)
                self._file.fsync()
            failpoint("log.recovery.after_cut")

    def _read_entries(self, scanner: SegmentScanner) -> Damage | None:
        """Read up to the end, or to the first damage that may be a torn tail.

        In a replicated range the mark of a writer is torn, too, if its batch is: the range must not
        end between them.
        """
        mark: tuple[Entry, Location] | None = None
        for item in scanner.entries():
            if isinstance(item, Damage):
                proof = self._maybe_proof(item)
                if proof is None:
                    return item if mark is None else Damage(mark[1].position, item.reason)
            if mark is not None:
                self.replay.apply(*mark, scanner.time_ms)
                mark = None
            if isinstance(item, Damage):
                self._go_around(item, proof or "", scanner.time_ms)
            elif self._is_first_half(*item):
                mark = (replace(item[0], body=bytes(item[0].body)), item[1])
            else:
                self.replay.apply(*item, scanner.time_ms)
        return mark and Damage(mark[1].position, "the batch behind the mark of a writer is missing")

    def _is_first_half(self, entry: Entry, location: Location) -> bool:
        """Whether an entry is torn if the one behind it is."""
        logged = self.replay.states.maybe_range((entry.stream_id, entry.range_index))
        is_replicated = logged is not None and logged.prefix is not None
        is_synced = location.end <= self.promised
        return is_replicated and entry.kind is EntryKind.WRITER_MARK and not is_synced

    def _maybe_proof(self, damage: Damage) -> str | None:
        """Return what says that damaged bytes were synced; None where the log may end there."""
        position = maybe_find_proof(self._file, self._base, damage.position)
        if position is not None:
            return f"the group commit at position {position} proves that it was synced before"
        end = self._base + self._size
        if end < self.promised:  # cut short: the last entry may be damaged by that alone
            is_whole = damage.header is not None and damage.position + damage.header.length <= end
        else:
            is_whole = damage.position < self.promised
        return f"the log was synced up to position {self.promised}" if is_whole else None

    def _go_around(self, damage: Damage, proof: str, time_ms: int) -> None:
        """Note damage to what was synced. Raises LogError for what nothing goes on without."""
        batch = damage.maybe_batch()
        if batch is not None:
            records = RecordSpan.of(batch[0])
            fault = LogFault(self._file.path, damage.position, damage.reason, records)
            self.damaged_batches.append(fault)
            self.replay.apply(*batch, time_ms, is_damaged=True)
        elif damage.header is not None and damage.header.kind in SNAPSHOT_KINDS:
            self._restore(damage)
        else:
            raise corruption(
                self._file.path,
                damage.position,
                f"{damage.reason}; {proof}",
            )

    def _restore(self, damage: Damage) -> None:
        if not self.replay.is_restored:
            self.damaged_snapshot = LogFault(self._file.path, damage.position, damage.reason)
            is_of_ranges = damage.header is not None and damage.header.kind is EntryKind.SNAPSHOT
            snapshot = self.replay.snapshot
            is_rest_known = is_of_ranges and snapshot.has_all_but_ranges
            self.replay.restore(self.states_at_base(snapshot.states() if is_rest_known else None))
