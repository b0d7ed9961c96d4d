"""Find damaged entries in segments, and mend them in place.

The header of an entry has a checksum of its own, and the checksum of the body. If only the body is
damaged, its checksum and length prove that the body from another replica is the right one. The body
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
    """A damaged entry of the segment at `base`.

    Without `header` nothing is known about the entry. `seq` is its number in a replicated range, 0
    if unknown.
    """

    path: Path
    base: int
    position: int
    reason: str
    header: EntryHeader | None = None
    seq: int = 0

    @property
    def key(self) -> RangeKey | None:
        """Key of the entry's range, None if unknown."""
        return None if self.header is None else (self.header.stream_id, self.header.range_index)


class SegmentCheck:
    """Reads a segment piece by piece, and verifies all checksums, on one thread.

    The check stops at position `end`, because a group may be written behind it at this moment.
    """

    def __init__(self, view: SegmentView, end: int) -> None:
        self._view = view
        size = view.segment.size or min(file_size(view.file), end - view.segment.base)
        self._scanner = SegmentScanner(view.file, view.segment.base, size)
        self._items = self._scanner.entries()
        self.is_done = False
        """Whether the whole segment was read."""
        self._seqs: dict[RangeKey, int] = {}
        """The number of the last entry of each replicated range, if known."""
        # A rewritten segment lacks entries of settled ranges, so they cannot be counted in it.
        self._snapshot = None if view.segment.generation else SnapshotReader()

    def read(self, bytes_max: int) -> Iterator[DamagedEntry]:
        """Yield the damaged entries of the next bytes. Raises LogError when the disk fails."""
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
        """Count the next entry in its range; return its number, 0 if unknown."""
        if entry is None:  # the lost entry may belong to any range
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
    """Write `body` in place of a damaged one, durably.

    Raises LogCorruptionError if length or checksum differ from the header, LogWriteError if the
    disk fails. Does nothing if the segment was removed or rewritten in between.
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
            # A rewrite moves entries: other bytes here belong to another entry.
            if decode_entry_header(present, damaged.position) != header:
                return
        except LogError:
            return
        with translate_os_error(LogWriteError, "mending", file.path):
            file.pwritev(encode_entry(entry, damaged.position), offset)
            file.fdatasync()
