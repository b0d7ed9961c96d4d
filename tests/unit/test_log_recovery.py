"""Opening a log: every cut and every flipped octet ends in the right one of two ways."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from faulty_disk import FaultyDisk, Inode

from sbp_core.errors import LogCorruptionError, LogError, LogWriteError
from sbp_core.limits import LOG_SCAN_BYTES
from sbp_core.log.entry import (
    COMMIT_BYTES,
    COMMIT_MARKER,
    Entry,
    EntryKind,
    Location,
    commit_entry,
    encode_entry,
)
from sbp_core.log.log import Log
from sbp_core.log.recovery import maybe_find_proof
from sbp_core.log.segment import SEGMENT_HEADER_BYTES, encode_segment_header, segment_path

DIRECTORY = Path("/log")
FIRST = segment_path(DIRECTORY, 0)


def batch(number: int, size: int = 20) -> Entry:
    return Entry(EntryKind.BATCH, number, 0, number * 10, 10, bytes([number]) * size)


def disk_with(files: dict[Path, bytes]) -> FaultyDisk:
    disk = FaultyDisk()
    for path, data in files.items():
        inode = Inode()
        inode.cached, inode.durable = bytearray(data), bytearray(data)
        disk.names[path] = disk.durable_names[path] = inode
    return disk


def contents(disk: FaultyDisk) -> dict[Path, bytes]:
    return {path: bytes(inode.cached) for path, inode in disk.names.items()}


def open_log(disk: FaultyDisk, segment_bytes: int = 10_000) -> tuple[Log, list[int]]:
    found: list[int] = []

    def on_entry(entry: Entry, location: Location) -> None:
        assert entry == batch(entry.stream_id, len(entry.body))
        found.append(entry.stream_id)

    log = Log.open(DIRECTORY, on_entry=on_entry, disk=disk, segment_bytes=segment_bytes)
    return log, found


def written(
    groups: list[list[Entry]], *, is_clean: bool = False, segment_bytes: int = 10_000
) -> tuple[dict[Path, bytes], list[Location]]:
    disk = FaultyDisk()
    log, _ = open_log(disk, segment_bytes)
    locations = [location for group in groups for location in log.append(group)]
    if is_clean:
        log.close()
    return contents(disk), locations


def test_every_cut_of_the_last_group_keeps_the_longest_valid_prefix() -> None:
    files, locations = written([[batch(0)], [batch(1), batch(2), batch(3)]])
    data = files[FIRST]
    boundaries = [locations[0].end, *(at.position for at in locations[1:]), len(data)]
    for size in range(locations[0].end, len(data)):
        disk = disk_with({FIRST: data[:size]})
        log, found = open_log(disk)
        whole = max(end for end in boundaries if end <= size)
        assert found == [n for n, at in enumerate(locations) if at.end <= size]
        torn = log.recovery.torn_tail
        if whole == size:
            assert torn is None
        else:
            assert torn is not None
            assert (torn.path, torn.position, torn.cut_bytes) == (FIRST, whole, size - whole)
            assert "octets" in torn.reason
            assert disk.names[FIRST].durable == data[:whole]
            assert log.recovery.segment_bases == (0, whole)
        log.append([batch(9)])
        disk.lose_power(lambda n: 0)
        assert open_log(disk)[1] == [*found, 9]


def test_every_cut_of_the_last_three_groups_keeps_a_prefix_of_them() -> None:
    files, locations = written([[batch(0)], [batch(1)], [batch(2)], [batch(3)]])
    data = files[FIRST]
    for size in range(locations[0].end, len(data)):
        _, found = open_log(disk_with({FIRST: data[:size]}))
        assert found == [n for n, at in enumerate(locations) if at.end <= size]


def test_every_flipped_octet_before_the_last_group_is_corruption_and_changes_nothing() -> None:
    files, _ = written([[batch(0), batch(1)], [batch(2)], [batch(3)]])
    data = files[FIRST]
    last_group = len(data) - COMMIT_BYTES - batch(3).length
    for position in range(last_group):
        for mask in (0x01, 0x80, 0xFF):
            damaged = bytearray(data)
            damaged[position] ^= mask
            disk = disk_with({FIRST: bytes(damaged)})
            with pytest.raises(LogCorruptionError, match=r"0\.log is damaged at log pos.*Restore"):
                open_log(disk)
            assert contents(disk) == {FIRST: bytes(damaged)}


def test_after_a_clean_end_flips_in_the_last_group_are_corruption_too() -> None:
    files, locations = written([[batch(0)], [batch(1)]], is_clean=True)
    for position in range(SEGMENT_HEADER_BYTES, locations[-1].end):
        damaged = bytearray(files[FIRST])
        damaged[position] ^= 4
        with pytest.raises(LogCorruptionError, match="proves that it was synced"):
            open_log(disk_with({FIRST: bytes(damaged)}))


def test_a_flip_in_the_unproven_last_group_is_reported_as_a_cut() -> None:
    files, locations = written([[batch(0)], [batch(1), batch(2)]])
    damaged = bytearray(files[FIRST])
    damaged[locations[1].position + 30] ^= 1
    log, found = open_log(disk_with({FIRST: bytes(damaged)}))
    assert found == [0], "what is behind the damage goes too"
    torn = log.recovery.torn_tail
    assert torn is not None
    assert torn.position == locations[1].position
    assert torn.cut_bytes == len(damaged) - locations[1].position
    assert "checksum" in torn.reason


@pytest.mark.parametrize("size", [1, 7, 8, 33, 5000])
def test_a_zero_filled_tail_is_cut(size: int) -> None:
    files, _ = written([[batch(0)], [batch(1)]])
    log, found = open_log(disk_with({FIRST: files[FIRST] + bytes(size)}))
    assert found == [0, 1]
    torn = log.recovery.torn_tail
    assert torn is not None
    assert (torn.position, torn.cut_bytes) == (len(files[FIRST]), size)


def test_zeros_over_proven_entries_are_corruption() -> None:
    files, locations = written([[batch(0)], [batch(1)], [batch(2)]])
    data = bytearray(files[FIRST])
    data[locations[0].position : locations[1].end] = bytes(locations[1].end - locations[0].position)
    with pytest.raises(LogCorruptionError, match=f"position {locations[0].position}"):
        open_log(disk_with({FIRST: bytes(data)}))


def test_stale_octets_of_another_place_never_parse() -> None:
    files, locations = written([[batch(0)], [batch(1)], [batch(2)]])
    data = files[FIRST]
    stale = data[locations[0].end : locations[1].end]
    log, found = open_log(disk_with({FIRST: data + stale}))
    assert found == [0, 1, 2]
    assert log.recovery.torn_tail is not None
    # and they prove nothing either: here a stale group stands behind a torn one
    torn = data[: locations[2].end - 1] + b"?" + stale
    log, found = open_log(disk_with({FIRST: torn}))
    assert found == [0, 1]


def test_a_log_quoted_in_a_body_proves_nothing() -> None:
    inner = written([[batch(0)], [batch(1)], [batch(2)]])[0][FIRST]
    forged = b"".join(encode_entry(commit_entry(2**20), 2**20))
    body = inner + forged + COMMIT_MARKER * 5
    disk = FaultyDisk()
    log, _ = open_log(disk)
    location = log.append([Entry(EntryKind.BATCH, 1, 0, 0, 1, body)])[0]
    data = bytearray(contents(disk)[FIRST])
    data[location.position + 9] ^= 1
    log, found = open_log(disk_with({FIRST: bytes(data)}))
    assert found == []
    assert log.recovery.torn_tail is not None


def test_an_impossible_commit_with_a_right_checksum_is_not_believed() -> None:
    data = encode_segment_header(0)
    data += b"".join(encode_entry(commit_entry(2**40), len(data)))
    log, _ = open_log(disk_with({FIRST: data}))
    torn = log.recovery.torn_tail
    assert torn is not None
    assert "durable_upto" in torn.reason


def test_an_entry_of_a_newer_version_is_neither_cut_nor_called_damage() -> None:
    data = encode_segment_header(0)
    newer = Entry(99, 0, 0, 0, 0)  # type: ignore[arg-type]
    data += b"".join(encode_entry(newer, len(data)))
    disk = disk_with({FIRST: data})
    with pytest.raises(LogError, match=r"kind 99.*newer") as caught:
        open_log(disk)
    assert not isinstance(caught.value, LogCorruptionError)
    assert contents(disk) == {FIRST: data}


# Segments.


def three_segments() -> tuple[dict[Path, bytes], list[Location]]:
    files, locations = written(
        [[batch(0)], [batch(1)], [batch(2)], [batch(3)], [batch(4)]], segment_bytes=250
    )
    assert len(files) == 3
    return files, locations


def test_every_flip_in_an_earlier_segment_is_corruption() -> None:
    files, _ = three_segments()
    for path in sorted(files)[:-1]:
        for position in range(len(files[path])):
            damaged = bytearray(files[path])
            damaged[position] ^= 0x20
            disk = disk_with({**files, path: bytes(damaged)})
            with pytest.raises(LogCorruptionError, match=path.name):
                open_log(disk)


def test_every_cut_or_growth_of_an_earlier_segment_is_corruption() -> None:
    files, _ = three_segments()
    for path in sorted(files)[:-1]:
        for data in [files[path][:size] for size in range(len(files[path]))] + [
            files[path] + b"\0"
        ]:
            disk = disk_with({**files, path: data})
            with pytest.raises(LogCorruptionError, match="missing, was cut short or has grown"):
                open_log(disk)
            assert contents(disk)[path] == data


@pytest.mark.parametrize("missing", [0, 1])
def test_a_missing_segment_is_corruption(missing: int) -> None:
    files, _ = three_segments()
    path = sorted(files)[missing]
    disk = disk_with({p: data for p, data in files.items() if p != path})
    with pytest.raises(LogCorruptionError, match=f"position {int(path.stem)}.*a file is missing"):
        open_log(disk)


def test_a_renamed_segment_is_refused() -> None:
    files, _ = three_segments()
    first, second, third = sorted(files)
    size = min(len(files[second]), len(files[third]))
    assert len(files[second]) == len(files[first]) > size
    with pytest.raises(LogError, match="belongs to 0: the file was renamed"):
        open_log(disk_with({first: files[first], second: files[first]}))


def test_other_files_are_left_alone() -> None:
    files, _ = three_segments()
    others = {DIRECTORY / name: b"?" for name in ("1.log", f"{0:020d}.log.bak", "lost+found", "x")}
    disk = disk_with(files | others)
    log, found = open_log(disk)
    assert found == [0, 1, 2, 3, 4]
    assert log.recovery.segment_bases == tuple(sorted(int(path.stem) for path in files))
    assert contents(disk) == files | others


@pytest.mark.parametrize("size", range(SEGMENT_HEADER_BYTES))
def test_a_crash_while_rolling_leaves_an_empty_or_torn_header(size: int) -> None:
    files, locations = three_segments()
    base = locations[-1].end
    path = segment_path(DIRECTORY, base)
    for header in (encode_segment_header(base)[:size], bytes(size + 1)):
        disk = disk_with({**files, path: header})
        log, found = open_log(disk)
        assert found == [0, 1, 2, 3, 4]
        torn = log.recovery.torn_tail
        assert torn is not None
        assert (torn.path, torn.position, torn.cut_bytes) == (path, base, len(header))
        assert log.append([batch(5)])[0].position == base + SEGMENT_HEADER_BYTES + COMMIT_BYTES
        disk.lose_power(lambda n: 0)
        assert open_log(disk)[1] == [0, 1, 2, 3, 4, 5]


def test_the_name_of_a_segment_found_at_recovery_is_made_durable() -> None:
    files, locations = three_segments()
    disk = disk_with(files)
    path = segment_path(DIRECTORY, locations[-1].end)
    disk.create(path)  # and then the process was killed, before it could sync the directory
    disk.kill_process()
    log, _ = open_log(disk)
    log.append([batch(5)])
    disk.lose_power(lambda n: 0)
    assert open_log(disk)[1] == [0, 1, 2, 3, 4, 5]


def test_a_whole_header_and_nothing_else_is_fine() -> None:
    log, found = open_log(disk_with({FIRST: encode_segment_header(0)}))
    assert (found, log.recovery.torn_tail) == ([], None)


def test_a_file_that_is_no_segment_is_never_overwritten() -> None:
    data = b"somebody's diary, which happens to have the name of a segment"
    disk = disk_with({FIRST: data})
    with pytest.raises(LogCorruptionError, match="or the file is no segment"):
        open_log(disk)
    assert contents(disk) == {FIRST: data}


def test_another_format_version_is_refused_and_kept() -> None:
    import struct

    from sbp_core.wire.checksum import crc32c

    fields = struct.pack(">8sIQ", b"SBPLOG\r\n", 2, 0)
    data = fields + struct.pack(">I", crc32c((fields,)))
    disk = disk_with({FIRST: data})
    with pytest.raises(LogError, match="format version 2, this version reads 1"):
        open_log(disk)
    assert contents(disk) == {FIRST: data}


# Bounded memory, big files, a failing disk.


def test_entries_and_proofs_are_found_across_reads() -> None:
    size = LOG_SCAN_BYTES // 2 - 4000
    groups = [[batch(number, size + number)] for number in range(1, 8)]
    files, locations = written(groups, segment_bytes=2**30)
    log, found = open_log(disk_with(files), 2**30)
    assert found == list(range(1, 8))
    log.close()
    damaged = bytearray(files[FIRST])
    damaged[locations[0].position] ^= 1  # its length: nothing behind it can be walked to
    with pytest.raises(LogCorruptionError, match=f"commit at position {locations[0].end} proves"):
        open_log(disk_with({FIRST: bytes(damaged)}))


@pytest.mark.parametrize("shift", range(-COMMIT_BYTES - 1, COMMIT_BYTES + 1))
def test_a_proof_on_the_border_of_two_reads_is_found(shift: int) -> None:
    position = LOG_SCAN_BYTES + shift
    commit = b"".join(encode_entry(commit_entry(position), position))
    disk = disk_with({FIRST: bytes(position) + commit + bytes(5)})
    assert maybe_find_proof(disk.open(FIRST, is_writable=False), 0, 0) == position
    assert maybe_find_proof(disk.open(FIRST, is_writable=False), 0, position) is None


def test_no_read_is_larger_than_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    from faulty_disk import FaultyFile

    files, _ = written([[batch(1, LOG_SCAN_BYTES)], [batch(2, 2 * LOG_SCAN_BYTES)]])
    lengths: list[int] = []
    real = FaultyFile.pread

    def pread(self: FaultyFile, length: int, position: int) -> bytes:
        lengths.append(length)
        return real(self, length, position)

    monkeypatch.setattr(FaultyFile, "pread", pread)
    assert open_log(disk_with(files))[1] == [1, 2]
    assert max(lengths) == batch(2, 2 * LOG_SCAN_BYTES).length


@pytest.mark.parametrize(
    ("operation", "error"),
    [
        ("list_names", LogError),
        ("make_directory", LogError),
        ("lock_directory", LogError),
        ("open", LogError),
        ("size", LogError),
        ("pread", LogError),
        ("fdatasync", LogWriteError),
        ("drop_cache", LogWriteError),
        ("fsync_dir", LogWriteError),
        ("truncate", LogWriteError),
        ("fsync", LogWriteError),
        ("create", LogWriteError),
    ],
)
def test_a_disk_that_fails_at_recovery(operation: str, error: type[LogError]) -> None:
    files, _ = written([[batch(0)], [batch(1)]])
    torn = files[FIRST][:-1]
    disk = disk_with({FIRST: torn})
    disk.fail(operation, 1, errno.EIO)
    with pytest.raises(error, match=r"/log.* failed: Input/output error \(EIO\)") as caught:
        open_log(disk)
    assert type(caught.value) is error
    assert disk.injected == 1
    assert open_log(disk)[1] == [0]
