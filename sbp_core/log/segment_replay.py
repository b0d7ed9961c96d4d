"""Replay a segment: fold its snapshot and entries into the states at its end.

Recovery (recovery/opening.py), check and repair replay segments. `SegmentReplay` refuses damage
that hides more than batches; its subclass in recovery/salvage.py notes the damage and goes on.
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
"""Returns the states at the base of a segment whose snapshot is damaged. Raises LogError.

The argument has the writers and staged batches of the snapshot, if only its ranges are missing.
"""


@dataclass(frozen=True, slots=True)
class LogFault:
    """Damage to a file at a log position; `records` are the lost records, if known."""

    path: Path
    position: int
    reason: str
    records: RecordSpan | None = None

    def __str__(self) -> str:
        what = f" ({self.records})" if self.records else ""
        return f"{self.path} is damaged at log position {self.position}{what}: {self.reason}"


class Replayed(NamedTuple):
    """A replayed entry, and the time of its group. A damaged batch has no body."""

    entry: Entry
    location: Location
    time_ms: int
    is_damaged: bool = False


class SegmentReplay:
    """Replays the first `segment.size` bytes of a file while its `entries` are iterated over.

    Afterwards `states` are the states at the end, and `changed` the ranges that entries changed.

    `promised` is set for the last segment: the log was synced at least up to this position. Damage
    above it may be a torn tail. Replay stops there, and `torn` says where and why, unless a later
    group commit proves that the bytes were synced. Without `promised` every byte was synced.
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
        """Whether there is a snapshot, intact or replaced. A segment without one is empty."""
        return self._snapshot.is_complete or self.damaged_snapshot is not None

    @property
    def end(self) -> int:
        """Position after the last entry that counts."""
        return self.torn.position if self.torn else self.segment.base + self.segment.size

    def entries(self) -> Iterator[Replayed]:
        """Replay, and yield each entry after the snapshot. Raises LogError for other damage."""
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
        """Yield entries and damage up to the end, or up to damage that may be a torn tail.

        In a replicated range a writer's mark is torn together with its batch: the primary sends
        both in one piece, so the range must not end between them.
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
            else:  # copied, so that it does not keep the window of the scanner in memory
                mark = (replace(found[0], body=bytes(found[0].body)), found[1])
        if mark is not None:
            reason = "the batch behind the mark of a writer is missing"
            self.torn = Damage(mark[1].position, reason)

    def _is_first_half(self, entry: Entry, location: Location) -> bool:
        """Whether an entry is torn if the next entry is torn."""
        if entry.kind is not EntryKind.WRITER_MARK or self._promised is None:
            return False
        logged = self.states.maybe_range((entry.stream_id, entry.range_index))
        is_replicated = logged is not None and logged.prefix is not None
        return is_replicated and location.end > self._promised

    def _maybe_proof(self, damage: Damage) -> str | None:
        """Return why damaged bytes must have been synced; None if they may be a torn tail."""
        if self._promised is None:
            return ""
        position = maybe_find_proof(self._file, self.segment.base, damage.position)
        if position is not None:
            return f"the group commit at position {position} proves that it was synced before"
        end = self.segment.base + self.segment.size
        if end < self._promised:  # the file lost its end, and with it the end of its last entry
            is_synced = damage.header is not None and damage.position + damage.header.length <= end
        else:
            is_synced = damage.position < self._promised
        return f"the log was synced up to position {self._promised}" if is_synced else None

    def _go_around(self, damage: Damage, time_ms: int) -> Replayed | None:
        """Replay a damaged batch by its header; restore or refuse other damage."""
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
        """Begin with states from elsewhere, because the snapshot is damaged."""
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
        """Apply an entry to the ranges; return the changed ranges."""
        return self.states.apply(replayed.entry, is_damaged=replayed.is_damaged)

    def _end_without_snapshot(self, position: int) -> None:
        """Treat an unfinished first group as a torn tail: the segment is empty then."""
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

    Raises LogCorruptionError for damage other than to a batch's body, and for a compacted segment,
    which lacks the history of its ranges.
    """
    if segment.generation or segment.is_cut:
        why = "was compacted" if segment.generation else "lost its end"
        reason = f"the segment behind it lost the snapshot of its ranges, and this one {why}"
        raise corruption(file.path, segment.base, reason)
    replay = SegmentReplay(file, segment)
    for _ in replay.entries():
        pass
    return replay.states
