"""The segment in which a log goes on: where it ends, what a crash tore, what is damaged.

The rules that separate a torn tail from damage are in opening.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sbp_core.errors import LogCorruptionError, LogWriteError
from sbp_core.failpoints import failpoint
from sbp_core.log.disk import DiskFile, translate_os_error
from sbp_core.log.segment import (
    Segment,
    corruption,
    file_size,
    read_segment,
    write_segment_header,
)
from sbp_core.log.segment_replay import SegmentReplay, StatesAtBase
from sbp_core.log.segment_rows import SegmentRows
from sbp_core.log.states.range_states import RecordSpan
from sbp_core.segment_format import SEGMENT_HEADER_BYTES


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
class LastSegment:
    """The segment in which the log goes on, and the `rows` of its batches.

    `replay` has read it to its end. Below `promised` nothing is torn: the log was synced up to
    there, or farther. If it `is_cut`, it ends before that and must not be touched.
    """

    file: DiskFile
    replay: SegmentReplay
    rows: SegmentRows
    entry_count: int
    promised: int
    torn_tail: TornTail | None

    @property
    def is_cut(self) -> bool:
        """Whether it lost bytes that were synced."""
        return self.replay.end < self.promised

    def repair(self) -> None:
        """Cut what a crash tore. Raises LogWriteError."""
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


def read_last_segment(
    file: DiskFile, base: int, states_at_base: StatesAtBase, promised: int
) -> LastSegment:
    """Read all that is in the last segment; change nothing. Raises LogError."""
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
        reason = "this segment was compacted, and the ones behind it are missing"
        raise corruption(file.path, segment.end, reason)
    replay = SegmentReplay(file, segment, states_at_base, promised)
    rows, entry_count = SegmentRows(base), 0
    for each in replay.entries():
        rows.add(each.entry, each.location, each.time_ms)
        entry_count += 1
    if replay.torn is not None and replay.end < base + segment.size:
        cut_bytes = base + segment.size - replay.end
        torn_tail = TornTail(file.path, replay.end, cut_bytes, replay.torn.reason)
    if replay.end < promised:
        torn_tail = None
    return LastSegment(file, replay, rows, entry_count, promised, torn_tail)
