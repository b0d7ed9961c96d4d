"""Replaying a segment: its snapshot, the entries behind that, and what they add up to at its end.

A start (recovery/opening.py), a check, and a repair read segments like this. They differ in what
they do about damage that hides more than batches: `SegmentReplay` refuses it, and the subclass in
recovery/salvage.py goes on. All else that reads segments needs no states, only the entries and the
damage of a `SegmentScanner`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from sbp_core.errors import LogCorruptionError
from sbp_core.log.disk import DiskFile
from sbp_core.log.entry import SNAPSHOT_KINDS, Entry, Location
from sbp_core.log.segment import Segment, corruption
from sbp_core.log.segment_scan import Damage, SegmentScanner, maybe_find_proof
from sbp_core.log.states.range_states import LoggedRange, RangeKey, RangeStates, RecordSpan
from sbp_core.log.states.state_snapshot import SnapshotReader
from sbp_core.log.states.writer_states import MarkReader
from sbp_core.segment_format import SEGMENT_HEADER_BYTES, EntryKind

StatesAtBase = Callable[[RangeStates | None], RangeStates]
"""Returns the states at the base of a segment by other means than its snapshot.

It is given those of the snapshot if only ranges are missing there. Raises LogError.
"""


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


class Replayed(NamedTuple):
    """An entry that was replayed, and the time of its group. A damaged batch has no body."""

    entry: Entry
    location: Location
    time_ms: int
    is_damaged: bool = False


class SegmentReplay:
    """Replays the first `segment.size` bytes of a file, when its `entries` are iterated over.

    Then `states` are those at the end, and `changed` the ranges that its entries changed.

    With `promised` the log ends in this segment, and was synced up to that position at least. So
    damage behind that may be a torn tail: reading ends there, and `torn` says where and why, unless
    a later group commit proves that the bytes were synced. Without it, all of them were.
    """

    def __init__(
        self,
        file: DiskFile,
        segment: Segment,
        states_at_base: StatesAtBase | None = None,
        promised: int | None = None,
    ) -> None:
        self.segment = segment
        self.states = RangeStates()
        self.changed: dict[RangeKey, LoggedRange] = {}
        self.torn: Damage | None = None
        self.faults: list[LogFault] = []
        self.damaged_snapshot: LogFault | None = None
        self.durable_upto = segment.base
        """The highest position that a group commit proves to have been synced."""
        self.newest_ms = 0
        """When the last group was written."""
        self._file = file
        self._states_at_base = states_at_base
        self._promised = promised
        self._snapshot = SnapshotReader()
        self._is_begun = False
        self._marks = MarkReader()

    @property
    def has_snapshot(self) -> bool:
        """Whether the first group is there, or was made good; without it, nothing is."""
        return self._snapshot.is_complete or self.damaged_snapshot is not None

    @property
    def end(self) -> int:
        """Position after the last entry that counts."""
        return self.torn.position if self.torn else self.segment.base + self.segment.size

    def entries(self) -> Iterator[Replayed]:
        """Replay, and yield each entry behind the snapshot. Raises LogError for other damage."""
        scanner = SegmentScanner(self._file, self.segment.base, self.segment.size)
        for item in self._untorn(scanner):
            if isinstance(item, Damage):
                replayed = self._go_around(item, scanner.time_ms)
                if replayed is not None:
                    yield replayed
            elif item[0].kind in SNAPSHOT_KINDS:
                self._add_snapshot(*item)
            else:
                replayed = Replayed(*item, scanner.time_ms)
                self._apply(replayed)
                yield replayed
        self.durable_upto = max(self.durable_upto, scanner.durable_upto)
        self.newest_ms = scanner.time_ms
        if not self._is_begun:
            self._end_without_snapshot(scanner.position)

    def _untorn(self, scanner: SegmentScanner) -> Iterator[tuple[Entry, Location] | Damage]:
        """Yield what is there up to the end, or to the first damage that may be a torn tail.

        In a replicated range the mark of a writer is torn, too, if its batch is: the range must not
        end between them.
        """
        mark: tuple[Entry, Location] | None = None
        for found in scanner.entries():
            if isinstance(found, Damage):
                proof = self._maybe_proof(found)
                if proof is None:
                    self.torn = found if mark is None else Damage(mark[1].position, found.reason)
                    return
                found.proof = proof
            if mark is not None:
                yield mark
                mark = None
            if isinstance(found, Damage) or not self._is_first_half(*found):
                yield found
            else:
                mark = (replace(found[0], body=bytes(found[0].body)), found[1])
        if mark is not None:
            reason = "the batch behind the mark of a writer is missing"
            self.torn = Damage(mark[1].position, reason)

    def _is_first_half(self, entry: Entry, location: Location) -> bool:
        """Whether an entry is torn if the one behind it is."""
        if entry.kind is not EntryKind.WRITER_MARK or self._promised is None:
            return False
        logged = self.states.maybe_range((entry.stream_id, entry.range_index))
        is_replicated = logged is not None and logged.prefix is not None
        return is_replicated and location.end > self._promised

    def _maybe_proof(self, damage: Damage) -> str | None:
        """Return what says that damaged bytes were synced; None where the log may end there."""
        if self._promised is None:
            return ""
        position = maybe_find_proof(self._file, self.segment.base, damage.position)
        if position is not None:
            return f"the group commit at position {position} proves that it was synced before"
        end = self.segment.base + self.segment.size
        if end < self._promised:  # cut short: the last entry may be damaged by that alone
            is_synced = damage.header is not None and damage.position + damage.header.length <= end
        else:
            is_synced = damage.position < self._promised
        return f"the log was synced up to position {self._promised}" if is_synced else None

    def _go_around(self, damage: Damage, time_ms: int) -> Replayed | None:
        """Replay what is known of damaged bytes: the batch that was there, if it was one."""
        found = damage.maybe_batch()
        if found is not None:
            replayed = Replayed(*found, time_ms, is_damaged=True)
            self._fault(damage.position, damage.reason, RecordSpan.of(replayed.entry))
            self._apply(replayed)
            return replayed
        is_of_snapshot = damage.header is not None and damage.header.kind in SNAPSHOT_KINDS
        if is_of_snapshot and self._states_at_base is not None:
            self._restore(damage)
        else:
            self._refuse(damage)
        return None

    def _restore(self, damage: Damage) -> None:
        """Begin with the states from elsewhere instead of a snapshot that is damaged."""
        if self.damaged_snapshot is None:
            self.damaged_snapshot = self._fault(damage.position, damage.reason)
            is_of_ranges = damage.header is not None and damage.header.kind is EntryKind.SNAPSHOT
            is_rest_known = is_of_ranges and self._snapshot.has_all_but_ranges
            self._begin_at_base(self._snapshot.states() if is_rest_known else None)

    def _add_snapshot(self, entry: Entry, location: Location) -> None:
        if self.damaged_snapshot is not None:
            return
        try:
            is_complete = self._snapshot.add(entry)
        except LogCorruptionError as error:
            self._contradict(location.position, str(error))
            return
        if is_complete:
            self._take_snapshot(self._snapshot.states())

    def _take_snapshot(self, states: RangeStates) -> None:
        self._begin(states)

    def _begin(self, states: RangeStates) -> None:
        self.states = states
        self._is_begun = True

    def _begin_at_base(self, known: RangeStates | None = None) -> None:
        self._begin(RangeStates() if self._states_at_base is None else self._states_at_base(known))

    def _apply(self, replayed: Replayed) -> None:
        entry, location, time_ms, _ = replayed
        if not self._is_begun:
            self._contradict(location.position, "the snapshot of the segment's ranges is not whole")
            self._begin_at_base()
        try:
            for logged in self._moved(replayed):
                self.changed[logged.key] = logged
            self._marks.add(entry, location, time_ms, self.states.writers)
            self.states.staged.apply(entry, location, time_ms)
        except LogCorruptionError as error:
            self._contradict(location.position, str(error))

    def _moved(self, replayed: Replayed) -> Sequence[LoggedRange]:
        """Move the ranges on by an entry; return those that it changed."""
        return self.states.apply(replayed.entry, is_damaged=replayed.is_damaged)

    def _end_without_snapshot(self, position: int) -> None:
        """Take an unfinished first group for a torn tail; without it, nothing is there."""
        reason = "the segment ends within the snapshot of its ranges"
        if self._promised is None:
            self._contradict(position, reason)
        else:
            reason = self.torn.reason if self.torn else reason
            self.torn = Damage(self.segment.base + SEGMENT_HEADER_BYTES, reason)
        self._begin_at_base()

    def _fault(self, position: int, reason: str, records: RecordSpan | None = None) -> LogFault:
        fault = LogFault(self._file.path, position, reason, records)
        self.faults.append(fault)
        return fault

    def _refuse(self, damage: Damage) -> None:
        """Raise LogCorruptionError for damage that may hide any entry."""
        reason = f"{damage.reason}; {damage.proof}" if damage.proof else damage.reason
        raise corruption(self._file.path, damage.position, reason)

    def _contradict(self, position: int, reason: str) -> None:
        """Raise LogCorruptionError where an intact entry does not follow from those before it."""
        raise corruption(self._file.path, position, reason)


def replay_states(file: DiskFile, segment: Segment) -> RangeStates:
    """Return the states at the end of a full segment.

    Raises LogCorruptionError for damage other than to a batch's body. A compacted segment does not
    say what became of its ranges: that is LogCorruptionError, too.
    """
    if segment.generation or segment.is_cut:
        why = "was compacted" if segment.generation else "lost its end"
        reason = f"the segment behind it lost the snapshot of its ranges, and this one {why}"
        raise corruption(file.path, segment.base, reason)
    replay = SegmentReplay(file, segment)
    for _ in replay.entries():
        pass
    return replay.states
