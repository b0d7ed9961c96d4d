"""Opening a log of several segments: gaps, crashes between two segments, other versions."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from sbp_core.errors import LogCorruptionError, LogError
from sbp_core.log.boundaries import write_start
from sbp_core.log.entry import COMMIT_BYTES, Location
from sbp_core.log.segment_scan import read_snapshot
from sbp_core.log.states.range_states import RangeStates
from sbp_core.log.states.state_snapshot import encode_snapshot
from sbp_core.segment_format import (
    ENTRY_HEADER_BYTES,
    ENTRY_PREFIX_BYTES,
    SEGMENT_HEADER_BYTES,
    SegmentHeader,
    encode_segment_header,
    segment_path,
)
from sbp_core.wire.checksum import crc32c
from tests.support.disk import FaultyDisk
from tests.support.log import (
    DIRECTORY,
    batch,
    contents,
    created,
    disk_with,
    note,
    open_log,
    reopened,
    written,
)

FIRST = segment_path(DIRECTORY, 0)
HEADER_PLACES = range(SEGMENT_HEADER_BYTES)


def three_segments(*, is_clean: bool = False) -> tuple[dict[Path, bytes], list[Location]]:
    groups = [[note(0)], [note(1)], [note(2)], [note(3)], [note(4)]]
    files, locations = written(groups, segment_bytes=500, is_clean=is_clean)
    assert len(segments_of(files)) == 3
    return files, locations


def segments_of(files: dict[Path, bytes]) -> list[Path]:
    return sorted(path for path in files if path.suffix == ".log")


def test_an_earlier_segment_with_a_damaged_header_or_another_length_is_corruption() -> None:
    files, _ = three_segments()
    for path in segments_of(files)[:-1]:
        whole = files[path]
        spoilt = [whole[:at] + bytes([whole[at] ^ 0x20]) + whole[at + 1 :] for at in HEADER_PLACES]
        spoilt += [whole[:size] for size in range(len(whole))]
        for data in (*spoilt, whole + b"\0"):
            disk = disk_with({**files, path: data})
            with pytest.raises(LogCorruptionError, match=r"\.log is damaged at log position"):
                open_log(disk)
            assert contents(disk)[path] == data


def test_the_bytes_of_earlier_segments_are_not_read() -> None:
    files, _ = three_segments()
    first, second, third = segments_of(files)
    blank = {
        path: files[path][:SEGMENT_HEADER_BYTES] + bytes(len(files[path]) - SEGMENT_HEADER_BYTES)
        for path in (first, second)
    }
    log = open_log(disk_with(blank | {third: files[third]}))
    assert [each.stream_id for each in log.ranges()] == [0, 1, 2, 3, 4]
    assert log.recovery.entry_count == 1


@pytest.mark.parametrize("missing", [[0], [1], [2], [1, 2]])
def test_a_missing_segment_is_corruption(missing: list[int]) -> None:
    files, _ = three_segments()
    gone = [segments_of(files)[number] for number in missing]
    left = {path: data for path, data in files.items() if path not in gone}
    disk = disk_with(left)
    with pytest.raises(LogCorruptionError, match=f"position {int(gone[0].stem)}.* is missing"):
        open_log(disk)
    assert contents(disk) == left


def test_a_renamed_segment_is_refused() -> None:
    files, _ = three_segments()
    first, second, third = segments_of(files)
    for renamed in ({second: files[first], third: files[third]}, {second: files[first]}):
        with pytest.raises(LogError, match="belongs to 0: the file was renamed"):
            open_log(disk_with({first: files[first]} | renamed))


def test_other_files_are_left_alone() -> None:
    files, _ = three_segments()
    others = {DIRECTORY / name: b"?" for name in ("1.log", f"{0:020d}.log.bak", "lost+found", "x")}
    disk = disk_with(files | others)
    log, found = reopened(disk)
    assert found == [0, 1, 2, 3, 4]
    assert log.recovery.segment_bases == tuple(int(path.stem) for path in segments_of(files))
    assert contents(disk) == files | others


def test_a_torn_snapshot_behind_a_damaged_segment_is_refused_and_kept() -> None:
    files, locations = three_segments()
    last = segments_of(files)[-1]
    damaged = bytearray(files[last])
    damaged[-60] ^= 1
    path = segment_path(DIRECTORY, locations[-1].end)
    header = encode_segment_header(SegmentHeader(locations[-1].end))
    disk = disk_with({**files, last: bytes(damaged), path: header + b"torn"})
    before = contents(disk)
    with pytest.raises(LogCorruptionError, match=last.name):
        open_log(disk)
    assert contents(disk) == before


@pytest.mark.parametrize("has_indexes", [True, False])
@pytest.mark.parametrize("chunk", [2, 1000])
def test_a_damaged_snapshot_is_made_good_by_the_segment_before(
    has_indexes: bool, chunk: int
) -> None:
    """One with an intact header: it is known then that nothing else was there."""
    groups = [[note(number)] for number in range(5)]
    files, _ = written(groups, segment_bytes=500, ranges_per_entry=chunk, is_clean=True)
    last = segments_of(files)[-1]
    log = open_log(disk_with(files))
    states = log.ranges()
    ranges = RangeStates(read_snapshot(log.extent.active).ranges)
    snapshot = encode_snapshot(ranges, ranges_per_entry=chunk)
    assert (len(snapshot) > 1) is (chunk == 2)
    at = SEGMENT_HEADER_BYTES + COMMIT_BYTES
    for entry in snapshot:
        for position in (at + ENTRY_HEADER_BYTES, at + entry.length - 1):
            damaged = bytearray(files[last])
            damaged[position] ^= 1
            left = {**files, last: bytes(damaged)}
            if not has_indexes:
                left = {path: data for path, data in left.items() if path.suffix == ".log"}
            disk = disk_with(left)
            log = open_log(disk)
            assert log.ranges() == states
            damage = log.recovery.damaged_snapshot
            assert damage is not None
            assert (damage.path, damage.position) == (last, int(last.stem) + at)
            assert "checksum" in damage.reason
            assert contents(disk)[last] == damaged
            log.append([note(5)])
            disk.lose_power(lambda n: 0)
            log = open_log(disk)
            assert log.recovery.damaged_snapshot is None
            assert log.ranges()[:-1] == states
        at += entry.length


@pytest.mark.parametrize("has_indexes", [True, False])
def test_batches_before_a_damaged_snapshot_are_found(has_indexes: bool) -> None:
    groups = [[created(), batch(0)], [batch(1)], [batch(2)], [batch(3)]]
    files, _ = written(groups, is_clean=True, segment_bytes=300)
    for path in segments_of(files)[1:]:
        damaged = bytearray(files[path])
        damaged[SEGMENT_HEADER_BYTES + COMMIT_BYTES + ENTRY_HEADER_BYTES] ^= 1
        left = {**files, path: bytes(damaged)}
        if not has_indexes:
            left = {each: data for each, data in left.items() if each.suffix == ".log"}
        log = open_log(disk_with(left))
        slots = list(log.batches_from((1, 0), 0))
        assert [slot.base_offset for slot in slots] == [0, 1, 2, 3]


def test_a_damaged_snapshot_whose_header_is_damaged_too_is_refused() -> None:
    files, _ = three_segments(is_clean=True)
    last = segments_of(files)[-1]
    start = SEGMENT_HEADER_BYTES + COMMIT_BYTES
    for position in range(start, start + ENTRY_PREFIX_BYTES - 4):
        damaged = bytearray(files[last])
        damaged[position] ^= 1
        with pytest.raises(LogCorruptionError, match=last.name):
            open_log(disk_with({**files, last: bytes(damaged)}))


def test_a_file_that_is_no_segment_is_never_overwritten() -> None:
    data = b"somebody's diary, which happens to have the name of a segment"
    disk = disk_with({FIRST: data})
    with pytest.raises(LogCorruptionError, match="or the file is no segment"):
        open_log(disk)
    assert contents(disk) == {FIRST: data}


@pytest.mark.parametrize("rest", [b"", b"entries of another layout"])
def test_another_format_version_is_refused_and_kept(rest: bytes) -> None:
    fields = struct.pack(">8sIQ", b"SBPLOG\r\n", 1, 0)
    data = fields + struct.pack(">I", crc32c((fields,))) + rest
    disk = disk_with({FIRST: data})
    with pytest.raises(LogError, match="format version 1, this version reads 2"):
        open_log(disk)
    assert contents(disk) == {FIRST: data}


def test_a_compacted_segment_is_never_the_last() -> None:
    files, _ = three_segments()
    first, second, _ = segments_of(files)
    compacted = encode_segment_header(SegmentHeader(0, generation=1, end=int(second.stem)))
    data = compacted + files[first][SEGMENT_HEADER_BYTES:-50]
    open_log(disk_with({**files, first: data}))
    disk = disk_with({first: data})
    with pytest.raises(LogCorruptionError, match=f"position {int(second.stem)}.*are missing"):
        open_log(disk)
    assert contents(disk) == {first: data}


# A log that does not start at 0.


def test_segments_before_the_start_are_removed_and_gaps_after_it_are_corruption() -> None:
    files, _ = three_segments()
    _, second, third = segments_of(files)
    disk = disk_with(files)
    write_start(disk, DIRECTORY, int(second.stem))
    disk.create(DIRECTORY / "start.tmp")
    disk.create(third.with_suffix(".idx.tmp"))
    log = open_log(disk)
    assert log.recovery.segment_bases == (int(second.stem), int(third.stem))
    assert [each.stream_id for each in log.ranges()] == [0, 1, 2, 3, 4]
    left = {path.name for path in contents(disk)}
    assert left == {"start", second.name, third.name, f"{second.stem}.idx"}
    log.append([note(5)])
    disk.lose_power(lambda n: 0)
    assert reopened_from(disk, int(second.stem)) == [0, 1, 2, 3, 4, 5]
    for missing in (second, third):
        disk = disk_with({path: data for path, data in files.items() if path != missing})
        write_start(disk, DIRECTORY, int(missing.stem))
        with pytest.raises(LogCorruptionError, match=f"position {int(missing.stem)}.*missing"):
            open_log(disk)


def reopened_from(disk: FaultyDisk, start: int) -> list[int]:
    log = open_log(disk)
    assert log.recovery.segment_bases[0] == start
    return [each.stream_id for each in log.ranges()]


def test_a_damaged_start_is_refused() -> None:
    disk = FaultyDisk()
    open_log(disk).close()
    write_start(disk, DIRECTORY, 0)
    path = DIRECTORY / "start"
    good = contents(disk)
    damaged = [good[path][:size] for size in range(len(good[path]))] + [good[path] + b"\0"]
    for at in range(len(good[path])):
        flipped = bytearray(good[path])
        flipped[at] ^= 1
        damaged.append(bytes(flipped))
    for data in damaged:
        with pytest.raises(LogCorruptionError, match="start is damaged"):
            open_log(disk_with({**good, path: data}))
    open_log(disk_with(good))


def test_the_only_segment_cannot_do_without_its_snapshot_unless_the_log_starts_there() -> None:
    files, _ = three_segments()
    third = segments_of(files)[-1]
    disk = disk_with({third: files[third][:SEGMENT_HEADER_BYTES]})
    write_start(disk, DIRECTORY, int(third.stem))
    with pytest.raises(LogCorruptionError, match="no older segment is left"):
        open_log(disk)
