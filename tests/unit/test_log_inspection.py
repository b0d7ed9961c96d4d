"""Check and repair: whatever happens to a log's files is found, and what is intact survives."""

from __future__ import annotations

from pathlib import Path

import pytest

from sbp_core.errors import LogCorruptionError, LogError
from sbp_core.log.bodies import read_bodies
from sbp_core.log.boundaries import START_NAME, write_start
from sbp_core.log.cleaning import Cleaner
from sbp_core.log.entry import COMMIT_BYTES, Entry, Location
from sbp_core.log.index_file import index_path
from sbp_core.log.recovery.inspection import LogInspection, inspect_log, repair_log
from sbp_core.log.states.range_states import RangeState, RecordSpan
from sbp_core.segment_format import SEGMENT_HEADER_BYTES, EntryKind, SegmentHeader, segment_path
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

Files = dict[Path, bytes]
Written = dict[tuple[int, int], bytes]
"""By (stream, offset): the body of the batch that holds it."""

SEGMENT_BYTES = 1000
GROUPS = 11
STEP = 5
"""From one damaged byte to the next one that is tried: every field is hit, and all its neighbours
in another segment."""


def sample() -> tuple[Files, Written, list[Location]]:
    """A log of several segments, closed in order; what is in it, and where."""
    disk = FaultyDisk()
    log = open_log(disk, segment_bytes=SEGMENT_BYTES)
    log.append([created(1), created(2), created(3, 0, 5), created(4)])
    written: Written = {}
    locations: list[Location] = []
    for number in range(GROUPS):
        group = [
            batch(number, 1, b"one-%d" % number * 5, (1, 0)),
            batch(number * 3, 3, b"two-%d" % number * 7, (2, 0)),
        ]
        locations += log.append(group).locations
        for entry in group:
            for offset in range(entry.base_offset, entry.base_offset + entry.count):
                written[entry.stream_id, offset] = bytes(entry.body)
        if number == 4:
            log.append([batch(5, 2, b"three", (3, 0)), batch(0, 1, b"four", (4, 0))])
            log.append([Entry(EntryKind.SEAL, 3, 0, 7, 0)])
            log.append([Entry(EntryKind.STREAM_DELETED, 4, -1, 0, 0)])
    written |= dict.fromkeys([(3, 5), (3, 6)], b"three")
    log.close()
    return contents(disk), written, locations


FILES, WRITTEN, LOCATIONS = sample()
SEGMENTS = sorted(path for path in FILES if path.suffix == ".log")
SEALED, LAST = SEGMENTS[:-1], SEGMENTS[-1]


def flipped(path: Path, offset: int, mask: int = 0x10) -> Files:
    data = bytearray(FILES[path])
    data[offset] ^= mask
    return {**FILES, path: bytes(data)}


def inspected(files: Files) -> LogInspection:
    disk = disk_with(files)
    found = inspect_log(disk, DIRECTORY)
    assert contents(disk) == files
    return found


def offsets(lost: tuple[RecordSpan, ...]) -> set[tuple[int, int]]:
    return {
        (each.stream_id, offset)
        for each in lost
        for offset in range(each.base_offset, each.end_offset)
    }


def served(disk: FaultyDisk) -> Written:
    """The batches that a log serves for all offsets of its ranges, without damaged ones."""
    found: Written = {}
    log = open_log(disk, segment_bytes=SEGMENT_BYTES)
    for logged in log.ranges():
        if logged.state is RangeState.DELETED:
            continue
        for offset in range(logged.start_offset, logged.next_offset):
            try:
                slot = next(log.batches_from(logged.key, offset))
            except LogCorruptionError:
                continue
            (body,) = read_bodies(logged.key, [slot]).data
            found[logged.stream_id, offset] = bytes(body)
    log.append([created(9)])
    log.close()
    return found


def check_repair(files: Files) -> LogInspection:
    """Repair `files`; all that is not reported as lost must be served, and nothing else."""
    disk = disk_with(files)
    found = inspect_log(disk, DIRECTORY)
    lost = offsets(found.lost)
    kept = repair_log(disk, DIRECTORY, found, NOW_MS)
    for copy in kept:
        name = Path(str(copy).rpartition(".damaged-")[0])
        assert contents(disk)[copy] == files[name]
    again = inspect_log(disk, DIRECTORY)
    assert again.faults == ()
    assert again.lost == found.lost
    disk.lose_power(lambda n: 0)
    assert inspect_log(disk, DIRECTORY).lost == found.lost
    known = {
        (logged.stream_id, offset)
        for logged in found.ranges
        if logged.state is not RangeState.DELETED
        for offset in range(logged.start_offset, logged.next_offset)
    }
    assert served(disk) == {key: WRITTEN[key] for key in (WRITTEN.keys() & known) - lost}
    return found


@pytest.mark.exhaustive
@pytest.mark.parametrize("path", SEALED, ids=lambda path: path.name)
def test_a_flipped_byte_of_a_full_segment_is_found_and_costs_what_is_reported(
    path: Path,
) -> None:
    for offset in range(SEALED.index(path), len(FILES[path]), STEP):
        found = check_repair(flipped(path, offset))
        assert {fault.path for fault in found.faults} == {path}
        assert {logged.key: logged.next_offset for logged in found.ranges} == {
            (1, 0): GROUPS,
            (2, 0): 3 * GROUPS,
            (3, 0): 7,
            (4, 0): 1,
        }
        here = [at for at in LOCATIONS if at.position <= int(path.stem) + offset < at.end]
        if here:
            number = LOCATIONS.index(here[0])
            stream_id, first = (1, number // 2) if number % 2 == 0 else (2, number // 2 * 3)
            end = first + (1 if stream_id == 1 else 3)
            assert RecordSpan(stream_id, 0, first, end) in found.lost


@pytest.mark.exhaustive
def test_flips_in_the_last_segment_are_found_and_cost_what_is_reported() -> None:
    for offset in range(0, len(FILES[LAST]) - COMMIT_BYTES, STEP):
        found = check_repair(flipped(LAST, offset))
        assert {fault.path for fault in found.faults} == {LAST}


def test_a_flip_in_the_last_group_is_a_torn_tail_unless_that_was_synced() -> None:
    files = flipped(LAST, len(FILES[LAST]) - 3)
    check_repair(files)
    assert not inspected(files).is_intact
    found = inspected({path: data for path, data in files.items() if "high" not in path.name})
    assert found.is_intact
    assert found.torn_tail is not None
    assert found.torn_tail.cut_bytes == COMMIT_BYTES


def test_a_damaged_body_names_exactly_its_batch() -> None:
    (path,) = [path for path in SEALED if b"one-3" in FILES[path]]
    offset = FILES[path].index(b"one-3")
    found = check_repair(flipped(path, offset))
    (fault,) = found.faults
    assert fault.records == RecordSpan(1, 0, 3, 4)
    assert found.lost == (RecordSpan(1, 0, 3, 4),)
    assert str(path) in str(fault)
    assert "offsets [3, 4) of range 0 of stream 1" in str(fault)
    assert fault.position in {at.position for at in LOCATIONS}


@pytest.mark.parametrize("path", SEALED, ids=lambda path: path.name)
def test_a_full_segment_that_was_cut_is_found(path: Path) -> None:
    for size in range(SEALED.index(path), len(FILES[path]), 20 * STEP):
        found = check_repair({**FILES, path: FILES[path][:size]})
        assert path in {fault.path for fault in found.faults}


@pytest.mark.parametrize("has_index", [True, False])
@pytest.mark.parametrize("path", SEALED, ids=lambda path: path.name)
def test_a_missing_file_is_found_with_everything_that_was_in_it(
    path: Path, has_index: bool
) -> None:
    files = {each: data for each, data in FILES.items() if each != path}
    if not has_index:
        files = {each: data for each, data in files.items() if each.suffix != ".idx"}
    found = check_repair(files)
    if has_index or path == SEALED[0]:
        assert {fault.path for fault in found.faults} == {path}
    base, end = int(path.stem), int(path.stem) + len(FILES[path])
    gone = sum(base <= at.position < end for at in LOCATIONS)
    assert len(offsets(found.lost) - {(3, 5), (3, 6)}) == gone * 2


def test_a_missing_last_file_is_found_and_what_was_not_in_it_survives() -> None:
    files = {path: data for path, data in FILES.items() if path != LAST}
    found = check_repair(files)
    assert [fault.path for fault in found.faults] == [LAST]
    ends = {logged.stream_id: logged.next_offset for logged in found.ranges}
    assert ends == {1: GROUPS, 2: 3 * GROUPS, 3: 7, 4: 1}, "no offset is given away again"
    gone = [at for at in LOCATIONS if at.position >= int(LAST.stem)]
    lost = GROUPS - len(gone) // 2
    assert found.lost == (RecordSpan(1, 0, lost, GROUPS), RecordSpan(2, 0, 3 * lost, 3 * GROUPS))


def test_a_file_that_has_grown_is_found() -> None:
    path = SEALED[0]
    found = check_repair({**FILES, path: FILES[path] + b"more"})
    assert {fault.path for fault in found.faults} == {path}
    assert found.lost == ()


def test_a_damaged_index_is_found_and_removed_and_nothing_is_lost() -> None:
    path = index_path(DIRECTORY, 0)
    for offset in range(0, len(FILES[path]), 3 * STEP):
        found = check_repair(flipped(path, offset))
        assert {fault.path for fault in found.faults} == {path}
        assert found.lost == ()


def test_snapshots_can_be_damaged_in_all_segments_at_once() -> None:
    files = dict(FILES)
    for path in SEGMENTS:
        data = bytearray(files[path])
        data[SEGMENT_HEADER_BYTES + COMMIT_BYTES + 1] ^= 0x40
        files[path] = bytes(data)
    found = check_repair(files)
    assert {fault.path for fault in found.faults} >= set(SEGMENTS)
    states = {logged.stream_id: logged.state for logged in found.ranges}
    assert states[3] is RangeState.SEALED
    assert states[4] is RangeState.DELETED


def test_a_damaged_start_is_written_again() -> None:
    disk = disk_with(FILES)
    write_start(disk, DIRECTORY, 0)
    files = contents(disk)
    start = DIRECTORY / START_NAME
    files[start] = bytes(len(files[start]))
    found = check_repair(files)
    assert [fault.path for fault in found.faults] == [start]


def test_trimmed_and_deleted_records_are_not_lost() -> None:
    disk = disk_with(FILES)
    log = open_log(disk, segment_bytes=SEGMENT_BYTES)
    log.append([Entry(EntryKind.TRIM, 1, -1, 9, 0), Entry(EntryKind.TRIM, 2, -1, 27, 0)])
    log.append([Entry(EntryKind.STREAM_DELETED, 3, -1, 0, 0)])
    log.close()
    files = {path: data for path, data in contents(disk).items() if path != SEALED[1]}
    found = inspected(files)
    assert [fault.path for fault in found.faults] == [SEALED[1]]
    assert found.lost == ()


def cleaned_files() -> Files:
    """The sample after most of it was trimmed, and the room was freed."""
    disk = disk_with(FILES)
    log = open_log(disk, segment_bytes=SEGMENT_BYTES)
    last = GROUPS - 1
    log.append([Entry(EntryKind.TRIM, 1, -1, last, 0), Entry(EntryKind.TRIM, 2, -1, 3 * last, 0)])
    cleaned = Cleaner(log).clean()
    assert cleaned.removed_count > 0
    assert cleaned.rewritten_count > 0
    log.close()
    return contents(disk)


def test_a_log_that_freed_its_space_can_be_repaired() -> None:
    files = cleaned_files()
    assert inspected(files).is_intact
    segments = sorted(path for path in files if path.suffix == ".log")
    for path in segments[:-1]:
        for offset in range(0, len(files[path]), 9 * STEP):
            data = bytearray(files[path])
            data[offset] ^= 1
            found = check_repair({**files, path: bytes(data)})
            assert {fault.path for fault in found.faults} == {path}
        check_repair({each: data for each, data in files.items() if each != path})


def test_a_log_without_a_segment_cannot_be_repaired() -> None:
    disk = FaultyDisk()
    write_start(disk, DIRECTORY, 500)
    found = inspect_log(disk, DIRECTORY)
    assert not found.is_intact
    with pytest.raises(LogError, match="backup"):
        repair_log(disk, DIRECTORY, found, NOW_MS)


def test_a_crash_in_a_repair_leaves_a_log_that_can_be_repaired() -> None:
    files = {path: data for path, data in FILES.items() if path != SEALED[1]}
    for path in (SEALED[0], LAST):
        data = bytearray(files[path])
        data[data.index(b"one-")] ^= 1
        files[path] = bytes(data)
    expected = inspected(files).lost
    crashes = 0
    for operation in ("create", "pwritev", "fsync", "replace", "fsync_dir", "link"):
        for nth in range(1, 12):
            disk = disk_with(files)
            disk.fail(operation, nth, 5)
            try:
                repair_log(disk, DIRECTORY, inspect_log(disk, DIRECTORY), NOW_MS)
            except LogError:
                crashes += 1
            disk.lose_power(lambda n: n - 1)
            found = inspect_log(disk, DIRECTORY)
            assert found.lost == expected
            repair_log(disk, DIRECTORY, found, NOW_MS)
            again = inspect_log(disk, DIRECTORY)
            assert (again.faults, again.lost) == ((), expected)
            assert len(served(disk)) == len(WRITTEN) - len(offsets(expected))
    assert crashes > 15


def test_a_repaired_last_segment_gives_no_offset_away_twice_where_the_next_one_is_known() -> None:
    data = bytearray(FILES[LAST])
    data[data.index(b"two-%d" % (GROUPS - 2))] ^= 1
    disk = disk_with({**FILES, LAST: bytes(data)})
    found = inspect_log(disk, DIRECTORY)
    repair_log(disk, DIRECTORY, found, NOW_MS)
    assert segment_bases(disk)[-1] == int(LAST.stem) + len(data)
    log = open_log(disk)
    assert log.recovery.damaged_batches == ()
    log.append([batch(3 * GROUPS, 1, b"on it goes", (2, 0))])
    assert [slot.base_offset for slot in log.batches_from((2, 0), 3 * (GROUPS - 1))] == [
        3 * (GROUPS - 1),
        3 * GROUPS,
    ]


def test_a_file_of_another_place_is_refused_not_repaired() -> None:
    header = SegmentHeader(int(SEALED[1].stem))
    swapped = {**FILES, SEALED[2]: FILES[segment_path(DIRECTORY, header.base)]}
    with pytest.raises(LogError, match="renamed"):
        inspect_log(disk_with(swapped), DIRECTORY)
