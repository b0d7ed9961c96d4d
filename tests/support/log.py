"""Logs on a test's disk: entries, stagings, replicas, merging."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from sbp_core.log.bodies import read_bodies
from sbp_core.log.disk import Disk
from sbp_core.log.durable_log import Log
from sbp_core.log.entry import SNAPSHOT_KINDS, Entry, Location
from sbp_core.log.portable import decode_portable, encode_portable, to_local
from sbp_core.log.segment import read_segment
from sbp_core.log.segment_rows import Slot
from sbp_core.log.segment_scan import Damage, SegmentScanner
from sbp_core.log.states.range_states import LoggedRange, RangeKey, range_created
from sbp_core.log.states.replicated_entries import summary
from sbp_core.log.states.staged_entries import decode_prefix, prefix_length
from sbp_core.log.states.staged_states import Staging, commit_entry, drop_entry, staged_entry
from sbp_core.replication import Prefix
from sbp_core.segment_format import EntryKind, maybe_segment_base, segment_path
from tests.support.disk import FaultyDisk, Inode

DIRECTORY = Path("/log")
NOW_MS = 1_700_000_000_123


def open_log(disk: Disk, directory: Path = DIRECTORY, **settings: int) -> Log:
    settings = {"segment_bytes": 10_000} | settings
    return Log.open(directory, disk=disk, now_ms=lambda: NOW_MS, **settings)


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
    groups: list[list[Entry]], *, is_clean: bool = False, **settings: int
) -> tuple[dict[Path, bytes], list[Location]]:
    disk = FaultyDisk()
    log = open_log(disk, **settings)
    locations = [location for group in groups for location in log.append(group).locations]
    if is_clean:
        log.close()
    return contents(disk), locations


KEY = (1, 0)


def staged(txn_id: str, sequence: int, body: bytes = b"staged", count: int = 1) -> Entry:
    return staged_entry(*KEY, txn_id, sequence, count, body)


def staging(log: Log, txn_id: str, key: tuple[int, int] = KEY) -> Staging:
    found = log.staged.maybe_staging(*key, txn_id)
    assert found is not None
    return found


def commit(log: Log, *txn_ids: str, key: tuple[int, int] = KEY) -> Entry:
    """The entry that publishes what is staged, at the end of its range."""
    logged = log.maybe_range(key)
    assert logged is not None
    return commit_entry(*key, logged.next_offset, [staging(log, each, key) for each in txn_ids])


def drop(*txn_ids: str, key: tuple[int, int] = KEY) -> Entry:
    return drop_entry(*key, txn_ids)


def bodies(log: Log, offset: int = 0, key: tuple[int, int] = KEY) -> Sequence[bytes]:
    """The batches of a range from an offset on, each without what is in front of it."""
    slots = list(log.batches_from(key, offset))
    read = read_bodies(key, slots)
    assert read.error is None, read.error
    return [bytes(each) for each in read.data]


def staged_bodies(log: Log, txn_id: str, key: tuple[int, int] = KEY) -> Sequence[bytes]:
    read = read_bodies(key, list(log.staged_from(staging(log, txn_id, key), 0)))
    assert read.error is None, read.error
    return [bytes(each) for each in read.data]


CREATED = range_created(*KEY, 0, 77, is_replicated=True)


def replicated_range(log: Log, key: tuple[int, int] = KEY) -> LoggedRange:
    found = log.maybe_range(key)
    assert found is not None
    return found


def prefix_of(*entries: Entry) -> Prefix:
    prefix = Prefix()
    for entry in entries:
        prefix = prefix.extended(summary(entry))
    return prefix


def portable_bytes(*entries: Entry) -> memoryview:
    return memoryview(b"".join(part for entry in entries for part in encode_portable(entry)))


def in_transit(entries: Iterable[Entry]) -> list[Entry]:
    return decode_portable(portable_bytes(*entries))


def feed(log: Log, entries: Iterable[Entry]) -> None:
    """Append portable entries, each mark in one group with its batch."""
    group: list[Entry] = []
    for entry in entries:
        group.append(to_local(entry, log.staged))
        if entry.kind is not EntryKind.WRITER_MARK:
            log.append(group)
            group = []
    log.append(group)


SEGMENT_BYTES = 6_000
KEYS = [(1, 0), (2, 0)]


class Clock:
    """Each group is written a millisecond after the one before."""

    def __init__(self) -> None:
        self.now_ms = 1_000

    def tick(self) -> int:
        self.now_ms += 1
        return self.now_ms


def opened(disk: FaultyDisk, clock: Clock | None = None) -> Log:
    tick = (clock or Clock()).tick
    return Log.open(DIRECTORY, disk=disk, now_ms=tick, segment_bytes=SEGMENT_BYTES)


def small(offset: int, key: tuple[int, int] = (1, 0)) -> Entry:
    return batch(offset, body=b"%d:%d;" % (key[0], offset), key=key)


def filled(log: Log, count: int = 100) -> dict[tuple[int, int], list[Entry]]:
    """Small batches of two streams in turn, of which most are in full segments."""
    log.append([created(*key) for key in KEYS])
    appended: dict[tuple[int, int], list[Entry]] = {key: [] for key in KEYS}
    for offset in range(count):
        for key in KEYS:
            log.append([small(offset, key)])
            appended[key].append(small(offset, key))
    return appended


def slots(log: Log, key: tuple[int, int] = (1, 0), offset: int = 0) -> list[Slot]:
    return list(log.batches_from(key, offset))


def counts(log: Log, key: tuple[int, int] = (1, 0)) -> list[int]:
    return [slot.count for slot in slots(log, key)]


def check_all(log: Log, appended: dict[tuple[int, int], list[Entry]]) -> None:
    for key, entries in appended.items():
        for offset in range(len(entries)):
            check_batches(key, slots(log, key, offset), entries, offset)


def freed_bytes(log: Log) -> int:
    """Bytes that its full segments no longer take."""
    return sum(segment.end - segment.base - segment.size for segment in log.extent.sealed)


def concatenate(bodies: Iterable[memoryview]) -> tuple[int, bytes]:
    """All batches of a run belong together."""
    parts = [bytes(each) for each in bodies]
    return len(parts), b"".join(parts)


def check_batches(key: RangeKey, slots: Sequence[Slot], appended: Sequence[Entry], offset: int):
    """Fail unless these are all batches of a range that reach beyond an offset, some merged."""
    meant = [each for each in appended if each.base_offset + each.count > offset]
    first = slots[0].base_offset if slots else offset
    assert first <= max(offset, 0) or (meant and first == meant[0].base_offset)
    bodies = read_bodies(key, slots)
    if bodies.error is not None:
        raise bodies.error
    left = [each for each in appended if each.base_offset >= first]
    for slot, body in zip(slots, bodies.data, strict=True):
        parts = []
        while left and left[0].base_offset < slot.end_offset:
            parts.append(left.pop(0))
        assert (slot.base_offset, slot.count) == (
            parts[0].base_offset,
            sum(each.count for each in parts),
        )
        assert body == b"".join(each.body for each in parts)
    assert not left, "the last ones are not found"
