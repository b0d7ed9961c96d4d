"""Replay a damaged segment to its end, and track which records of each range were found."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from sbp_core.errors import LogCorruptionError
from sbp_core.log.disk import DiskFile
from sbp_core.log.entry import Entry, Location
from sbp_core.log.segment import Segment
from sbp_core.log.segment_replay import Replayed, SegmentReplay
from sbp_core.log.segment_scan import Damage
from sbp_core.log.states.range_states import (
    LoggedRange,
    RangeKey,
    RangeState,
    RangeStates,
    RecordSpan,
    prefix_of,
)
from sbp_core.log.states.replicated_entries import NUMBERED_KINDS
from sbp_core.log.states.staged_entries import decode_end, maybe_kept
from sbp_core.log.states.staged_states import StagedStates
from sbp_core.replication import Prefix
from sbp_core.segment_format import EntryKind

_OVERRULING_KINDS: Final = frozenset(
    {EntryKind.BATCH, EntryKind.TXN_END, EntryKind.SEAL, EntryKind.SETTLED}
)
"""Kinds that say themselves where a range goes on."""


class Coverage:
    """The found offsets of every range, as intervals [base_offset, end_offset)."""

    def __init__(self) -> None:
        self._found: dict[RangeKey, list[tuple[int, int]]] = {}
        self._staged = array("q")
        """Positions of the first write of intact staged batches, in order."""

    def add(self, entry: Entry, location: Location) -> None:
        """Add an intact entry, in the order of the log. Raises LogCorruptionError."""
        key = (entry.stream_id, entry.range_index)
        if entry.kind is EntryKind.BATCH:
            self._cover(key, entry.base_offset, entry.base_offset + entry.count)
        elif entry.kind is EntryKind.STAGED:
            self._staged.append(location.position if entry.base_offset < 0 else entry.base_offset)
        elif entry.kind is EntryKind.TXN_END:
            offset, batches = entry.base_offset, decode_end(entry).batches
            for position, count in zip(batches.positions, batches.record_counts, strict=True):
                if self._has_staged(position):
                    self._cover(key, offset, offset + count)
                offset += count

    def whole(self, staged: StagedStates) -> StagedStates:
        """Return `staged` without the transactions that lack a batch."""
        whole = StagedStates()
        for staging in staged.stagings():
            if all(map(self._has_staged, staging.batches.positions)):
                whole.restore(staging)
        for stream_id in staged.stream_ids():
            for end in staged.ends(stream_id):
                whole.restore_end(stream_id, end)
        return whole

    def _has_staged(self, position: int) -> bool:
        at = bisect_left(self._staged, position)
        return at < len(self._staged) and self._staged[at] == position

    def _cover(self, key: RangeKey, base_offset: int, end_offset: int) -> None:
        """Add records. Adjacent intervals are joined, to bound the memory."""
        found = self._found.setdefault(key, [])
        if found and found[-1][1] == base_offset:
            base_offset, _ = found.pop()
        found.append((base_offset, end_offset))

    def missing(self, key: RangeKey, start_offset: int, end_offset: int) -> Iterator[range]:
        """Yield the gaps in [start_offset, end_offset), in order."""
        at = start_offset
        for found_start, found_end in sorted(self._found.get(key, [])):
            if found_start >= end_offset:
                break
            if found_start > at:
                yield range(at, found_start)
            at = max(at, found_end)
        if at < end_offset:
            yield range(at, end_offset)


class PrefixGaps:
    """The replicated ranges with missing entries, and their prefix before the gap.

    The entries of a range add up to its prefix in the next snapshot, unless some are missing.
    Settled ranges do not count, because a rewritten segment may lack their entries.
    """

    def __init__(self) -> None:
        self._gaps: dict[RangeKey, Prefix] = {}
        self._holes: dict[RangeKey, Prefix] = {}
        """The prefix of each range at damage that may hide entries of any range, or none."""

    def add_hole(self, states: RangeStates) -> None:
        """Note damage that may hide entries of any range."""
        for logged in states:
            if logged.prefix is not None:
                self._holes.setdefault(logged.key, logged.prefix)

    def compare(self, states: RangeStates, ranges: Iterable[LoggedRange]) -> None:
        """Compare the replayed states with the true `ranges` at the same position."""
        for logged in ranges:
            if logged.prefix is not None:
                found = prefix_of(states.maybe_range(logged.key))
                if found != logged.prefix:
                    self._gaps.setdefault(logged.key, self._holes.get(logged.key, found))
        self._holes.clear()

    def applied(self, states: RangeStates) -> Iterator[LoggedRange]:
        """Yield the ranges; a range with a gap is not whole."""
        for logged in states:
            readable = self._gaps.get(logged.key) or self._holes.get(logged.key)
            if readable is None or not logged.is_unsettled:
                yield logged
            else:
                highest_seq = max(logged.highest_seq, readable.seq + 1)
                yield replace(logged, prefix=readable, highest_seq=highest_seq)


class SegmentSalvage(SegmentReplay):
    """Replays a segment whatever is damaged in it; damage that hides entries is a fault, too.

    `expected` are the states at its base, in case the snapshot is damaged. `gaps` collects the gaps
    of replicated ranges. Afterwards `ranges_at_base` are the ranges that the snapshot has, or
    should have. `states` have only writers without a lost batch: damage that hides entries makes
    all earlier writers unknown. Staged batches may have been published or dropped by a hidden
    entry.
    """

    def __init__(
        self,
        file: DiskFile,
        segment: Segment,
        expected: RangeStates,
        gaps: PrefixGaps,
        promised: int | None,
    ) -> None:
        super().__init__(file, segment, self._expected_with, promised)
        self.has_records = False
        """Whether a rewrite of the segment would have entries behind its snapshot."""
        self.ranges_at_base = tuple(expected)
        self._expected = expected
        self._gaps = gaps

    def entries(self) -> Iterator[Replayed]:
        """Replay, and yield each entry after the snapshot. Raises LogError if the disk fails."""
        for each in super().entries():
            self.has_records = self.has_records or self._is_kept(each)
            yield each
        if self.segment.generation > 0 or self.segment.is_cut:  # it lacks marks of writers
            self.states.forget_writers()

    def _is_kept(self, replayed: Replayed) -> bool:
        entry, location, _, is_damaged = replayed
        logged = self.states.maybe_range((entry.stream_id, entry.range_index))
        is_unsettled = logged is not None and logged.is_unsettled and entry.kind in NUMBERED_KINDS
        return not is_damaged and maybe_kept(entry, location, is_unsettled=is_unsettled) is not None

    def _expected_with(self, known: RangeStates | None) -> RangeStates:
        if known is None:
            return self._expected
        return RangeStates(self._expected, known.writers, known.staged)

    def _take_snapshot(self, states: RangeStates) -> None:
        self._gaps.compare(self._expected, states)
        if self.faults:  # they may hide a part of the snapshot
            states = RangeStates(states, self.states.writers, self.states.staged)
            states.forget_writers()
        self.ranges_at_base = tuple(states)
        self._begin(states)

    def _refuse(self, damage: Damage) -> None:
        self._fault(damage.position, damage.reason)
        if not self._is_begun:
            self._begin_at_base()
        self.states.forget_writers()
        self._gaps.add_hole(self.states)

    def _contradict(self, position: int, reason: str) -> None:
        if not self.faults:  # else the contradiction follows from a fault that was noted
            self._fault(position, reason)

    def _moved(self, replayed: Replayed) -> Sequence[LoggedRange]:
        """Apply an entry; if entries before it are missing, believe what the entry says."""
        entry = replayed.entry
        try:
            changed = self.states.after([entry], is_damaged=replayed.is_damaged)
        except LogCorruptionError as error:
            if self.segment.generation == 0:
                self._contradict(replayed.location.position, str(error))
            changed = self._overruled(entry) if entry.kind in _OVERRULING_KINDS else {}
        if entry.kind is EntryKind.SEAL:
            changed = self._overruled(entry)
        self.states.update(changed)
        return list(changed.values())

    def _overruled(self, entry: Entry) -> dict[RangeKey, LoggedRange]:
        """Return the range as an entry in _OVERRULING_KINDS describes it."""
        records = RecordSpan.of(entry)
        key = (records.stream_id, records.range_index)
        known = self.states.maybe_range(key)
        if known is None:  # entries about its earlier writers may be missing, too
            self.states.writers.forget_before(*key)
            known = LoggedRange(*key, records.base_offset, records.base_offset)
        is_seal = entry.kind in {EntryKind.SEAL, EntryKind.SETTLED}
        state = known.state.or_later(RangeState.SEALED if is_seal else RangeState.OPEN)
        next_offset = max(known.next_offset, records.end_offset)
        if entry.kind is EntryKind.SETTLED:
            next_offset = records.end_offset
        return {key: replace(known, next_offset=next_offset, state=state)}
