"""What happens when a log is opened: read everything, cut what a crash tore, refuse what rotted.

Octets that were written but not yet synced reach the disk in any order, or not at all, so a damaged
entry may stand before intact ones after a mere crash. What tells rot from a torn tail is
`durable_upto`, which every group commit carries: what lies below the highest one found was synced.

* Damage below it, in any segment but the last, or a hole between segments: LogCorruptionError.
  Nothing is changed.
* Damage at or above it: never acknowledged (or the very last group before an unclean end). The log
  is cut there, and goes on in a new segment, away from blocks that may have failed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from sbp_core.errors import LogCorruptionError, LogError, LogWriteError
from sbp_core.limits import LOG_SCAN_BYTES
from sbp_core.log.disk import Disk, DiskFile, translate_os_error
from sbp_core.log.entry import (
    COMMIT_BYTES,
    COMMIT_MARKER,
    ENTRY_HEADER_BYTES,
    ENTRY_PREFIX_BYTES,
    Entry,
    EntryKind,
    Location,
    decode_durable_upto,
    decode_entry,
    decode_entry_length,
)
from sbp_core.log.segment import (
    SEGMENT_HEADER_BYTES,
    check_segment_header,
    create_segment,
    maybe_segment_base,
    segment_path,
    write_segment_header,
)

OnEntry = Callable[[Entry, Location], None]


@dataclass(frozen=True, slots=True)
class TornTail:
    """What was cut: `cut_bytes` octets of `path`, from log position `position` on, and why."""

    path: Path
    position: int
    cut_bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What was found: segments by base position, entries (COMMIT not counted), the log's end.

    `durable_upto` is the highest position that a group commit proves to have been synced.
    """

    segment_bases: tuple[int, ...]
    entry_count: int
    end_position: int
    durable_upto: int
    torn_tail: TornTail | None


def corruption(path: Path, position: int, reason: str) -> LogCorruptionError:
    """Return the error for damage that must not be cut."""
    return LogCorruptionError(
        f"{path} is damaged at log position {position}: {reason}. Nothing was changed. Restore the "
        f"file from a replica or a backup"
    )


@contextmanager
def naming_damage(path: Path, position: int) -> Iterator[None]:
    """Raise damage that the body finds in octets as damage of `path` at log position `position`."""
    try:
        yield
    except LogCorruptionError as error:
        raise corruption(path, position, str(error)) from error


class SegmentScanner:
    """Reads the entries of one segment in bounded memory.

    After `run`, `position` is where it ended and `damage` says what ended it, None at the end of
    the file; `durable_upto` is the highest one seen, and COMMIT entries are not counted.
    """

    def __init__(self, file: DiskFile, base: int, size: int) -> None:
        self.position = base + SEGMENT_HEADER_BYTES
        self.entry_count = 0
        self.durable_upto = 0
        self.damage: str | None = None
        self._file = file
        self._base = base
        self._end = base + size
        self._window = memoryview(b"")
        self._window_position = self.position

    def run(self, on_entry: OnEntry) -> None:
        """Tell `on_entry` of each intact entry up to the first damaged one, without COMMIT."""
        while self.position < self._end:
            try:
                entry = self._decode()
            except LogCorruptionError as error:
                self.damage = str(error)
                return
            location = Location(self.position, entry.length)
            if entry.kind is not EntryKind.COMMIT:
                on_entry(entry, location)
                self.entry_count += 1
            self.position = location.end

    def _decode(self) -> Entry:
        length = decode_entry_length(self._view(ENTRY_PREFIX_BYTES))
        if self.position + length > self._end:
            raise LogCorruptionError(
                f"an entry of {length} octets runs beyond the end of the file, "
                f"{self._end - self.position} octets are left"
            )
        entry = decode_entry(self._view(length), self.position)
        if entry.kind is EntryKind.COMMIT:
            self.durable_upto = decode_durable_upto(entry, self.position)
        return entry

    def _view(self, length: int) -> memoryview:
        """Return the next `length` octets, fewer at the end of the file."""
        start = self.position - self._window_position
        if start + length > len(self._window):
            self._window = memoryview(
                _pread(self._file, max(length, LOG_SCAN_BYTES), self.position - self._base)
            )
            self._window_position, start = self.position, 0
        return self._window[start : start + length]


def maybe_find_proof(file: DiskFile, base: int, position: int) -> int | None:
    """Return where, after `position`, a COMMIT entry proves that `position` was synced.

    The damage may hide where entries start, so COMMIT entries are found by their marker.
    """
    offset = position - base
    while True:
        data = _pread(file, LOG_SCAN_BYTES, offset)
        hit = data.find(COMMIT_MARKER)
        while hit >= 0:
            start = hit - ENTRY_HEADER_BYTES
            candidate = base + offset + start
            if start >= 0 and _proves(data[start : start + COMMIT_BYTES], candidate, position):
                return candidate
            hit = data.find(COMMIT_MARKER, hit + len(COMMIT_MARKER))
        if len(data) < LOG_SCAN_BYTES:
            return None
        offset += len(data) - (COMMIT_BYTES - 1)


def _proves(data: bytes, candidate: int, position: int) -> bool:
    try:
        entry = decode_entry(memoryview(data), candidate)
        return entry.kind is EntryKind.COMMIT and decode_durable_upto(entry, candidate) > position
    except LogError:
        return False


def recover(disk: Disk, directory: Path, on_entry: OnEntry) -> RecoveryReport:
    """Read the log in `directory`, tell `on_entry` of each entry, and leave it ready to append.

    Raises LogCorruptionError for damage that no crash explains, LogError for what cannot be read,
    and LogWriteError if the repair fails.
    """
    bases = _list_segments(disk, directory)
    if not bases:
        _create(disk, directory, 0)
        return RecoveryReport((0,), 0, SEGMENT_HEADER_BYTES, 0, None)
    _check_sequence(disk, directory, bases)
    entry_count = durable_upto = 0
    for base in bases[:-1]:
        scanner = _recover_full_segment(disk, segment_path(directory, base), base, on_entry)
        entry_count += scanner.entry_count
        durable_upto = max(durable_upto, scanner.durable_upto)
    scanner, torn_tail = _recover_last_segment(disk, directory, bases[-1], on_entry)
    end = scanner.position
    if torn_tail is not None and torn_tail.position > bases[-1]:
        _create(disk, directory, end)
        bases.append(end)
        end += SEGMENT_HEADER_BYTES
    return RecoveryReport(
        segment_bases=tuple(bases),
        entry_count=entry_count + scanner.entry_count,
        end_position=end,
        durable_upto=max(durable_upto, scanner.durable_upto),
        torn_tail=torn_tail,
    )


def _list_segments(disk: Disk, directory: Path) -> list[int]:
    with translate_os_error(LogError, "listing", directory):
        names = disk.list_names(directory)
    return sorted(base for name in names if (base := maybe_segment_base(name)) is not None)


def _check_sequence(disk: Disk, directory: Path, bases: list[int]) -> None:
    expected = 0
    for base in bases:
        path = segment_path(directory, base)
        if base != expected:
            raise corruption(
                path,
                min(base, expected),
                f"this segment starts at position {base}, the ones before it end at {expected}: "
                f"a file is missing, was cut short or has grown",
            )
        if base != bases[-1]:
            with _open(disk, path, is_writable=False) as file:
                expected = base + _size(file)


def _recover_full_segment(disk: Disk, path: Path, base: int, on_entry: OnEntry) -> SegmentScanner:
    """Read a segment that was synced to its end before the next one was begun."""
    with _open(disk, path, is_writable=False) as file:
        header = _pread(file, SEGMENT_HEADER_BYTES, 0)
        with naming_damage(path, base):
            check_segment_header(header, base)
        scanner = SegmentScanner(file, base, _size(file))
        scanner.run(on_entry)
        if scanner.damage is not None:
            raise corruption(path, scanner.position, scanner.damage)
        return scanner


def _recover_last_segment(
    disk: Disk, directory: Path, base: int, on_entry: OnEntry
) -> tuple[SegmentScanner, TornTail | None]:
    path = segment_path(directory, base)
    with _open(disk, path, is_writable=True) as file:
        # What the process before left unsynced becomes durable, or shows as missing, before it
        # is read: from here on all that is read can be acknowledged.
        with translate_os_error(LogWriteError, "syncing", path):
            file.fdatasync()
            file.drop_cache()
            disk.fsync_dir(directory)
        size = _size(file)
        try:
            check_segment_header(_pread(file, SEGMENT_HEADER_BYTES, 0), base)
        except LogCorruptionError as error:
            if size > SEGMENT_HEADER_BYTES:  # entries are written only behind a synced header
                raise corruption(path, base, str(error)) from error
            with translate_os_error(LogWriteError, "rewriting the header of", path):
                write_segment_header(file, base)
            scanner = SegmentScanner(file, base, SEGMENT_HEADER_BYTES)
            return scanner, TornTail(path, base, size, str(error))
        scanner = SegmentScanner(file, base, size)
        scanner.run(on_entry)
        if scanner.damage is None:
            return scanner, None
        return scanner, _cut(file, base, size, scanner.position, scanner.damage)


def _cut(file: DiskFile, base: int, size: int, position: int, reason: str) -> TornTail:
    proof = maybe_find_proof(file, base, position)
    if proof is not None:
        reason = f"{reason}; the group commit at position {proof} proves that it was synced before"
        raise corruption(file.path, position, reason)
    with translate_os_error(LogWriteError, "cutting the torn tail of", file.path):
        file.truncate(position - base)
        file.fsync()
    return TornTail(file.path, position, base + size - position, reason)


def _create(disk: Disk, directory: Path, base: int) -> None:
    with translate_os_error(LogWriteError, "creating", segment_path(directory, base)):
        create_segment(disk, directory, base).close()


def _open(disk: Disk, path: Path, *, is_writable: bool) -> closing[DiskFile]:
    with translate_os_error(LogError, "opening", path):
        return closing(disk.open(path, is_writable=is_writable))


def _size(file: DiskFile) -> int:
    with translate_os_error(LogError, "reading the size of", file.path):
        return file.size()


def _pread(file: DiskFile, length: int, offset: int) -> bytes:
    with translate_os_error(LogError, "reading", file.path):
        return file.pread(length, offset)
