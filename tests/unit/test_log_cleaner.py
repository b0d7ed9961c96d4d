"""Freeing segments: data removed and kept, the space on a real disk, readers in threads, damage.

Crashes and failures while segments are freed are in tests/property/test_log_cleaner_model.py.
"""

from __future__ import annotations

import errno
import logging
import random
import threading
from pathlib import Path

import pytest

from sbp_core.errors import LogCorruptionError, LogError
from sbp_core.log.bodies import read_bodies
from sbp_core.log.cleaning import Cleaned, Cleaner
from sbp_core.log.disk import Disk, OsDisk, OsFile
from sbp_core.log.durable_log import Log
from sbp_core.log.entry import COMMIT_BYTES, Entry
from sbp_core.log.index_file import index_path
from sbp_core.log.states.range_states import RangeState
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
    contents,
    created,
    disk_with,
    open_log,
    segment_bases,
)

BODY = b"x" * 200
SEGMENT_BYTES = 1000
KEYS = [(1, 0), (2, 0)]


def trim(stream_id: int, offset: int) -> Entry:
    return Entry(EntryKind.TRIM, stream_id, -1, offset, 0)


def deletion(stream_id: int) -> Entry:
    return Entry(EntryKind.STREAM_DELETED, stream_id, -1, 0, 0)


def cleaner(log: Log) -> Cleaner:
    return Cleaner(log)


def filled(disk: Disk, directory: Path = DIRECTORY) -> Log:
    """Records 0 to 29 of stream 1; behind every sixth a small one of stream 2, 0 to 4."""
    log = open_log(disk, directory, segment_bytes=SEGMENT_BYTES)
    log.append([created(*key) for key in KEYS])
    for offset in range(30):
        log.append([batch(offset, body=BODY)])
        if offset % 6 == 0:
            log.append([batch(offset // 6, body=b"%d" % offset, key=(2, 0))])
    return log


def offsets(log: Log, key: tuple[int, int], start: int) -> list[int]:
    slots = list(log.batches_from(key, start))
    assert read_bodies(key, slots).error is None
    return [slot.base_offset for slot in slots]


def check_stream_2(log: Log) -> None:
    bodies = read_bodies((2, 0), list(log.batches_from((2, 0), 0)))
    assert bodies.error is None
    assert list(bodies.data) == [b"%d" % (each * 6) for each in range(5)]


@pytest.mark.exhaustive
def test_readers_never_miss_a_batch_while_segments_go(tmp_path: Path) -> None:
    log = open_log(OsDisk(), tmp_path, segment_bytes=SEGMENT_BYTES)
    log.append([created(*key) for key in KEYS])
    start, tail, is_over = 0, 0, threading.Event()
    failures: list[object] = []

    def read() -> None:
        choose = random.Random(1)
        while not is_over.is_set():
            offset = choose.randrange(start, tail + 1)
            try:
                slots = list(log.batches_from((1, 0), offset))
                bodies = read_bodies((1, 0), slots)
            except LogError as error:
                if start <= offset:
                    failures.append(error)
                continue
            if bodies.error is not None or len(slots) < tail - offset - 50:
                failures.append(bodies)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    own = cleaner(log)
    cleaned = Cleaned()
    try:
        for offset in range(400):
            log.append([batch(offset, body=BODY if offset % 7 else b"")])
            log.append([batch(offset, body=BODY, key=(2, 0))])
            tail = offset + 1
            if offset % 20 == 19:
                start = offset - 60 if offset > 60 else 0
                log.append([trim(1, start), trim(2, offset)])
                cleaned += own.clean()
    finally:
        is_over.set()
        for reader in readers:
            reader.join()
    assert not failures
    assert cleaned.removed_count > 10
    assert cleaned.rewritten_count > 1
    log.close()


class HeldCleaning(OsDisk):
    """Blocks the creation of a file that is to be renamed until `gate` opens."""

    def __init__(self) -> None:
        self.has_come = threading.Event()
        self.gate = threading.Event()

    def create(self, path: Path) -> OsFile:
        if path.name.endswith(".log.tmp"):
            self.has_come.set()
            assert self.gate.wait(30)
        return super().create(path)


def test_appends_go_on_while_the_cleaner_is_at_work(tmp_path: Path) -> None:
    """It stands still in the middle of a rewrite, and holds nothing that an append takes."""
    disk = HeldCleaning()
    log = filled(disk, directory=tmp_path)
    log.append([trim(1, 25)])
    cleaned: list[Cleaned] = []
    at_work = threading.Thread(target=lambda: cleaned.append(Cleaner(log).clean()))
    at_work.start()
    assert disk.has_come.wait(30)
    before = len(log.extent.sealed)
    for offset in range(30, 60):
        log.append([batch(offset, body=BODY)])
    assert len(log.extent.sealed) > before + 5
    assert offsets(log, (1, 0), 25) == list(range(25, 60))
    disk.gate.set()
    at_work.join(30)
    assert cleaned[0].rewritten_count > 2
    check_stream_2(log)
    assert offsets(log, (1, 0), 25) == list(range(25, 60))
    log.close()


def test_deleted_streams_are_forgotten_once_nothing_is_held_of_them() -> None:
    disk = FaultyDisk()
    log = filled(disk)
    log.append([deletion(2)])
    own = cleaner(log)

    def roll(start: int) -> None:
        for offset in range(start, start + 10):
            log.append([batch(offset, body=BODY)])

    own.clean()  # little of each segment belongs to stream 2: its batches stay for now
    roll(30)
    assert log.maybe_range((2, 0)) is not None
    log.append([trim(1, 40)])
    own.clean()
    assert log.maybe_range((2, 0)) is not None  # the active segment began with it
    roll(40)
    assert log.maybe_range((2, 0)) is None
    assert [each.stream_id for each in log.ranges()] == [1]
    disk.kill_process()
    log = open_log(disk, segment_bytes=SEGMENT_BYTES)
    assert [each.stream_id for each in log.ranges()] == [1]
    assert offsets(log, (1, 0), 40) == list(range(40, 50))


def test_deleted_streams_stay_known_while_the_active_segment_holds_them() -> None:
    disk = FaultyDisk()
    log = filled(disk)
    log.append([batch(5, body=BODY, key=(2, 0)), deletion(2), trim(1, 29)])
    cleaner(log).clean()
    for offset in range(30, 40):
        log.append([batch(offset, body=BODY)])
    logged = log.maybe_range((2, 0))
    assert logged is not None
    assert logged.state is RangeState.DELETED


def test_a_damaged_live_batch_is_never_rewritten(caplog: pytest.LogCaptureFixture) -> None:
    disk = FaultyDisk()
    log = filled(disk)
    slot = next(log.batches_from((2, 0), 1))
    path = slot.view.file.path
    position = slot.location.end - 1 - slot.view.segment.base
    inode = disk.names[path]
    inode.write(bytes([inode.cached[position] ^ 1]), position)
    log.append([trim(1, 25)])
    before = bytes(inode.cached)
    own = cleaner(log)
    with caplog.at_level(logging.ERROR):
        assert own.clean().rewritten_count > 1
        assert own.clean() == Cleaned()
    assert disk.names[path] is inode
    assert bytes(inode.cached) == before
    assert len(caplog.records) == 1
    bodies = read_bodies((2, 0), list(log.batches_from((2, 0), 0)))
    assert len(bodies.data) == 1
    assert "offsets [1, 2) of range 0 of stream 2" in str(bodies.error)


def test_a_damaged_dead_batch_goes() -> None:
    disk = FaultyDisk()
    log = filled(disk)
    slot = next(log.batches_from((1, 0), 3))
    position = slot.location.end - 1 - slot.view.segment.base
    disk.names[slot.view.file.path].write(b"y", position)
    log.append([trim(1, 25)])
    assert cleaner(log).clean().rewritten_count > 2
    check_stream_2(log)


def test_a_failed_round_is_made_good_by_the_next() -> None:
    disk = FaultyDisk()
    log = filled(disk)
    log.append([trim(1, 30), trim(2, 5)])
    own = cleaner(log)
    disk.fail("remove", 2, errno.EIO)
    with pytest.raises(LogError, match="removing"):
        own.clean()
    check_is_empty = offsets(log, (1, 0), 30) == offsets(log, (2, 0), 5) == []
    assert check_is_empty
    assert own.clean().removed_count > 2
    assert len(segment_bases(disk)) == 1


def test_a_lost_snapshot_is_not_made_up_from_a_compacted_segment_but_from_its_index() -> None:
    disk = FaultyDisk()
    log = filled(disk)
    log.append([trim(1, 30)])
    assert cleaner(log).clean().rewritten_count > 2
    ranges = log.ranges()
    disk.kill_process()
    inode = disk.names[segment_path(DIRECTORY, segment_bases(disk)[-1])]
    at = SEGMENT_HEADER_BYTES + COMMIT_BYTES + ENTRY_HEADER_BYTES
    inode.write(bytes([inode.cached[at] ^ 1]), at)
    with_index = disk_with(contents(disk))
    assert open_log(with_index, segment_bytes=SEGMENT_BYTES).ranges() == ranges
    del disk.names[index_path(DIRECTORY, segment_bases(disk)[-2])]
    with pytest.raises(LogCorruptionError, match="was compacted"):
        open_log(disk, segment_bytes=SEGMENT_BYTES)
