"""Helpers of the tests of the log: independent entries, and the content of all its files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from faulty_disk import FaultyDisk, Inode

from sbp_core.log.disk import Disk
from sbp_core.log.durable_log import Log
from sbp_core.log.entry import SNAPSHOT_KINDS, Entry, Location
from sbp_core.log.segment import read_segment
from sbp_core.log.segment_scan import Damage, SegmentScanner
from sbp_core.log.states.staged_entries import decode_prefix, prefix_length
from sbp_core.segment_format import EntryKind, maybe_segment_base, segment_path

DIRECTORY = Path("/log")
NOW_MS = 1_700_000_000_123


def open_log(disk: Disk, directory: Path = DIRECTORY, *, segment_bytes: int = 10_000) -> Log:
    return Log.open(directory, disk=disk, now_ms=lambda: NOW_MS, segment_bytes=segment_bytes)


def created(stream_id: int = 1, range_index: int = 0, start_offset: int = 0) -> Entry:
    return Entry(EntryKind.RANGE_CREATED, stream_id, range_index, start_offset, 0)


def batch(base_offset: int, count: int = 1, body: bytes = b"body", key: tuple = (1, 0)) -> Entry:
    return Entry(EntryKind.BATCH, *key, base_offset, count, body)


def note(number: int, size: int = 40) -> Entry:
    """An entry with a body that may stand anywhere; any number once."""
    body = bytes([number % 256]) * size
    return Entry(EntryKind.RANGE_CREATED, number, 0, number * 10, 10, body)


def logged(disk: Disk, directory: Path = DIRECTORY) -> list[tuple[Entry, Location]]:
    """All entries of all segments as they were appended, but what the log adds itself."""
    found: list[tuple[Entry, Location]] = []
    for base in segment_bases(disk, directory):
        file = disk.open(segment_path(directory, base), is_writable=False)
        segment = read_segment(file, base)
        for item in SegmentScanner(file, base, segment.size).entries():
            assert not isinstance(item, Damage), item
            entry, location = item
            if entry.kind not in SNAPSHOT_KINDS:
                found.append((as_appended(entry), location))
        file.close()
    return found


def counted(found: list[tuple[Entry, Location]]) -> list[Entry]:
    """The entries that mean something: a mark does not unless its batch is right behind it."""
    positions = {location.position for _, location in found}
    return [
        entry
        for entry, location in found
        if entry.kind is not EntryKind.WRITER_MARK or location.end in positions
    ]


def entries(disk: Disk, directory: Path = DIRECTORY) -> list[Entry]:
    return [entry for entry, _ in logged(disk, directory)]


def segment_bases(disk: Disk, directory: Path = DIRECTORY) -> list[int]:
    names = disk.list_names(directory)
    return sorted(base for name in names if (base := maybe_segment_base(name)) is not None)


def entry_copy(entry: Entry) -> Entry:
    fields = (entry.kind, entry.stream_id, entry.range_index, entry.base_offset, entry.count)
    return Entry(*fields, bytes(entry.body))


def as_appended(entry: Entry) -> Entry:
    """An entry that was read, its prefix, if it has one, beside the body again."""
    own = entry_copy(entry)
    if entry.kind is not EntryKind.STAGED:
        return own
    start = prefix_length(decode_prefix(own.body)[0])
    return replace(own, prefix=own.body[:start], body=own.body[start:])


def disk_with(files: dict[Path, bytes]) -> FaultyDisk:
    disk = FaultyDisk()
    for path, data in files.items():
        inode = Inode()
        inode.cached, inode.durable = bytearray(data), bytearray(data)
        disk.names[path] = disk.durable_names[path] = inode
    return disk


def contents(disk: FaultyDisk) -> dict[Path, bytes]:
    return {path: bytes(inode.cached) for path, inode in disk.names.items()}


def reopened(disk: FaultyDisk, segment_bytes: int = 10_000) -> tuple[Log, list[int]]:
    """Open the log; return it, and the numbers of its notes."""
    log = open_log(disk, segment_bytes=segment_bytes)
    found = entries(disk)
    assert found == [note(entry.stream_id, len(entry.body)) for entry in found]
    assert {each.stream_id for each in log.ranges()} == {entry.stream_id for entry in found}
    return log, [entry.stream_id for entry in found]


def written(
    groups: list[list[Entry]], *, is_clean: bool = False, segment_bytes: int = 10_000
) -> tuple[dict[Path, bytes], list[Location]]:
    disk = FaultyDisk()
    log = open_log(disk, segment_bytes=segment_bytes)
    locations = [location for group in groups for location in log.append(group).locations]
    if is_clean:
        log.close()
    return contents(disk), locations
