"""Merge small batches while their segment is rewritten, so that readers find large ones.

A run is a sequence of adjacent small batches of one range, written within MERGE_SPAN_MS. Batches of
other ranges may lie between them. The index tells the runs without a look at the segment. A merged
batch is written at the place of its first batch. The others are read ahead from the old file, and
left out when the copy comes to them. So only the batches of one merge are in memory, and the order
within a range stays.

The content of batches is opaque to the log. The `Merge` that it is given decides which batches
belong together. The others stay as they are, also if the merge fails.

A merged batch has the latest time of its parts. So a look-up by time never misses a record, and
retention removes none too early.

Staged batches stay, because the entry that published them names them. So do batches of replicated
ranges, because replicas mend each other with equal bytes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from sbp_core import limits
from sbp_core.errors import LogError
from sbp_core.log.bodies import read_bodies
from sbp_core.log.entry import COMMIT_BYTES, Entry
from sbp_core.log.index_file import ListedBatches, SegmentIndex
from sbp_core.log.segment import SegmentView
from sbp_core.log.segment_rows import Slot
from sbp_core.log.segment_writer import TimedEntry
from sbp_core.log.states.range_states import RangeKey
from sbp_core.segment_format import EntryKind
from sbp_core.wire.checksum import Buffer

_LOG: Final = logging.getLogger(__name__)

Merge = Callable[[Iterable[memoryview]], tuple[int, Buffer | None]]
"""Returns how many of the first batches belong together, and the merged batch; None: they stay."""

_Start = tuple[int, int, int]
"""Stream, range, and offset of the first record."""

MERGE_BYTES_MAX: Final = 32 * limits.KIB
"""Batches below this length, header included, are small."""
MERGE_SPAN_MS: Final = 1_000
"""Time within which merged batches were written. A look-up by time may begin that much earlier."""
_BATCHES_PER_PAUSE: Final = 8
_RUNS_TRIED_MAX: Final = 16
_TRIES_PER_RUN: Final = 3
"""How many runs of a segment are tried before a rewrite, and how many batches of each run."""
_WORTH_IT: Final = 2
"""A segment is rewritten to merge its batches if at most every second batch is left."""


@dataclass(frozen=True, slots=True)
class Runs:
    """The runs of a segment: the offset after the last record, by the start of the run.

    `is_worth_it`: the segment should be rewritten even if nothing in it is dead.
    """

    ends: Mapping[_Start, int]
    is_worth_it: bool = False


def find_runs(listed: ListedBatches) -> Runs:
    """Return the runs of the batches that a segment lists."""
    is_small = listed.is_own & listed.is_live & (listed.length < MERGE_BYTES_MAX)
    follows = np.zeros(len(is_small), np.bool_)
    follows[1:] = (
        is_small[1:]
        & is_small[:-1]
        & (listed.stream_id[1:] == listed.stream_id[:-1])
        & (listed.range_index[1:] == listed.range_index[:-1])
        & (listed.base_offset[1:] == listed.base_offset[:-1] + listed.count[:-1])
    )
    if not follows.any():
        return Runs({})
    ends: dict[_Start, int] = {}
    left_count = len(is_small)
    for first, end in _stretches(follows):
        for run in _within_span(listed.time_ms[first:end].tolist(), first):
            left_count -= len(run) - 1
            columns = (listed.stream_id, listed.range_index, listed.base_offset)
            stream_id, range_index, base_offset = (int(each[run[0]]) for each in columns)
            end_offset = int(listed.base_offset[run[-1]]) + int(listed.count[run[-1]])
            ends[stream_id, range_index, base_offset] = end_offset
    # A segment of mostly large batches would be copied for a few small ones.
    mean_bytes = int(listed.length.mean())
    is_chatty = mean_bytes < MERGE_BYTES_MAX
    return Runs(ends, is_chatty and left_count * _WORTH_IT <= len(is_small))


def _stretches(follows: npt.NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """Yield [first, end) of each stretch of rows that follow each other."""
    starts = np.append(np.flatnonzero(~follows), len(follows))
    for at in np.flatnonzero(np.diff(starts) > 1).tolist():
        yield int(starts[at]), int(starts[at + 1])


def _within_span(times_ms: Sequence[int], first: int) -> Iterator[range]:
    """Split a stretch that starts at row `first` by time; yield runs of at least two rows."""
    start, earliest, latest = 0, times_ms[0], times_ms[0]
    for at, time_ms in enumerate(times_ms):
        earliest, latest = min(earliest, time_ms), max(latest, time_ms)
        if latest - earliest > MERGE_SPAN_MS:
            if at - start > 1:
                yield range(first + start, first + at)
            start, earliest, latest = at, time_ms, time_ms
    if len(times_ms) - start > 1:
        yield range(first + start, first + len(times_ms))


class Merger:
    """Merges the batches of one segment, on one thread.

    The merger calls `pause` after every few batches: Python runs one thread at a time, and without
    pauses appends would often wait for some ms. An error of `pause` ends the merge.
    """

    def __init__(
        self,
        view: SegmentView,
        index: SegmentIndex,
        runs: Runs,
        merge: Merge,
        pause: Callable[[], object],
    ) -> None:
        self._view = view
        self._index = index
        self._ends = dict(runs.ends)
        self._merge = merge
        self._pause = pause
        self._has_failed = False
        self.merged_count = 0
        """Batches that became parts of larger ones."""

    def joins_any(self) -> bool:
        """Whether a sample of runs from all parts of the segment has batches to merge.

        Only the start of each run is tried, past a batch or two that stay alone.
        """
        step = -(-len(self._ends) // _RUNS_TRIED_MAX) or 1
        return any(self._joins(*run) for run in list(self._ends.items())[::step])

    def _joins(self, start: _Start, end_offset: int) -> bool:
        stream_id, range_index, offset = start
        for _ in range(_TRIES_PER_RUN):
            slots, merged = self._joined((stream_id, range_index), offset, end_offset)
            if merged is not None:
                return True
            if not slots or slots[-1].end_offset >= end_offset:
                return False
            offset = slots[-1].end_offset
        return False

    def merged(self, kept: Iterable[TimedEntry]) -> Iterator[TimedEntry]:
        """Yield the kept entries with runs merged. Raises errors of `kept` and `pause`."""
        done: dict[RangeKey, int] = {}
        for entry, time_ms in kept:
            key = (entry.stream_id, entry.range_index)
            if entry.kind is not EntryKind.BATCH:
                yield entry, time_ms
            elif entry.base_offset >= done.get(key, 0):
                merged = self._maybe_merged(key, entry.base_offset)
                if merged is not None:
                    done[key] = merged[0].base_offset + merged[0].count
                yield merged or (entry, time_ms)

    def _maybe_merged(self, key: RangeKey, base_offset: int) -> TimedEntry | None:
        """Return the merged batch that begins at an offset.

        None if the batch there stays as it is, or is in no run.
        """
        end_offset = self._ends.pop((*key, base_offset), None)
        if end_offset is None:
            return None
        slots, merged = self._joined(key, base_offset, end_offset)
        if slots and slots[-1].end_offset < end_offset:
            self._ends[*key, slots[-1].end_offset] = end_offset
        if merged is not None:
            self.merged_count += len(slots)
        return merged

    def _joined(
        self, key: RangeKey, base_offset: int, end_offset: int
    ) -> tuple[list[Slot], TimedEntry | None]:
        """Return the first batches of a run that belong together, and the merged batch.

        The merged batch is None if they stay as they are. A merged batch is never larger than the
        batches that it replaces, so that the rewritten segment fits its positions.
        """
        slots: list[Slot] = []
        try:
            count, body = self._merge(self._bodies(key, base_offset, end_offset, slots))
        except LogError:
            raise
        except Exception:  # noqa: BLE001 - the log is cleaned whatever its batches are
            if not self._has_failed:
                _LOG.exception(
                    "batches not merged stream=%d range=%d offset=%d: they and others that fail so"
                    " stay as they are",
                    *(*key, base_offset),
                )
            self._has_failed = True
            return slots, None
        del slots[count:]
        if body is None or not slots:
            return slots, None
        total = sum(each.count for each in slots)
        entry = Entry(EntryKind.BATCH, *key, base_offset, total, body)
        # The time of the merged batch may need a COMMIT entry before it and one behind it.
        if entry.length + 2 * COMMIT_BYTES > sum(each.location.length for each in slots):
            return slots, None
        return slots, (entry, max(each.time_ms for each in slots))

    def _bodies(
        self, key: RangeKey, offset: int, end_offset: int, slots: list[Slot]
    ) -> Iterator[memoryview]:
        """Yield the bodies of a run up to a damaged one; append their slots to `slots`."""
        rows = self._index.maybe_rows(key)
        for slot in () if rows is None else rows.slots_from(offset, self._view):
            if slot.base_offset >= end_offset:
                return
            found = read_bodies(key, [slot])
            if found.error is not None:
                return
            slots.append(slot)
            if len(slots) % _BATCHES_PER_PAUSE == 0:
                self._pause()
            yield found.data[0]
