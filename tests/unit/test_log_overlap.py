"""Two groups at a time: one is written while the one before it is synced."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from sbp_core.errors import LogWriteError, Outcome
from sbp_core.log.disk import OsDisk
from sbp_core.log.durable_log import Appended, Log
from sbp_core.log.entry import Entry
from sbp_core.log.readable_log import LogState
from sbp_core.segment_format import EntryKind
from tests.support.disk import HeldDisk
from tests.support.log import batch, created, open_log

BODY = bytes(100)


class Appender:
    """Appends groups on threads, to a log whose syncs wait for the gate of its disk."""

    def __init__(self, log: Log, disk: HeldDisk) -> None:
        self.log = log
        self.disk = disk
        self._threads = ThreadPoolExecutor(4)

    def append(self, *entries: Entry) -> Future[Appended]:
        """Begin to append a group; return once it waits for a sync, its own or another's."""
        end = self.log.end_position
        future = self._threads.submit(self.log.append, entries)
        wait_until(lambda: self.log.end_position > end or future.done())
        return future

    def begin(self, *entries: Entry) -> Future[Appended]:
        """Begin to append a group."""
        return self._threads.submit(self.log.append, entries)

    def close(self) -> None:
        self.disk.gate.set()
        self._threads.shutdown()


def wait_until(condition: Callable[[], bool]) -> None:
    turn = threading.Event()
    for _ in range(10_000):
        if condition():
            return
        turn.wait(0.001)
    raise AssertionError("it never came")


@contextmanager
def appending(directory: Path, *, segment_bytes: int = 1 << 20) -> Iterator[Appender]:
    disk = HeldDisk()
    disk.gate.set()
    log = open_log(disk, directory / "log", segment_bytes=segment_bytes)
    log.append([created()])
    disk.gate.clear()
    disk.sync_count = 0
    appender = Appender(log, disk)
    try:
        yield appender
    finally:
        appender.close()
        disk.error = None
        log.close()


def offsets(log: Log) -> list[int]:
    return [slot.base_offset for slot in log.batches_from((1, 0), 0)]


def test_a_group_is_written_while_the_one_before_it_is_synced(tmp_path: Path) -> None:
    with appending(tmp_path) as appender:
        log = appender.log
        first = appender.append(batch(0, body=BODY))
        second = appender.append(batch(1, body=BODY))
        assert not first.done()
        assert not second.done()
        assert offsets(log) == [], "nothing is found that is not synced"
        third = appender.begin(batch(2, body=BODY))
        appender.disk.gate.set()
        ranges = [future.result(30).ranges[0].next_offset for future in (first, second, third)]
        assert ranges == [1, 2, 3]
        assert offsets(log) == [0, 1, 2]
        assert log.ranges()[0].next_offset == 3
        assert 2 <= appender.disk.sync_count <= 3


def test_a_sync_that_fails_fails_the_group_behind_it_too(tmp_path: Path) -> None:
    with appending(tmp_path) as appender:
        groups = [appender.append(batch(offset, body=BODY)) for offset in range(2)]
        appender.disk.error = OSError(5, "Input/output error")
        appender.disk.gate.set()
        for future in groups:
            with pytest.raises(LogWriteError) as caught:
                future.result(30)
            assert caught.value.outcome is Outcome.UNKNOWN
        assert appender.disk.sync_count == 1, "a failed sync is never tried again"
        assert appender.log.state is LogState.FAILED
        assert offsets(appender.log) == []


def test_a_decision_is_durable_before_anything_is_written_behind_it(tmp_path: Path) -> None:
    with appending(tmp_path) as appender:
        appender.disk.gate.set()
        appender.begin(batch(0, body=BODY)).result(30)
        appender.disk.gate.clear()
        log = appender.log
        decision = appender.append(Entry(EntryKind.TRIM, 1, 0, 1, 0))
        end = log.end_position
        behind = appender.begin(batch(1, body=BODY))
        assert not behind.done()
        assert log.end_position == end
        known = log.maybe_range((1, 0))
        assert known is not None
        assert known.start_offset == 0, "the cleaner may not act on it yet"
        appender.disk.gate.set()
        assert decision.result(30).ranges[0].start_offset == 1
        behind.result(30)
        known = log.maybe_range((1, 0))
        assert known is not None
        assert (known.start_offset, known.next_offset) == (1, 2)


def test_a_new_segment_waits_for_the_group_that_is_being_synced(tmp_path: Path) -> None:
    with appending(tmp_path, segment_bytes=700) as appender:
        log = appender.log
        first = appender.append(batch(0, body=bytes(300)))
        segments = len(log.extent.sealed)
        second = appender.begin(batch(1, body=bytes(300)))
        assert not second.done()
        assert len(log.extent.sealed) == segments
        appender.disk.gate.set()
        first.result(30)
        second.result(30)
        assert len(log.extent.sealed) == segments + 1
        assert offsets(log) == [0, 1]
        for slot in log.batches_from((1, 0), 0):
            assert slot.location.position >= slot.view.segment.base
    log = open_log(OsDisk(), tmp_path / "log")
    assert offsets(log) == [0, 1]
