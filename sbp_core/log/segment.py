"""Create, open and read segment files. segment_format.py has their format."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from sbp_core.errors import LogCorruptionError, LogError
from sbp_core.failpoints import failpoint
from sbp_core.log.disk import Disk, DiskFile, translate_os_error
from sbp_core.segment_format import (
    SEGMENT_HEADER_BYTES,
    SegmentHeader,
    decode_segment_header,
    encode_segment_header,
    maybe_segment_base,
    segment_path,
)
from sbp_core.wire.checksum import Buffer


@dataclass(frozen=True, slots=True)
class Segment:
    """One file of the log, for the positions [base, end), of `size` bytes."""

    base: int
    end: int
    size: int
    generation: int = 0

    @property
    def is_cut(self) -> bool:
        """Whether the file is known to have lost its end."""
        return self.generation == 0 and 0 < self.size < self.end - self.base


def segment_bases(disk: Disk, directory: Path, start: int = 0) -> list[int]:
    """Return the bases of the segments from position `start` on, in order. Raises LogError."""
    with translate_os_error(LogError, "listing", directory):
        names = disk.list_names(directory)
    bases = (maybe_segment_base(name) for name in names)
    return sorted(base for base in bases if base is not None and base >= start)


def open_segment(
    disk: Disk, directory: Path, base: int, *, is_writable: bool = False
) -> closing[DiskFile]:
    """Open the file of the segment at `base` for a `with` block. Raises LogError."""
    path = segment_path(directory, base)
    with translate_os_error(LogError, "opening", path):
        return closing(disk.open(path, is_writable=is_writable))


def file_size(file: DiskFile) -> int:
    """Return the file's length. Raises LogError."""
    with translate_os_error(LogError, "reading the size of", file.path):
        return file.size()


def read_segment(file: DiskFile, base: int) -> Segment:
    """Return the segment in `file`, which is named after `base`. Raises LogError."""
    with translate_os_error(LogError, "reading", file.path):
        data, size = file.pread(SEGMENT_HEADER_BYTES, 0), file.size()
    with naming_damage(file.path, base):
        header = decode_segment_header(data, base)
        if header.end and header.end < base + size:
            raise LogCorruptionError(f"the file has grown beyond its end at {header.end}")
    return Segment(base, header.end or base + size, size, header.generation)


def create_segment(disk: Disk, directory: Path, base: int) -> DiskFile:
    """Create the segment that starts at `base`; it is durable, name included. Raises OSError."""
    failpoint("log.before_create")
    file = disk.create(segment_path(directory, base))
    failpoint("log.after_create")
    write_segment_header(file, base)
    failpoint("log.before_directory_sync")
    disk.fsync_dir(directory)
    failpoint("log.after_directory_sync")
    return file


def write_segment_header(file: DiskFile, base: int, end: int = 0) -> None:
    """Make `file`, which is not longer than a header, an empty segment. Raises OSError.

    With `end` the file may also be a segment that lost its end. The next segment starts at `end`.
    """
    file.pwritev([encode_segment_header(SegmentHeader(base, end=end))], 0)
    file.fsync()


@dataclass(frozen=True, slots=True)
class SegmentView:
    """An open segment: the same bytes, also after its file was replaced or removed."""

    segment: Segment
    file: DiskFile

    def read(self, position: int, length: int) -> bytes:
        """Return `length` bytes from log position `position`; not verified.

        Raises LogError when the disk fails, LogCorruptionError when the file ends before.
        """
        with translate_os_error(LogError, "reading", self.file.path):
            data = self.file.pread(length, position - self.segment.base)
        if len(data) < length:
            raise corruption(
                self.file.path, position + len(data), "the file is shorter than it was"
            )
        return data

    def maybe_read_cached(self, position: int, length: int) -> Buffer | None:
        """Return what `read` returns; None if that would wait for the disk."""
        return self.file.maybe_pread_cached(length, position - self.segment.base)


class SegmentViews:
    """A cache of at most `open_max` open segments; the least recently used is evicted first.

    Safe in several threads. The file of an evicted view is closed when its last reader is done.
    """

    def __init__(self, disk: Disk, directory: Path, open_max: int) -> None:
        self._disk = disk
        self._directory = directory
        self._open_max = open_max
        self._views: OrderedDict[Segment, SegmentView] = OrderedDict()
        self._pinned: dict[Segment, SegmentView] = {}
        self._lock = threading.Lock()

    def view(self, segment: Segment) -> SegmentView:
        """Return a view of `segment`. Raises LogError, also if the file was replaced."""
        with self._lock:
            if segment in self._pinned:
                return self._pinned[segment]
            view = self._views.get(segment)
            if view is not None:
                self._views.move_to_end(segment)
                return view
            path = segment_path(self._directory, segment.base)
            with translate_os_error(LogError, "opening", path):
                file = self._disk.open(path, is_writable=False)
            found = read_segment(file, segment.base)
            if found != segment:
                raise corruption(path, segment.base, f"this was {segment}, and is {found}")
            view = self._views[segment] = SegmentView(segment, file)
            if len(self._views) > self._open_max:
                self._views.popitem(last=False)
            return view

    @contextmanager
    def pinned(self, segment: Segment) -> Iterator[SegmentView]:
        """Keep `segment` in the cache inside the block, even if its file goes. Raises LogError."""
        view = self.view(segment)
        with self._lock:
            self._pinned[segment] = view
        try:
            yield view
        finally:
            with self._lock:
                del self._pinned[segment]

    def drop(self, segment: Segment) -> None:
        """Forget the view of a removed segment."""
        with self._lock:
            self._views.pop(segment, None)

    def clear(self) -> None:
        """Forget all views."""
        with self._lock:
            self._views.clear()


def corruption(path: Path, position: int, reason: str) -> LogCorruptionError:
    """Return the error for damage that must not be truncated, with the remedies."""
    directory = quote(str(path.parent))
    return LogCorruptionError(
        f"{path} is damaged at log position {position}: {reason}. Nothing was changed. Restore the"
        " file from a backup; or stop the server, look at what is lost with `sbp log check"
        f" {directory}`, and go on without that: `sbp log repair {directory}`"
    )


@contextmanager
def naming_damage(path: Path, position: int) -> Iterator[None]:
    """Add the file and the log position to a LogCorruptionError of the block."""
    try:
        yield
    except LogCorruptionError as error:
        raise corruption(path, position, str(error)) from error
