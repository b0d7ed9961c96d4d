"""A log that is shorter than it was synced: exactly the missing part is reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from sbp_core.errors import LogCorruptionError
from sbp_core.log.bodies import read_bodies
from sbp_core.log.boundaries import HighWater, HighWaterKeeper, read_high_water, slot_path
from sbp_core.log.durable_log import Log
from sbp_core.log.entry import Entry
from sbp_core.log.recovery.inspection import inspect_log, repair_log
from sbp_core.log.states.range_states import LoggedRange, RangeState
from sbp_core.segment_format import EntryKind, segment_path
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

OTHER, KEY = (1, 0), (2, 0)
COUNT = 20
SEGMENT_BYTES = 100_000


def filled(disk: FaultyDisk, *, is_closed: bool = True) -> Log:
    log = open_log(disk, segment_bytes=SEGMENT_BYTES)
    log.append([created(*OTHER), created(*KEY)])
    log.append([batch(0, 5, b"other", OTHER)])
    for at in range(COUNT):
        log.append([batch(at, 1, b"own-%d" % at, KEY)])
    if is_closed:
        log.close()
    else:
        log.high_water.note()
    return log


def files_of(*, is_closed: bool = True) -> dict[Path, bytes]:
    disk = FaultyDisk()
    filled(disk, is_closed=is_closed)
    return contents(disk)


def read(log: Log, key: tuple[int, int], offset: int = 0) -> list[bytes]:
    slots = list(log.batches_from(key, offset))
    bodies = read_bodies(key, slots)
    assert bodies.error is None, bodies.error
    return [bytes(body) for body in bodies.data]


SEGMENT = segment_path(DIRECTORY, 0)


def cut_at(files: dict[Path, bytes], size: int) -> FaultyDisk:
    return disk_with({**files, SEGMENT: files[SEGMENT][:size]})


@pytest.mark.exhaustive
@pytest.mark.parametrize("is_closed", [True, False])
def test_a_log_that_lost_its_end_says_what_is_missing_and_serves_the_rest(is_closed: bool) -> None:
    files = files_of(is_closed=is_closed)
    whole = len(files[SEGMENT])
    losses = set()
    for size in range(0, whole, 7):
        disk = cut_at(files, size)
        found = inspect_log(disk, DIRECTORY)
        assert not found.is_intact, size
        assert any("bytes are missing" in fault.reason for fault in found.faults)
        log = open_log(disk, segment_bytes=SEGMENT_BYTES)
        lost_tail = log.recovery.lost_tail
        assert lost_tail is not None
        assert sorted(map(str, lost_tail.records)) == sorted(map(str, found.lost))
        losses.add(len(lost_tail.records))
        own = {each.stream_id: each for each in lost_tail.records}
        start = own[2].base_offset if 2 in own else COUNT
        if start < COUNT:
            with pytest.raises(
                LogCorruptionError, match=rf"\[{start}, {COUNT}\) of range 0 of str"
            ):
                list(log.batches_from(KEY, start))
        # Nothing is given away again, and what is new is served.
        assert log.maybe_range(KEY) == LoggedRange(*KEY, 0, COUNT)
        log.append([batch(COUNT, 1, b"new", KEY)])
        assert read(log, KEY, COUNT) == [b"new"]
        log.close()
        # The file is put back whole.
        disk = disk_with({**contents(disk), SEGMENT: files[SEGMENT]})
        log = open_log(disk, segment_bytes=SEGMENT_BYTES)
        assert log.recovery.lost_tail is None
        assert read(log, KEY) == [b"own-%d" % at for at in range(COUNT)] + [b"new"]
        log.close()
        assert inspect_log(disk, DIRECTORY).is_intact
    assert losses == ({0, 1, 2} if is_closed else {1, 2})


def test_a_loss_is_accepted_by_a_repair() -> None:
    files = files_of()
    disk = cut_at(files, len(files[SEGMENT]) - 500)
    found = inspect_log(disk, DIRECTORY)
    assert repair_log(disk, DIRECTORY, found, NOW_MS)
    again = inspect_log(disk, DIRECTORY)
    assert (again.faults, again.lost) == ((), found.lost)
    log = open_log(disk, segment_bytes=SEGMENT_BYTES)
    assert log.recovery.lost_tail is None
    assert log.maybe_range(KEY) == LoggedRange(*KEY, 0, COUNT)


def test_going_on_behind_a_loss_may_be_interrupted() -> None:
    files = files_of()
    disk = cut_at(files, len(files[SEGMENT]) - 500)
    open_log(disk, segment_bytes=SEGMENT_BYTES).close()
    behind = segment_path(DIRECTORY, segment_bases(disk)[-1])
    half = contents(disk)
    del half[behind]
    half = {path: data for path, data in half.items() if "high-water" not in path.name}
    half |= {path: data for path, data in files.items() if "high-water" in path.name}
    disk = disk_with(half)  # the header says the end, and there is nothing behind it
    assert any("bytes are missing" in fault.reason for fault in inspect_log(disk, DIRECTORY).faults)
    log = open_log(disk, segment_bytes=SEGMENT_BYTES)
    assert log.recovery.lost_tail is not None
    assert log.maybe_range(KEY) == LoggedRange(*KEY, 0, COUNT)


def test_a_loss_of_which_ranges_is_unknown_is_no_start() -> None:
    files = files_of()
    disk = disk_with(files)
    log = open_log(disk, segment_bytes=SEGMENT_BYTES)
    log.high_water.promise(log.end_position + 1000)
    log.close()
    with pytest.raises(LogCorruptionError, match="1000 bytes are missing, of which ranges is un"):
        open_log(disk, segment_bytes=SEGMENT_BYTES)
    found = inspect_log(disk, DIRECTORY)
    assert [fault.path for fault in found.faults] == [SEGMENT]
    repair_log(disk, DIRECTORY, found, NOW_MS)
    log = open_log(disk, segment_bytes=SEGMENT_BYTES)
    assert log.end_position > len(files[SEGMENT]) + 1000
    assert len(read(log, KEY)) == COUNT


def test_all_segments_are_missed() -> None:
    disk = disk_with({path: data for path, data in files_of().items() if path != SEGMENT})
    with pytest.raises(LogCorruptionError, match="all segments are missing"):
        open_log(disk)
    assert not inspect_log(disk, DIRECTORY).is_intact


def test_a_flip_in_what_was_synced_is_no_torn_tail() -> None:
    files = files_of(is_closed=False)
    data = bytearray(files[SEGMENT])
    data[-1] ^= 1
    log = open_log(disk_with({**files, SEGMENT: bytes(data)}), segment_bytes=SEGMENT_BYTES)
    (damaged,) = log.recovery.damaged_batches
    assert str(damaged.records).startswith(f"offsets [{COUNT - 1}, {COUNT}) of range")
    assert log.recovery.torn_tail is None


def test_damage_to_the_mark_takes_nothing() -> None:
    files = files_of()
    marks = [path for path in files if "high-water" in path.name]
    assert marks
    for path in marks:
        for at in range(len(files[path])):
            data = bytearray(files[path])
            data[at] ^= 255
            for damaged in (bytes(data), files[path][:at]):
                log = open_log(disk_with({**files, path: damaged}), segment_bytes=SEGMENT_BYTES)
                assert len(read(log, KEY)) == COUNT
                log.close()


def test_the_older_of_both_counts_where_the_newer_is_damaged() -> None:
    disk = FaultyDisk()
    disk.make_directory(DIRECTORY)
    keeper = HighWaterKeeper(disk, DIRECTORY, None, 0)
    for end in (100, 200, 300):
        keeper.on_written({}, end)
        keeper.on_synced()
        keeper.note()
        assert not keeper.is_due
        keeper.note()
    assert read_high_water(disk, DIRECTORY) == (HighWater(300, 0, ()), 3)
    disk.names[slot_path(DIRECTORY, 2)].cached[40] ^= 1
    assert read_high_water(disk, DIRECTORY) == (HighWater(200, 0, ()), 2)
    disk.names[slot_path(DIRECTORY, 1)].cached[40] ^= 1
    assert read_high_water(disk, DIRECTORY) == (None, 0)


def test_a_note_that_is_shorter_than_the_one_before_has_its_own_tails() -> None:
    disk = FaultyDisk()
    disk.make_directory(DIRECTORY)
    keeper = HighWaterKeeper(disk, DIRECTORY, None, 0)
    dated = [LoggedRange(number, 0, 0, 5, created_at_ms=7) for number in range(4)]
    for end, ranges in ((100, dated), (200, dated[:1]), (300, dated[:2]), (400, [])):
        keeper.on_segment(end - 1, end, {each.key: each for each in ranges})
        keeper.note()
        mark, _ = read_high_water(disk, DIRECTORY)
        assert mark == HighWater(end, end - 1, tuple(ranges))
        assert [each.created_at_ms for each in mark.tails or ()] == [7] * len(ranges)


def test_unsynced_entries_do_not_move_the_mark() -> None:
    disk = FaultyDisk()
    log = filled(disk, is_closed=False)
    end = log.end_position
    log.append([batch(COUNT, 1, b"later", KEY)], is_durable=False)
    log.high_water.note()
    mark, _ = read_high_water(disk, DIRECTORY)
    assert mark is not None
    assert mark.position == log.high_water.position == end
    assert mark.tails is not None
    assert LoggedRange(*KEY, 0, COUNT) in mark.tails
    log.sync()
    log.high_water.note()
    mark, _ = read_high_water(disk, DIRECTORY)
    assert mark is not None
    assert mark.position == log.end_position
    assert mark.tails is not None
    assert LoggedRange(*KEY, 0, COUNT + 1) in mark.tails


def test_an_id_stays(caplog: pytest.LogCaptureFixture) -> None:
    disk = FaultyDisk()
    log = filled(disk, is_closed=False)
    assert log.high_water.log_id == ""
    log.high_water.ensure_id()
    log_id = log.high_water.log_id
    log.high_water.ensure_id()
    assert len(log_id) == 32
    assert log.high_water.log_id == log_id
    log.close()
    assert open_log(disk).high_water.log_id == log_id


def test_a_state_that_is_lost_is_restored() -> None:
    """A stream that was deleted stays so, also if the entry that said it is lost."""
    disk = FaultyDisk()
    log = filled(disk, is_closed=False)
    end = log.end_position
    log.append([Entry(EntryKind.STREAM_DELETED, KEY[0], 0, 0, 0)])
    log.close()
    log = open_log(cut_at(contents(disk), end), segment_bytes=SEGMENT_BYTES)
    found = log.maybe_range(KEY)
    assert found is not None
    assert found.state is RangeState.DELETED
