"""The open log: groups, segments, the lock, and death by the first failed write.

Power cuts, kills and failures of the disk are in tests/property/test_log_model.py.
"""

from __future__ import annotations

import errno
import itertools

import pytest

from sbp_core.errors import ConfigurationError, LogCorruptionError, LogError, LogWriteError, Outcome
from sbp_core.log.disk import TEMPORARY_SUFFIX
from sbp_core.log.entry import COMMIT_BYTES, Entry
from sbp_core.log.index_file import index_path
from sbp_core.log.readable_log import LogState
from sbp_core.log.segment import Segment, read_segment
from sbp_core.log.segment_scan import read_snapshot
from sbp_core.log.states.state_snapshot import encode_states
from sbp_core.record_sizes import LARGEST
from sbp_core.segment_format import (
    ENTRY_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    EntryKind,
    segment_path,
)
from tests.support.disk import FaultyDisk
from tests.support.log import (
    DIRECTORY,
    batch,
    created,
    entries,
    logged,
    note,
    open_log,
    segment_bases,
)

FIRST_GROUP = SEGMENT_HEADER_BYTES + COMMIT_BYTES + ENTRY_HEADER_BYTES
"""Where the first group of a log's first segment begins: behind an empty snapshot."""


def recovered(disk: FaultyDisk) -> list[Entry]:
    disk.kill_process()
    open_log(disk).close()
    return entries(disk)


def test_a_group_is_one_write_and_one_sync() -> None:
    disk = FaultyDisk()
    with open_log(disk) as log:
        before = disk.calls.copy()
        locations = log.append([note(1), note(2), note(3)]).locations
        assert disk.calls - before == {"pwritev": 1, "fdatasync": 1}
    assert locations[0].position == FIRST_GROUP + COMMIT_BYTES
    assert [at.position for at in locations[1:]] == [at.end for at in locations[:-1]]


def test_groups_never_span_segments_and_each_segment_begins_with_all_ranges() -> None:
    disk = FaultyDisk()
    notes = [note(number, 300) for number in range(7)]
    with open_log(disk, segment_bytes=1200) as log:
        for each in notes:
            log.append([each])
        big = log.append([note(50, 900), note(51, 900)])  # more than a segment: one of its own
        after = log.append([note(52)])
        bases = segment_bases(disk)
        assert len(bases) == 6
        for before, base in itertools.pairwise(bases):
            assert len(disk.names[segment_path(DIRECTORY, before)].cached) == base - before
        for base, first in ((bases[4], big), (bases[5], after)):
            snapshot = read_snapshot(log.lookup.views.view(segment_at(disk, base))).ranges
            assert [each.stream_id for each in snapshot] == sorted(
                entry.stream_id for entry, at in logged(disk) if at.position < base
            )
            room = ENTRY_HEADER_BYTES + len(encode_states(snapshot))
            group_position = base + SEGMENT_HEADER_BYTES + COMMIT_BYTES + room
            assert first.locations[0].position == group_position + COMMIT_BYTES
    assert recovered(disk) == [*notes, note(50, 900), note(51, 900), note(52)]


def segment_at(disk: FaultyDisk, base: int) -> Segment:
    return read_segment(disk.open(segment_path(DIRECTORY, base), is_writable=False), base)


def test_limits_are_checked_before_anything_is_written() -> None:
    disk = FaultyDisk()
    with open_log(disk) as log:
        writes, end = disk.calls["pwritev"], log.end_position
        body = bytes(LARGEST.frame_bytes - ENTRY_HEADER_BYTES + 1)
        with pytest.raises(LogError, match="entry of 75497473 bytes is over the limit"):
            log.append([Entry(EntryKind.BATCH, 1, 0, 0, 1, body)])
        largest = Entry(EntryKind.RANGE_CREATED, 1, 0, 0, 1, body[:-1])
        with pytest.raises(LogError, match="split it"):
            log.append([largest] * 2)
        with pytest.raises(AssertionError):
            log.append([Entry(EntryKind.COMMIT, 0, 0, 0, 0)])
        with pytest.raises(AssertionError):
            log.append([Entry(EntryKind.SNAPSHOT, 0, 0, 0, 0)])
        with pytest.raises(LogCorruptionError, match="expected at least 1 record at offset 5"):
            log.append([created(1, 0, 5), batch(4)])
        assert log.ranges() == []
        assert (disk.calls["pwritev"], log.end_position) == (writes, end)
        location = log.append([largest]).locations[0]
        assert log.state is LogState.OPEN
        assert location.length == LARGEST.frame_bytes
    with pytest.raises(ConfigurationError, match="segment_bytes is 0"):
        open_log(FaultyDisk(), segment_bytes=0)


@pytest.mark.parametrize(
    ("operation", "nth", "what"),
    [
        ("create", 1, "creating"),
        ("fsync", 1, "creating"),
        ("fsync_dir", 1, "creating"),
        ("pwritev", 3, "writing"),
        ("fdatasync", 1, "syncing"),
    ],
)
def test_a_roll_that_fails_did_not_apply_the_group(operation: str, nth: int, what: str) -> None:
    disk = FaultyDisk()
    log = open_log(disk, segment_bytes=300)
    log.append([note(1, 100)])
    disk.fail(operation, nth, errno.ENOSPC)  # the second write is that of the index
    with pytest.raises(LogWriteError, match=rf"{what} .*\.log failed.*ENOSPC") as caught:
        log.append([note(2, 100)])
    assert caught.value.outcome is Outcome.NOT_APPLIED
    assert log.state is LogState.FAILED
    assert recovered(disk) == [note(1, 100)]


@pytest.mark.parametrize(("operation", "nth"), [("create", 2), ("pwritev", 2), ("replace", 1)])
def test_an_index_that_cannot_be_written_costs_nothing_but_itself(operation: str, nth: int) -> None:
    disk = FaultyDisk()
    log = open_log(disk, segment_bytes=300)
    log.append([note(1, 100)])
    disk.fail(operation, nth, errno.ENOSPC)  # the first file is the segment
    log.append([note(2, 100)])
    assert disk.injected == 1
    assert index_path(DIRECTORY, 0) not in disk.names
    is_left_over = any(path.suffix == TEMPORARY_SUFFIX for path in disk.names)
    assert is_left_over is (operation == "replace"), "on a full disk it must not keep the space"
    assert recovered(disk) == [note(1, 100), note(2, 100)]


def test_an_interrupted_write_is_the_end_too() -> None:
    disk = FaultyDisk()
    log = open_log(disk)
    disk.interrupt("fdatasync")
    with pytest.raises(KeyboardInterrupt):
        log.append([note(1)])
    with pytest.raises(LogWriteError, match="interrupted"):
        log.append([note(2)])


def test_one_log_at_a_time() -> None:
    disk = FaultyDisk()
    log = open_log(disk)
    with pytest.raises(LogError, match=r"the log in /log is in use: stop the process"):
        open_log(disk)
    log.append([note(1)])
    log.close()
    open_log(disk).close()


def test_the_lock_is_given_back_when_opening_fails() -> None:
    disk = FaultyDisk()
    open_log(disk).append([note(1)])
    disk.kill_process()
    for operation in ("open", "pread"):
        disk.fail(operation, 1, errno.EIO)
        with pytest.raises(LogError):
            open_log(disk)
    assert recovered(disk) == [note(1)]


def test_closed_is_closed() -> None:
    log = open_log(FaultyDisk())
    log.close()
    log.close()
    with pytest.raises(LogError, match="closed"):
        log.append([note(1)])
    with pytest.raises(LogError, match="closed"):
        next(log.batches_from((1, 0), 0))
    with pytest.raises(LogError, match="closed"):
        log.maybe_since((1, 0), 0, 0)


def test_closing_makes_the_last_group_provable_once() -> None:
    disk = FaultyDisk()
    log = open_log(disk)
    log.append([note(1)])
    end = log.end_position
    for _ in range(3):
        log.close()
        log = open_log(disk)
        assert log.end_position == end + COMMIT_BYTES
        assert log.recovery.durable_upto == end
        assert log.recovery.entry_count == 1
    log.append([])
    assert log.end_position == end + 2 * COMMIT_BYTES
