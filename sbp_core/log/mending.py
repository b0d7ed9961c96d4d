"""Damage in the segments of a log: found by reading them, and mended in place.

The header of an entry has the checksum of its body, and a checksum of its own. So if only the body
is damaged, it can be proven that another body is the one that was there: by checksum and length. It
is written in the same place. The source needs no trust, and no other byte of the log changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from sbp_core.errors import LogCorruptionError, LogError, LogWriteError
from sbp_core.log.disk import Disk, translate_os_error
from sbp_core.log.entry import SNAPSHOT_KINDS, Entry, encode_entry, entry_of
from sbp_core.log.segment import SegmentView, file_size, open_segment
from sbp_core.log.segment_scan import Damage, SegmentScanner
from sbp_core.log.states.range_states import RangeKey
from sbp_core.log.states.replicated_entries import NUMBERED_KINDS
from sbp_core.log.states.state_snapshot import SnapshotReader
from sbp_core.segment_format import ENTRY_HEADER_BYTES, EntryHeader, EntryKind, decode_entry_header
from sbp_core.wire.checksum import Buffer


@dataclass(frozen=True, slots=True)
class DamagedEntry:
    """An entry of the segment at `base` that is not as it was written.

    Without `header` nothing is known of it. `seq` is its number in a replicated range, 0 if that is
    not known.
    """

    path: Path
    base: int
    position: int
    reason: str
    header: EntryHeader | None = None
    seq: int = 0

    @property
    def key(self) -> RangeKey | None:
        """Its range."""
        return None if self.header is None else (self.header.stream_id, self.header.range_index)


class SegmentCheck:
    """Reads a segment piece by piece, and verifies the checksums. It belongs to one thread.

    It stops at the position `end`: behind that may be a group that is being written.
    """

    def __init__(self, view: SegmentView, end: int) -> None:
        self._view = view
        size = view.segment.size or min(file_size(view.file), end - view.segment.base)
        self._scanner = SegmentScanner(view.file, view.segment.base, size)
        self._items = self._scanner.entries()
        self.is_done = False
        """Whether all of it was read."""
        self._seqs: dict[RangeKey, int] = {}
        """The number of the last entry of each replicated range, as far as it is known."""
        # A rewritten segment lacks entries of settled ranges, so they cannot be counted in it.
        self._snapshot = None if view.segment.generation else SnapshotReader()

    def read(self, bytes_max: int) -> Iterator[DamagedEntry]:
        """Yield what is damaged in the next bytes. Raises LogError when the disk fails."""
        end = self._scanner.position + bytes_max
        while self._scanner.position < end:
            item = next(self._items, None)
            if item is None:
                self.is_done = True
                return
            if isinstance(item, Damage):
                self._snapshot = None
                place = (self._view.file.path, self._view.segment.base, item.position)
                yield DamagedEntry(*place, item.reason, item.header, self._number(item.header))
            elif item[0].kind in SNAPSHOT_KINDS:
                self._add_snapshot(item[0])
            else:
                self._number(item[0])

    def _add_snapshot(self, entry: Entry) -> None:
        """Take the numbers with which ranges begin in the segment from its snapshot."""
        if self._snapshot is None:
            return
        try:
            is_complete = self._snapshot.add(entry)
        except LogCorruptionError:  # without numbers, batches can still be mended by their offsets
            self._snapshot = None
            return
        if is_complete:
            ranges = self._snapshot.ranges
            self._seqs = {
                each.key: each.seq for each in ranges if each.prefix is not None and each.is_whole
            }

    def _number(self, entry: Entry | EntryHeader | None) -> int:
        """Return the number of the next entry, 0 if it is not known."""
        if entry is None:  # it may have been of any range
            self._seqs.clear()
            return 0
        key = (entry.stream_id, entry.range_index)
        if entry.kind is EntryKind.RANGE_CREATED:
            self._seqs.setdefault(key, 0)
        elif entry.kind is EntryKind.COPY_BEGUN:
            self._seqs.pop(key, None)
        elif entry.kind in NUMBERED_KINDS and key in self._seqs:
            self._seqs[key] += 1
            return self._seqs[key]
        return 0


def mend(disk: Disk, directory: Path, damaged: DamagedEntry, *body: Buffer) -> None:
    """Write a body in its place, durably, if it is the one that was there.

    Raises LogCorruptionError if it is not, LogWriteError if the disk fails. Nothing is done if the
    segment was removed or rewritten in between.
    """
    header = damaged.header
    assert header is not None
    if sum(map(len, body)) != header.length - ENTRY_HEADER_BYTES:
        raise LogCorruptionError("it has another length than the damaged entry")
    header.check_body(*body)
    entry = replace(entry_of(header, body[-1]), prefix=b"".join(body[:-1]))
    offset = damaged.position - damaged.base
    with open_segment(disk, directory, damaged.base, is_writable=True) as file:
        with translate_os_error(LogError, "reading", file.path):
            present = file.pread(ENTRY_HEADER_BYTES, offset)
        try:
            if decode_entry_header(present, damaged.position) != header:
                return
        except LogError:
            return
        with translate_os_error(LogWriteError, "mending", file.path):
            file.pwritev(encode_entry(entry, damaged.position), offset)
            file.fdatasync()
