"""Opening a log: what proves that bytes were synced, bounded reads, and a disk that fails.

Every cut and every flipped byte of the last entries: test_log_last_entries.py.
"""

from __future__ import annotations

import errno

import pytest

from sbp_core.errors import LogCorruptionError, LogError, LogWriteError
from sbp_core.limits import LOG_SCAN_BYTES
from sbp_core.log.entry import COMMIT_BYTES, COMMIT_MARKER, Commit, Entry, encode_entry
from sbp_core.log.segment_scan import maybe_find_proof
from sbp_core.segment_format import SegmentHeader, encode_segment_header, segment_path
from tests.support.disk import FaultyDisk
from tests.support.log import (
    DIRECTORY,
    batch,
    contents,
    created,
    disk_with,
    entries,
    note,
    open_log,
    reopened,
    written,
)

FIRST = segment_path(DIRECTORY, 0)
HEADER = encode_segment_header(SegmentHeader(0))
"""Buffer of a snapshot that would be empty, and can be done without."""


def test_a_log_quoted_in_a_body_proves_nothing() -> None:
    inner = written([[note(0)], [note(1)], [note(2)]])[0][FIRST]
    forged = b"".join(encode_entry(Commit(2**20, 0).to_entry(), 2**20))
    body = inner + forged + COMMIT_MARKER * 5
    disk = FaultyDisk()
    location = open_log(disk).append([created(), batch(0, 1, body)]).locations[1]
    data = bytearray(contents(disk)[FIRST])
    data[location.position + 9] ^= 1
    disk = disk_with({FIRST: bytes(data)})
    assert open_log(disk).recovery.torn_tail is not None
    assert entries(disk) == [created()]


def test_an_impossible_commit_with_a_right_checksum_is_not_believed() -> None:
    data = HEADER
    data += b"".join(encode_entry(Commit(2**40, 0).to_entry(), len(data)))
    log, _ = reopened(disk_with({FIRST: data}))
    torn = log.recovery.torn_tail
    assert torn is not None
    assert "durable_upto" in torn.reason


def test_an_entry_of_a_newer_version_is_neither_cut_nor_called_damage() -> None:
    data = HEADER
    newer = Entry(99, 0, 0, 0, 0)  # type: ignore[arg-type]
    data += b"".join(encode_entry(newer, len(data)))
    disk = disk_with({FIRST: data})
    with pytest.raises(LogError, match=r"kind 99.*newer") as caught:
        open_log(disk)
    assert not isinstance(caught.value, LogCorruptionError)
    assert contents(disk) == {FIRST: data}


# Bounded memory, big files, a failing disk.


def test_entries_and_proofs_are_found_across_reads() -> None:
    size = LOG_SCAN_BYTES // 2 - 4000
    groups = [[note(number, size + number)] for number in range(1, 8)]
    files, locations = written(groups, segment_bytes=2**30)
    log, found = reopened(disk_with(files), 2**30)
    assert found == list(range(1, 8))
    log.close()
    damaged = bytearray(files[FIRST])
    damaged[locations[0].position] ^= 1  # its length: nothing behind it can be walked to
    with pytest.raises(LogCorruptionError, match=f"commit at position {locations[0].end} proves"):
        reopened(disk_with({FIRST: bytes(damaged)}))


@pytest.mark.parametrize("shift", range(-COMMIT_BYTES - 1, COMMIT_BYTES + 1))
def test_a_proof_on_the_border_of_two_reads_is_found(shift: int) -> None:
    position = LOG_SCAN_BYTES + shift
    commit = b"".join(encode_entry(Commit(position, 0).to_entry(), position))
    disk = disk_with({FIRST: bytes(position) + commit + bytes(5)})
    assert maybe_find_proof(disk.open(FIRST, is_writable=False), 0, 0) == position
    assert maybe_find_proof(disk.open(FIRST, is_writable=False), 0, position) is None


def test_no_read_is_larger_than_needed() -> None:
    files, _ = written([[note(1, LOG_SCAN_BYTES)], [note(2, 2 * LOG_SCAN_BYTES)]])
    disk = disk_with(files)
    assert reopened(disk)[1] == [1, 2]
    assert disk.longest_read == note(2, 2 * LOG_SCAN_BYTES).length


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
    files, _ = written([[note(0)], [note(1)]])
    torn = files[FIRST][:-1]
    disk = disk_with({FIRST: torn})
    disk.fail(operation, 1, errno.EIO)
    with pytest.raises(error, match=r"/log.* failed: Input/output error \(EIO\)") as caught:
        open_log(disk)
    assert type(caught.value) is error
    assert disk.injected == 1
    assert reopened(disk)[1] == [0]
