"""The segment that groups are appended to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

from sbp_core.errors import LogError
from sbp_core.failpoints import failpoint
from sbp_core.limits import ENTRY_BYTES_MAX, GROUP_COMMIT_BYTES_MAX
from sbp_core.log.disk import Disk, DiskFile
from sbp_core.log.entry import (
    COMMIT_BYTES,
    SNAPSHOT_KINDS,
    Commit,
    Entry,
    EntryKind,
    Location,
    encode_entry,
)
from sbp_core.log.segment import Segment, SegmentView, create_segment
from sbp_core.log.segment_file import SEGMENT_HEADER_BYTES, segment_path
from sbp_core.wire.checksum import Octets

_OWN_KINDS: Final = (EntryKind.COMMIT, *SNAPSHOT_KINDS)


class ActiveSegment:
    """Positions [base, end) of the log, synced up to `synced_upto`.

    `proven_upto` is up to where that can be told from what is on the disk. After an OSError nobody
    knows what is there: nothing more may be written.
    """

    def __init__(self, file: DiskFile, base: int, *, end: int, proven_upto: int) -> None:
        self.base = base
        self.end = end
        self.synced_upto = end
        self._proven_upto = proven_upto
        self._file = file

    @classmethod
    def create(cls, disk: Disk, directory: Path, base: int) -> Self:
        """Create the segment at `base`, durably and without any group. Raises OSError."""
        file = create_segment(disk, directory, base)
        return cls(file, base, end=base + SEGMENT_HEADER_BYTES, proven_upto=base)

    @classmethod
    def open(cls, disk: Disk, directory: Path, base: int, *, end: int, proven_upto: int) -> Self:
        """Open the segment at `base`, which recovery left synced. Raises OSError."""
        file = disk.open(segment_path(directory, base), is_writable=True)
        return cls(file, base, end=end, proven_upto=proven_upto)

    @property
    def path(self) -> Path:
        """Where it is."""
        return self._file.path

    @property
    def size(self) -> int:
        """Octets that are in it."""
        return self.end - self.base

    @property
    def is_proven(self) -> bool:
        """Whether nothing but an empty group stands behind what is proven to be synced."""
        return self._proven_upto >= self.end - COMMIT_BYTES

    def write(self, entries: Sequence[Entry], time_ms: int) -> tuple[Location, ...]:
        """Append a group; return where its entries are. Raises OSError."""
        start = self.end
        commit = Commit(self.synced_upto, time_ms)
        buffers: list[Octets] = encode_entry(commit.to_entry(), start)
        locations = []
        end = start + COMMIT_BYTES
        for entry in entries:
            buffers += encode_entry(entry, end)
            locations.append(Location(end, entry.length))
            end += entry.length
        failpoint("log.before_write")
        self._file.pwritev(buffers, start - self.base)
        self._proven_upto = commit.durable_upto
        self.end = end
        return tuple(locations)

    def sync(self) -> None:
        """Make all groups durable that are written by now. Raises OSError.

        May run in another thread than `write` at the same time.
        """
        end = self.end
        if self.synced_upto < end:
            failpoint("log.before_sync")
            self._file.fdatasync()
            failpoint("log.after_sync")
            self.synced_upto = end

    def view(self, disk: Disk) -> SegmentView:
        """Open it for reading. Raises OSError."""
        file = disk.open(self.path, is_writable=False)
        return SegmentView(Segment(self.base, self.base, 0), file)

    def to_full(self) -> Segment:
        """Return what it is once nothing more is written to it."""
        return Segment(self.base, self.end, self.size)

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._file.close()


def check_group(entries: Sequence[Entry]) -> int:
    """Return the octets that a group takes. Raises LogError if it is over a limit."""
    total = 0
    for entry in entries:
        assert entry.kind not in _OWN_KINDS, "the log writes its own"
        if entry.length > ENTRY_BYTES_MAX:
            raise LogError(
                f"an entry of {entry.length} octets is over the limit of {ENTRY_BYTES_MAX}"
            )
        total += entry.length
    if total > GROUP_COMMIT_BYTES_MAX:
        raise LogError(
            f"a group of {total} octets is over the limit of {GROUP_COMMIT_BYTES_MAX}: split it"
        )
    return COMMIT_BYTES + total
