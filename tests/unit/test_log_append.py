"""The open log: groups, segments, reads, the lock, and death by the first failed write."""

from __future__ import annotations

import errno
import itertools
import random
import threading
from pathlib import Path

import pytest
from faulty_disk import FAILING_OPERATIONS, FaultyDisk

from sbp_core.errors import (
    ConfigurationError,
    LogCorruptionError,
    LogError,
    LogWriteError,
    Outcome,
)
from sbp_core.limits import ENTRY_BYTES_MAX, GROUP_COMMIT_BYTES_MAX, SEGMENT_FILES_OPEN_MAX
from sbp_core.log.disk import OsDisk
from sbp_core.log.entry import COMMIT_BYTES, ENTRY_HEADER_BYTES, Entry, EntryKind, Location
from sbp_core.log.log import Log, LogState
from sbp_core.log.segment import SEGMENT_HEADER_BYTES, segment_path

DIRECTORY = Path("/log")


def batch(number: int, size: int = 40) -> Entry:
    return Entry(EntryKind.BATCH, number, 0, number * 10, 10, bytes([number % 256]) * size)


def open_log(disk: FaultyDisk, found: list[Entry] | None = None, segment_bytes: int = 1000) -> Log:
    def on_entry(entry: Entry, location: Location) -> None:
        assert location.length == entry.length
        if found is not None:
            found.append(
                Entry(
                    entry.kind,
                    entry.stream_id,
                    entry.range_index,
                    entry.base_offset,
                    entry.count,
                    bytes(entry.body),
                )
            )

    return Log.open(DIRECTORY, on_entry=on_entry, disk=disk, segment_bytes=segment_bytes)


def recovered(disk: FaultyDisk) -> list[Entry]:
    disk.kill_process()
    found: list[Entry] = []
    open_log(disk, found).close()
    return found


@pytest.mark.parametrize("is_clean", [True, False])
def test_round_trip_on_a_real_disk(tmp_path: Path, is_clean: bool) -> None:
    directory = tmp_path / "deep" / "log"
    entries = [Entry(kind, 2**62, 7, -1, 2**32 - 1, b"x" * kind) for kind in list(EntryKind)[1:]]
    log = Log.open(directory, on_entry=lambda *_: pytest.fail("new"), disk=OsDisk())
    locations = log.append(entries[:3]) + log.append(entries[3:])
    for entry, location in zip(entries, locations, strict=True):
        assert log.read(location.body_position, location.body_length) == entry.body
        assert log.read_entry(location.position) == entry
        assert log.read_entry(location.position, location.length) == entry
    if is_clean:
        log.close()
    else:
        log._lock.release()  # as the end of the process does
    found: list[tuple[Entry, Location]] = []
    with Log.open(
        directory,
        on_entry=lambda e, at: found.append((log_copy(e), at)),
        disk=OsDisk(),
    ) as again:
        assert found == list(zip(entries, locations, strict=True))
        assert again.recovery.entry_count == len(entries)
        assert again.recovery.torn_tail is None
        assert again.append([entries[0]])[0].position > locations[-1].position


def log_copy(entry: Entry) -> Entry:
    return Entry(
        entry.kind,
        entry.stream_id,
        entry.range_index,
        entry.base_offset,
        entry.count,
        bytes(entry.body),
    )


def test_a_group_is_one_write_and_one_sync() -> None:
    disk = FaultyDisk()
    with open_log(disk) as log:
        before = disk.calls.copy()
        locations = log.append([batch(1), batch(2), batch(3)])
        assert disk.calls - before == {"pwritev": 1, "fdatasync": 1}
    assert locations[0].position == SEGMENT_HEADER_BYTES + COMMIT_BYTES
    assert [at.position for at in locations[1:]] == [at.end for at in locations[:-1]]


def test_groups_never_span_segments() -> None:
    disk = FaultyDisk()
    entries = [batch(number, 300) for number in range(7)]
    with open_log(disk, segment_bytes=1000) as log:
        locations = [log.append([entry])[0] for entry in entries]
        big = log.append([batch(50, 900), batch(51, 900)])  # more than a segment: one of its own
        after = log.append([batch(52)])
        bases = log._extent.bases
        assert len(bases) == 6
        for before, base in itertools.pairwise(bases):
            assert len(disk.names[segment_path(DIRECTORY, before)].cached) == base - before
        assert big[0].position - bases[4] == SEGMENT_HEADER_BYTES + COMMIT_BYTES
        assert after[0].position - bases[5] == SEGMENT_HEADER_BYTES + COMMIT_BYTES
        for entry, location in zip(entries, locations, strict=True):
            assert log.read(location.body_position, location.body_length) == entry.body
    assert recovered(disk) == [*entries, batch(50, 900), batch(51, 900), batch(52)]


def test_a_new_segment_is_durable_before_its_first_group_is_acknowledged() -> None:
    for seed in range(50):
        disk = FaultyDisk()
        log = open_log(disk, segment_bytes=200)
        entries = [batch(number, 100) for number in range(4)]
        for entry in entries:
            log.append([entry])
        disk.lose_power(random.Random(seed).randrange)
        found: list[Entry] = []
        open_log(disk, found)
        assert found == entries


def test_reads_outside_of_what_is_durable_or_over_a_border_are_refused() -> None:
    with open_log(FaultyDisk(), segment_bytes=200) as log:
        first, second = log.append([batch(1, 100)])[0], log.append([batch(2, 100)])[0]
        assert second.position > first.end
        for position, length in [
            (-1, 1),
            (0, -1),
            (first.position, first.length + 1),
            (second.position, second.length + 1),
            (second.end, 1),
            (2**62, 1),
        ]:
            with pytest.raises(LogError, match="not in one segment or not durable"):
                log.read(position, length)
        assert log.read(second.end, 0) == b""
        assert log.end_position == second.end
        with pytest.raises(LogCorruptionError, match=f"log position {first.position + 1}"):
            log.read_entry(first.position + 1)


def test_is_one_segment() -> None:
    with open_log(FaultyDisk(), segment_bytes=200) as log:
        first, second = log.append([batch(1, 100)])[0], log.append([batch(2, 100)])[0]
        base = log._extent.bases[1]
        assert log.is_one_segment(first.position, first.end)
        assert log.is_one_segment(first.position, base)
        assert not log.is_one_segment(first.position, base + 1)
        assert not log.is_one_segment(first.position, second.end)
        assert log.is_one_segment(base, second.end)


def test_rot_is_noticed_by_read_entry() -> None:
    disk = FaultyDisk()
    with open_log(disk) as log:
        location = log.append([batch(1)])[0]
        for position in range(location.position, location.end):
            inode = disk.names[segment_path(DIRECTORY, 0)]
            inode.cached[position] ^= 0x10
            with pytest.raises(LogCorruptionError, match=r"0\.log is damaged at log position"):
                log.read_entry(location.position)
            with pytest.raises(LogCorruptionError, match=r"0\.log is damaged at log position"):
                log.read_entry(location.position, location.length)
            inode.cached[position] ^= 0x10
        assert log.read_entry(location.position) == batch(1)


def test_a_file_that_vanished_or_shrank_under_an_open_log() -> None:
    disk = FaultyDisk()
    log = open_log(disk, segment_bytes=200)
    first, second = log.append([batch(1, 100)])[0], log.append([batch(2, 100)])[0]
    disk.names[segment_path(DIRECTORY, log._extent.bases[1])].truncate(100)
    with pytest.raises(LogCorruptionError, match="shorter"):
        log.read(second.position, second.length)
    del disk.names[segment_path(DIRECTORY, 0)]
    with pytest.raises(LogError, match=r"reading .*0\.log failed: No such file.*ENOENT"):
        log.read(first.position, 1)


def test_limits_are_checked_before_anything_is_written() -> None:
    disk = FaultyDisk()
    with open_log(disk) as log:
        writes, end = disk.calls["pwritev"], log.end_position
        body = bytes(ENTRY_BYTES_MAX - ENTRY_HEADER_BYTES + 1)
        with pytest.raises(LogError, match="entry of 16777217 octets is over the limit"):
            log.append([Entry(EntryKind.BATCH, 1, 0, 0, 1, body)])
        largest = Entry(EntryKind.BATCH, 1, 0, 0, 1, body[:-1])
        with pytest.raises(LogError, match="split it"):
            log.append([largest] * (GROUP_COMMIT_BYTES_MAX // ENTRY_BYTES_MAX) + [batch(1, 0)])
        with pytest.raises(AssertionError):
            log.append([Entry(EntryKind.COMMIT, 0, 0, 0, 0)])
        assert (disk.calls["pwritev"], log.end_position) == (writes, end)
        location = log.append([largest])[0]
        assert log.state is LogState.OPEN
        assert location.length == ENTRY_BYTES_MAX
    with pytest.raises(ConfigurationError, match="segment_bytes is 0"):
        open_log(FaultyDisk(), segment_bytes=0)


@pytest.mark.parametrize("operation", ["pwritev", "fdatasync"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_the_first_failure_is_the_end(operation: str, code: int, nth: int) -> None:
    disk = FaultyDisk()
    log = open_log(disk)
    disk.fail(operation, nth, code)
    acknowledged = [batch(number) for number in range(nth - 1) if log.append([batch(number)])]
    location_end = log.end_position
    with pytest.raises(
        LogWriteError, match=rf"writing .*0\.log.*{errno.errorcode[code]}"
    ) as caught:
        log.append([batch(99)])
    assert caught.value.outcome is Outcome.UNKNOWN
    calls = disk.calls.copy()
    for _ in range(3):
        with pytest.raises(LogWriteError, match=r"takes no more.*0\.log") as later:
            log.append([batch(100)])
        assert later.value.outcome is Outcome.NOT_APPLIED
    assert log.state is LogState.FAILED
    assert log.end_position == location_end
    with pytest.raises(LogError, match="not durable"):
        log.read(location_end, 1)
    if acknowledged:
        assert log.read_entry(SEGMENT_HEADER_BYTES + COMMIT_BYTES) == acknowledged[0]
    log.close()
    assert not disk.calls.keys() - calls.keys() - {"pread", "open"}
    assert disk.calls["fdatasync"] == calls["fdatasync"], "a failed sync is never tried again"
    assert disk.injected == 1
    assert recovered(disk) == acknowledged


def test_a_failed_sync_that_the_cache_hides_is_not_believed_after_a_restart() -> None:
    disk = FaultyDisk()
    log = open_log(disk)
    log.append([batch(1)])
    disk.fail("fdatasync", 1, errno.EIO)
    with pytest.raises(LogWriteError):
        log.append([batch(2)])
    assert disk.names[segment_path(DIRECTORY, 0)].cached.count(batch(2).body) == 1
    before_power_loss = recovered(disk)
    disk.lose_power(lambda n: n - 1)
    assert recovered(disk) == before_power_loss == [batch(1)]


@pytest.mark.parametrize("operation", FAILING_OPERATIONS)
def test_whatever_fails_nothing_acknowledged_is_lost(operation: str) -> None:
    """Each call of each operation fails once, over two lives of a log with torn tails."""
    for nth in range(1, 40):
        disk = FaultyDisk()
        disk.fail(operation, nth, errno.EIO)
        acknowledged: list[Entry] = []
        choose = random.Random(nth).randrange
        for life in range(4):
            try:
                log = open_log(disk, segment_bytes=300)
                for number in range(4):
                    log.append([batch(10 * life + number, 100)])
                    acknowledged.append(batch(10 * life + number, 100))
            except LogWriteError:
                assert disk.injected == 1
            disk.lose_power(choose)
            if life == 1 and not disk.injected:  # power loss ends the fault: arm what is left
                disk.fail(operation, max(1, nth - disk.calls[operation]), errno.EIO)
        found: list[Entry] = []
        open_log(disk, found)
        assert [entry for entry in found if entry in acknowledged] == acknowledged
        assert len(found) - len(acknowledged) <= disk.injected


def test_a_roll_that_fails_did_not_apply_the_group() -> None:
    disk = FaultyDisk()
    log = open_log(disk, segment_bytes=200)
    log.append([batch(1, 100)])
    disk.fail("create", 1, errno.ENOSPC)
    with pytest.raises(LogWriteError, match=r"creating .*\.log failed.*ENOSPC") as caught:
        log.append([batch(2, 100)])
    assert caught.value.outcome is Outcome.NOT_APPLIED
    assert log.state is LogState.FAILED
    assert recovered(disk) == [batch(1, 100)]


def test_an_interrupted_write_is_the_end_too(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FaultyDisk()
    log = open_log(disk)

    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(log._active, "fdatasync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        log.append([batch(1)])
    monkeypatch.undo()
    with pytest.raises(LogWriteError, match="interrupted"):
        log.append([batch(2)])


def test_one_log_at_a_time() -> None:
    disk = FaultyDisk()
    log = open_log(disk)
    with pytest.raises(LogError, match=r"the log in /log is in use: stop the process"):
        open_log(disk)
    log.append([batch(1)])
    log.close()
    open_log(disk).close()


def test_one_log_at_a_time_on_a_real_disk(tmp_path: Path) -> None:
    with (
        Log.open(tmp_path, on_entry=lambda *_: None, disk=OsDisk()),
        pytest.raises(LogError, match="in use"),
    ):
        Log.open(tmp_path, on_entry=lambda *_: None, disk=OsDisk())


def test_the_lock_is_given_back_when_opening_fails() -> None:
    disk = FaultyDisk()
    open_log(disk).append([batch(1)])
    disk.kill_process()

    def refuse(entry: Entry, location: Location) -> None:
        raise LogCorruptionError("the caller's own finding")

    with pytest.raises(LogCorruptionError, match="own finding"):
        Log.open(DIRECTORY, on_entry=refuse, disk=disk)
    found: list[Entry] = []
    open_log(disk, found)
    assert found == [batch(1)], "what the callback raises is not taken for damage"


def test_closed_is_closed() -> None:
    log = open_log(FaultyDisk())
    log.close()
    log.close()
    with pytest.raises(LogError, match="closed"):
        log.append([batch(1)])
    with pytest.raises(LogError, match="closed"):
        log.read(0, 1)


def test_closing_makes_the_last_group_provable_once() -> None:
    disk = FaultyDisk()
    log = open_log(disk)
    log.append([batch(1)])
    end = log.end_position
    for _ in range(3):
        log.close()
        log = open_log(disk)
        assert log.end_position == end + COMMIT_BYTES
        assert log.recovery.durable_upto == end
        assert log.recovery.entry_count == 1
    log.append([])
    assert log.end_position == end + 2 * COMMIT_BYTES


def test_few_files_stay_open_however_many_segments() -> None:
    disk = FaultyDisk()
    with open_log(disk, segment_bytes=1) as log:
        locations = [log.append([batch(number)])[0] for number in range(SEGMENT_FILES_OPEN_MAX + 9)]
        assert len(log._extent.bases) == len(locations)
        for _ in range(2):
            for number, location in enumerate(locations):
                assert log.read_entry(location.position) == batch(number)
        assert len(log._readers._files) == SEGMENT_FILES_OPEN_MAX
        opened = disk.calls["open"]
        oldest = locations[-SEGMENT_FILES_OPEN_MAX]
        for location in (oldest, locations[0], oldest):  # used again, so not the next to go
            log.read_entry(location.position)
        assert disk.calls["open"] == opened + 1


def test_readers_in_threads_see_whole_groups_while_the_writer_appends(tmp_path: Path) -> None:
    log = Log.open(tmp_path, on_entry=lambda *_: None, disk=OsDisk(), segment_bytes=4000)
    locations: list[Location] = []
    failures: list[BaseException] = []
    is_done = threading.Event()

    def read_all() -> None:
        seen = 0
        try:
            while not is_done.is_set() or seen < len(locations):
                for number in range(seen, len(locations)):
                    assert log.read_entry(locations[number].position) == batch(number)
                    seen = number + 1
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=read_all) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(0, 300, 3):
        locations += log.append([batch(number), batch(number + 1), batch(number + 2)])
    is_done.set()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(log._extent.bases) > 5
    log.close()
