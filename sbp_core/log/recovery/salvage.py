"""Reading one damaged segment to its end, and which records of each range were found."""

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
)
from sbp_core.log.states.replicated_entries import NUMBERED_KINDS
from sbp_core.log.states.staged_entries import decode_end, maybe_kept
from sbp_core.log.states.staged_states import StagedStates
from sbp_core.replication import Prefix
from sbp_core.segment_format import EntryKind

_OVERRULING_KINDS: Final = frozenset(
    {EntryKind.BATCH, EntryKind.TXN_END, EntryKind.SEAL, EntryKind.SETTLED}
)
"""They say themselves where a range goes on."""


class Coverage:
    """The offsets of every range that were found, as intervals [base_offset, end_offset)."""

    def __init__(self) -> None:
        self._found: dict[RangeKey, list[tuple[int, int]]] = {}
        self._staged = array("q")
        """Where intact batches were written first that were staged, in order."""

    def add(self, entry: Entry, location: Location) -> None:
        """Note an intact entry, in the order of the log. Raises LogCorruptionError."""
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
        """Return what is staged without those transactions of which a batch is not there."""
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
        """Note records. Those that follow each other take the memory of one."""
        found = self._found.setdefault(key, [])
        if found and found[-1][1] == base_offset:
            base_offset, _ = found.pop()
        found.append((base_offset, end_offset))

    def missing(self, key: RangeKey, start_offset: int, end_offset: int) -> Iterator[range]:
        """Yield what was not found of [start_offset, end_offset), in order."""
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
    """The replicated ranges of which entries are missing, and their prefix in front of these.

    The entries of a range add up to the prefix that the next snapshot has of it, unless some are
    missing. This is not so of a settled range in a segment that was rewritten: it does not count.
    """

    def __init__(self) -> None:
        self._gaps: dict[RangeKey, Prefix] = {}
        self._holes: dict[RangeKey, Prefix] = {}
        """The prefix of each range where it is unknown which entries follow; all may be there."""

    def add_hole(self, states: RangeStates) -> None:
        """Note that entries of any range may be missing from here on."""
        for logged in states:
            if logged.prefix is not None:
                self._holes.setdefault(logged.key, logged.prefix)

    def compare(self, states: RangeStates, ranges: Iterable[LoggedRange]) -> None:
        """Compare what was read with what the ranges were at this place."""
        for logged in ranges:
            if logged.prefix is not None:
                known = states.maybe_range(logged.key)
                found = (None if known is None else known.prefix) or Prefix()
                if found != logged.prefix:
                    self._gaps.setdefault(logged.key, self._holes.get(logged.key, found))
        self._holes.clear()

    def applied(self, states: RangeStates) -> Iterator[LoggedRange]:
        """Yield the ranges; those with gaps are not whole."""
        for logged in states:
            readable = self._gaps.get(logged.key) or self._holes.get(logged.key)
            if readable is None or not logged.is_unsettled:
                yield logged
            else:
                highest_seq = max(logged.highest_seq, readable.seq + 1)
                yield replace(logged, prefix=readable, highest_seq=highest_seq)


class SegmentSalvage(SegmentReplay):
    """Replays a segment whatever is damaged in it; what hides entries is a fault like others.

    `expected` are the states at its base, in case its snapshot is not whole. `gaps` takes in what
    is missing of replicated ranges. Afterwards `ranges_at_base` is what the snapshot holds, or
    should. `states` have only writers of which nothing can be missing: damage that hides entries
    makes all forgotten that appended before. Staged batches may have been published or dropped by
    an entry that is hidden.
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
        """Whether a rewrite of the segment would hold anything but its snapshot."""
        self.ranges_at_base = tuple(expected)
        self._expected = expected
        self._gaps = gaps

    def entries(self) -> Iterator[Replayed]:
        """Replay, and yield each entry behind the snapshot. Raises LogError if the disk fails."""
        for each in super().entries():
            self.has_records = self.has_records or self._is_kept(each)
            yield each
        if self.segment.generation > 0 or self.segment.is_cut:  # marks are left out, or lost
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
        if self.faults:  # they may hide a part of it
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
        if not self.faults:  # else it follows from these
            self._fault(position, reason)

    def _moved(self, replayed: Replayed) -> Sequence[LoggedRange]:
        """Move the ranges on; where entries are missing before this one, to what it says."""
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
        """Return the range as the entry of a batch, or of an end, has it."""
        records = RecordSpan.of(entry)
        key = (records.stream_id, records.range_index)
        known = self.states.maybe_range(key)
        if known is None:  # the entries about its earlier writers may be missing, too
            self.states.writers.forget_before(*key)
            known = LoggedRange(*key, records.base_offset, records.base_offset)
        is_seal = entry.kind in {EntryKind.SEAL, EntryKind.SETTLED}
        state = known.state.or_later(RangeState.SEALED if is_seal else RangeState.OPEN)
        next_offset = max(known.next_offset, records.end_offset)
        if entry.kind is EntryKind.SETTLED:
            next_offset = records.end_offset
        return {key: replace(known, next_offset=next_offset, state=state)}
