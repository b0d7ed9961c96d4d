"""Marks of writers in a log that is torn, damaged, compacted or repaired."""

from __future__ import annotations

import pytest

from sbp_core.errors import LogCorruptionError
from sbp_core.log.bodies import read_bodies
from sbp_core.log.entry import COMMIT_BYTES, Entry
from sbp_core.log.recovery.inspection import inspect_log, repair_log
from sbp_core.log.states.writer_states import (
    NumberedBatch,
    WriterState,
    WriterStates,
    decode_mark,
    decode_writers,
    encode_writers,
    mark_of,
)
from sbp_core.segment_format import (
    ENTRY_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    EntryKind,
    segment_path,
)
from tests.support.disk import FaultyDisk
from tests.support.log import (
    DIRECTORY,
    NOW_MS,
    batch,
    contents,
    created,
    disk_with,
    open_log,
    segment_bases,
)

SEGMENT_BYTES = 700
FIRST_BODY = SEGMENT_HEADER_BYTES + COMMIT_BYTES + ENTRY_HEADER_BYTES


def numbered(offset: int, sequence: int, writer: str = "w") -> list[Entry]:
    entry = batch(offset, 1, b"body %d" % offset)
    return [mark_of(entry, writer, sequence), entry]


def filled(disk: FaultyDisk, batch_count: int = 12, segment_bytes: int = SEGMENT_BYTES):
    """A log of some segments with one writer."""
    log = open_log(disk, segment_bytes=segment_bytes)
    log.append([created()])
    for sequence in range(batch_count):
        log.append(numbered(sequence, sequence))
    return log


def last_sequence(log) -> int | None:
    state = log.writers.maybe_writer(1, "w")
    return None if state is None else state.last_sequence


def spoil(disk: FaultyDisk, base: int, offset: int) -> None:
    inode = disk.names[segment_path(DIRECTORY, base)]
    inode.write(bytes([inode.cached[offset] ^ 1]), offset)


def test_a_mark_may_say_what_the_digest_of_the_batch_is() -> None:
    digest = bytes(range(16))
    mark = mark_of(batch(7, 3), "w", 5, digest)
    assert mark.body == b"\0" * 7 + b"\5\x82" + digest + b"w"
    assert decode_mark(mark) == ("w", 5)
    states = WriterStates()
    states.apply(mark, 9)
    writer = states.maybe_writer(1, "w")
    assert writer is not None
    assert writer.maybe_batch(5) == NumberedBatch(7, 3, 9, digest)


@pytest.mark.parametrize(
    "body",
    [b"", b"\0" * 8, b"\0" * 8 + b"\xff", b"\0" * 8 + b"\x82" + b"d" * 16, b"\0" * 8 + b"\x82w"],
)
def test_a_mark_that_makes_no_sense_is_damage(body) -> None:
    with pytest.raises(LogCorruptionError):
        decode_mark(Entry(EntryKind.WRITER_MARK, 1, 0, 0, 1, body))


@pytest.mark.parametrize("data", [b"", b"\3", b"\2\1", b"\1\1", b"\1\5\0" + b"\0" * 8 + b"shor"])
def test_writers_that_make_no_sense_are_damage(data) -> None:
    with pytest.raises(LogCorruptionError):
        decode_writers(data)


def test_a_damaged_mark_refuses_the_start_and_is_forgotten_by_a_repair() -> None:
    disk = FaultyDisk()
    log = filled(disk, 2, 10_000)
    location = log.append(numbered(2, 2)).locations[0]
    log.append(numbered(3, 0, "v"))
    log.close()
    spoil(disk, 0, location.position + ENTRY_HEADER_BYTES)
    with pytest.raises(LogCorruptionError, match="proves that it was synced"):
        open_log(disk)
    repair_log(disk, DIRECTORY, inspect_log(disk, DIRECTORY), NOW_MS)
    log = open_log(disk)
    assert last_sequence(log) is None
    assert log.writers.maybe_writer(1, "v") is not None
    slots = list(log.batches_from((1, 0), 0))
    assert [bytes(each) for each in read_bodies((1, 0), slots).data] == [
        b"body 0",
        b"body 1",
        b"body 2",
        b"body 3",
    ]


def test_damaged_writers_of_a_snapshot_are_read_from_the_segment_before() -> None:
    disk = FaultyDisk()
    log = filled(disk)
    log.close()
    spoil(disk, segment_bases(disk)[-1], FIRST_BODY)
    log = open_log(disk_with(contents(disk)), segment_bytes=SEGMENT_BYTES)
    assert log.recovery.damaged_snapshot is not None
    assert last_sequence(log) == 11
    found = inspect_log(disk, DIRECTORY)
    assert len(found.faults) == 1
    assert not found.lost
    repair_log(disk, DIRECTORY, found, NOW_MS)
    assert inspect_log(disk, DIRECTORY).is_intact
    assert last_sequence(open_log(disk, segment_bytes=SEGMENT_BYTES)) == 11


def test_damaged_ranges_of_a_snapshot_cost_no_writer() -> None:
    disk = FaultyDisk()
    log = filled(disk, segment_bytes=10_000)
    log.end_segment()
    log.close()
    base = segment_bases(disk)[-1]
    spoil(disk, base, len(contents(disk)[segment_path(DIRECTORY, base)]) - 1)
    assert last_sequence(open_log(disk_with(contents(disk)))) == 11
    repair_log(disk, DIRECTORY, inspect_log(disk, DIRECTORY), NOW_MS)
    assert last_sequence(open_log(disk)) == 11


def test_a_repair_of_an_older_segment_forgets_no_writer() -> None:
    disk = FaultyDisk()
    filled(disk).close()
    bases = segment_bases(disk)
    assert len(bases) > 3
    del disk.names[segment_path(DIRECTORY, bases[1])]
    repair_log(disk, DIRECTORY, inspect_log(disk, DIRECTORY), NOW_MS)
    log = open_log(disk, segment_bytes=SEGMENT_BYTES)
    assert last_sequence(log) == 11
    assert inspect_log(disk, DIRECTORY).lost


def told(offset: int = 50, last_sequence: int = 4) -> Entry:
    """The writers before range 1, as the placement driver reports them."""
    before = WriterState("w", last_sequence, (NumberedBatch(offset - 10, 10, 1),))
    return Entry(EntryKind.RANGE_WRITERS, 1, 1, offset, 1, encode_writers([before]))


@pytest.mark.parametrize("is_creation_lost", [False, True])
def test_after_a_repair_older_news_of_writers_do_not_count(is_creation_lost: bool) -> None:
    disk = FaultyDisk()
    log = open_log(disk)
    news = [created(1, 1, 50), told()]
    locations = log.append(news).locations
    for sequence, offset in ((5, 50), (6, 51)):
        entry = batch(offset, key=(1, 1))
        log.append([mark_of(entry, "w", sequence), entry])
    log.close()
    for location in locations[0 if is_creation_lost else 1 :]:
        spoil(disk, 0, location.position)
    repair_log(disk, DIRECTORY, inspect_log(disk, DIRECTORY), NOW_MS)
    log = open_log(disk)
    assert log.writers.known_from(1) == 1
    log.append([told()])
    state = log.writers.maybe_writer(1, "w")
    assert state is None or state.last_sequence == 6


class WatchedStates(WriterStates):
    """Notes from where on writers are known, while they are taken in one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []

    def _put(self, stream_id: int, writer: WriterState) -> None:
        self.seen.append(self.known_from(stream_id))
        super()._put(stream_id, writer)


def test_the_writers_before_a_range_are_known_once_all_are_there() -> None:
    states = WatchedStates()
    states.apply(told(), 0)
    assert states.seen == [0]
    assert states.known_from(1) == 1


def test_writers_that_make_no_sense_change_nothing() -> None:
    states = WriterStates()
    entry = batch(0)
    states.apply(mark_of(entry, "w", 0), 7)
    with pytest.raises(LogCorruptionError):
        states.apply(Entry(EntryKind.RANGE_WRITERS, 1, 1, 50, 1, b"\3"), 7)
    assert states.maybe_writer(1, "w") is not None
    assert states.known_from(1) == 0
