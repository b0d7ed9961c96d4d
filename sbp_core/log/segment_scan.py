"""Scan a segment: yield its entries, and the damage between them, in order.

`SegmentScanner` is the only code that walks a segment. Recovery, check, repair, the cleaner, the
indexes of replicas and the scrub consume its entries. segment_replay.py folds them into states.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sbp_core.errors import LogCorruptionError, LogError
from sbp_core.limits import LOG_SCAN_BYTES
from sbp_core.log.disk import DiskFile, translate_os_error
from sbp_core.log.entry import (
    BATCH_KINDS,
    COMMIT_BYTES,
    COMMIT_MARKER,
    Commit,
    Entry,
    Location,
    decode_commit,
    decode_entry,
    entry_of,
)
from sbp_core.log.segment import SegmentView, corruption, file_size, naming_damage
from sbp_core.log.states.state_snapshot import SnapshotReader
from sbp_core.segment_format import (
    ENTRY_HEADER_BYTES,
    ENTRY_PREFIX_BYTES,
    SEGMENT_HEADER_BYTES,
    EntryHeader,
    EntryKind,
    decode_entry_header,
)


@dataclass(slots=True)
class Damage:
    """Bytes from `position` on that are not an intact entry, and the reason.

    `header` is set if only the body is damaged: it tells which entry was there and where the next
    entry starts. Without a header it is unknown how many entries are lost. `proof` says why the
    bytes must have been synced, if a proof was looked for.
    """

    position: int
    reason: str
    header: EntryHeader | None = None
    proof: str = ""

    def maybe_batch(self) -> tuple[Entry, Location] | None:
        """Return the damaged BATCH or STAGED entry without its body; None for other damage."""
        if self.header is None or self.header.kind not in BATCH_KINDS:
            return None
        return entry_of(self.header), Location(self.position, self.header.length)


class SegmentScanner:
    """Reads the entries of one segment in bounded memory, `window_bytes` at a time.

    `position` is the position of the next read. `durable_upto` and `time_ms` are the fields of the
    last COMMIT entry.
    """

    def __init__(
        self, file: DiskFile, base: int, size: int, *, window_bytes: int = LOG_SCAN_BYTES
    ) -> None:
        self.position = base + SEGMENT_HEADER_BYTES
        self.durable_upto = 0
        self.time_ms = 0
        self._file = file
        self._base = base
        self._end = base + size
        self._window_bytes = window_bytes
        self._window = memoryview(b"")
        self._window_position = self.position

    def entries(self) -> Iterator[tuple[Entry, Location] | Damage]:
        """Yield each entry except COMMIT, and each damage; bodies are verified."""
        for item in self.headers():
            if isinstance(item, Damage):
                yield item
                continue
            header, location = item
            body = self._view(location.position, header.length)[ENTRY_HEADER_BYTES:]
            try:
                header.check_body(body)
            except LogCorruptionError as error:
                yield Damage(location.position, str(error), header)
                continue
            yield entry_of(header, body), location

    def headers(self) -> Iterator[tuple[EntryHeader, Location] | Damage]:
        """Yield the header of each entry except COMMIT, and each damage; bodies are not verified.

        After damage the scan resumes at the entry that begins where the damaged entry should end,
        or else at the next group commit.
        """
        while self.position < self._end:
            position = self.position
            try:
                header = decode_entry_header(self._view(position, ENTRY_HEADER_BYTES), position)
            except LogCorruptionError as error:
                yield Damage(position, str(error))
                # The length may be intact although the header's checksum is not: try it first, so
                # that one flipped bit does not hide all entries up to the next group commit.
                self.position = self._maybe_next_entry() or self._next_commit_position()
                continue
            self.position += header.length
            try:
                self._check_length(header, position)
                if header.kind is EntryKind.COMMIT:
                    self._read_commit(header, position)
                    continue
            except LogCorruptionError as error:
                yield Damage(position, str(error), header)
                continue
            yield header, Location(position, header.length)

    def _check_length(self, header: EntryHeader, position: int) -> None:
        if self.position > self._end:
            self.position = self._end
            raise LogCorruptionError(
                f"an entry of {header.length} bytes runs beyond the end of the file,"
                f" {self._end - position} bytes are left"
            )

    def _read_commit(self, header: EntryHeader, position: int) -> None:
        commit = decode_commit(
            decode_entry(self._view(position, header.length), position), position
        )
        self.durable_upto, self.time_ms = commit.durable_upto, commit.time_ms

    def _maybe_next_entry(self) -> int | None:
        """Return the position of the next entry if the length in a damaged header leads to one."""
        length = int.from_bytes(self._view(self.position, ENTRY_HEADER_BYTES)[:4], "big")
        position = self.position + ENTRY_PREFIX_BYTES + length
        try:
            decode_entry_header(self._view(position, ENTRY_HEADER_BYTES), position)
        except LogError:
            return None
        return position

    def _next_commit_position(self) -> int:
        commits = find_commits(self._file, self._base, self.position + 1)
        return next((position for position, _ in commits), self._end)

    def _view(self, position: int, length: int) -> memoryview:
        """Return `length` bytes; fewer at the end of the file."""
        start = position - self._window_position
        if not 0 <= start <= len(self._window) - length:
            offset = position - self._base
            self._window = memoryview(_pread(self._file, max(length, self._window_bytes), offset))
            self._window_position, start = position, 0
        return self._window[start : start + length]


def read_snapshot(view: SegmentView) -> SnapshotReader:
    """Return the snapshot with which a segment begins. Raises LogError."""
    path = view.file.path
    scanner = SegmentScanner(view.file, view.segment.base, file_size(view.file))
    snapshot = SnapshotReader()
    for item in scanner.entries():
        if isinstance(item, Damage):
            raise corruption(path, item.position, item.reason)
        with naming_damage(path, item[1].position):
            is_complete = snapshot.add(item[0])
        if is_complete:
            return snapshot
    raise corruption(path, scanner.position, "the segment ends within the snapshot of its ranges")


def find_commits(file: DiskFile, base: int, position: int) -> Iterator[tuple[int, Commit]]:
    """Yield the intact COMMIT entries from log position `position` on, found by their marker."""
    offset = position - base
    while True:
        data = _pread(file, LOG_SCAN_BYTES, offset)
        hit = data.find(COMMIT_MARKER)
        while hit >= 0:
            start = hit - ENTRY_HEADER_BYTES
            candidate = base + offset + start
            commit = _maybe_commit(data[max(start, 0) : start + COMMIT_BYTES], candidate)
            if start >= 0 and commit is not None:
                yield candidate, commit
            hit = data.find(COMMIT_MARKER, hit + len(COMMIT_MARKER))
        if len(data) < LOG_SCAN_BYTES:
            return
        # Windows overlap, so that an entry that straddles two of them is found.
        offset += len(data) - (COMMIT_BYTES - 1)


def maybe_find_proof(file: DiskFile, base: int, position: int) -> int | None:
    """Return the position of a later COMMIT entry that proves that `position` was synced."""
    for candidate, commit in find_commits(file, base, position):
        if commit.durable_upto > position:
            return candidate
    return None


def _maybe_commit(data: bytes, position: int) -> Commit | None:
    try:
        entry = decode_entry(memoryview(data), position)
        return decode_commit(entry, position) if entry.kind is EntryKind.COMMIT else None
    except LogError:
        return None


def _pread(file: DiskFile, length: int, offset: int) -> bytes:
    with translate_os_error(LogError, "reading", file.path):
        return file.pread(length, offset)
