"""Appends that are synced later: their state after a crash of the process and after a power cut."""

from __future__ import annotations

import errno
import random

import pytest

from sbp_core.errors import LogWriteError
from sbp_core.log.bodies import read_bodies
from sbp_core.log.readable_log import LogState
from sbp_core.log.segment_scan import find_commits
from sbp_core.segment_format import segment_path
from tests.support.disk import FaultyDisk
from tests.support.log import DIRECTORY, batch, created, open_log, segment_bases


def test_a_group_that_need_not_be_durable_is_found_and_not_synced() -> None:
    disk = FaultyDisk()
    log = open_log(disk)
    log.append([created(), batch(0)])
    synced_upto = log.end_position
    syncs = disk.calls["fdatasync"]
    for offset in (1, 2):
        log.append([batch(offset)], is_durable=False)
    assert disk.calls["fdatasync"] == syncs
    assert [slot.base_offset for slot in log.batches_from((1, 0), 0)] == [0, 1, 2]
    file = disk.open(segment_path(DIRECTORY, 0), is_writable=False)
    commits = [commit for _, commit in find_commits(file, 0, 0)]
    assert [commit.durable_upto for commit in commits][-2:] == [synced_upto] * 2
    log.sync()
    log.sync()
    assert disk.calls["fdatasync"] == syncs + 1
    end = log.end_position
    log.append([batch(3)], is_durable=False)
    assert next(find_commits(file, 0, end))[1].durable_upto == end


def test_after_a_power_cut_the_synced_part_and_no_gap_is_left_and_the_cut_is_reported() -> None:
    lengths = set()
    for seed in range(60):
        disk = FaultyDisk()
        log = open_log(disk)
        log.append([created(), batch(0)])
        synced_upto = log.end_position
        for offset in range(1, 5):
            log.append([batch(offset, body=b"%d" % offset * 100)], is_durable=False)
        disk.lose_power(random.Random(seed).randrange)
        log = open_log(disk)
        next_offset = log.ranges()[0].next_offset
        slots = list(log.batches_from((1, 0), 0))
        assert [slot.base_offset for slot in slots] == list(range(next_offset))
        bodies = read_bodies((1, 0), slots)
        assert bodies.error is None
        assert bodies.data[1:] == tuple(b"%d" % offset * 100 for offset in range(1, next_offset))
        assert log.recovery.durable_upto <= synced_upto
        torn = log.recovery.torn_tail
        assert torn is None or torn.position >= synced_upto
        log.append([batch(next_offset)])
        lengths.add(next_offset)
    assert lengths >= {1, 5}, "nothing lost, and all that was not synced"
    assert len(lengths) > 2


def test_a_process_that_is_killed_loses_nothing_unsynced() -> None:
    disk = FaultyDisk()
    log = open_log(disk)
    log.append([created()])
    log.append([batch(0), batch(1)], is_durable=False)
    disk.kill_process()
    log = open_log(disk)
    disk.lose_power(lambda n: 0)
    assert open_log(disk).ranges()[0].next_offset == 2


def test_a_full_segment_is_synced_before_the_next_one_is_begun() -> None:
    disk = FaultyDisk()
    log = open_log(disk, segment_bytes=600)
    log.append([created()])
    for offset in range(12):
        log.append([batch(offset, body=bytes(60))], is_durable=False)
    *sealed, _ = segment_bases(disk)
    assert len(sealed) > 1
    for base in sealed:
        inode = disk.names[segment_path(DIRECTORY, base)]
        assert inode.durable == inode.cached
    assert not log.recovery.torn_tail


def test_closing_syncs_and_proves_what_was_not_synced() -> None:
    disk = FaultyDisk()
    log = open_log(disk)
    log.append([created()])
    log.append([batch(0)], is_durable=False)
    end = log.end_position
    log.close()
    disk.lose_power(lambda n: 0)
    log = open_log(disk)
    assert log.ranges()[0].next_offset == 1
    assert log.recovery.durable_upto == end


def test_a_sync_that_fails_is_the_end_of_the_log() -> None:
    disk = FaultyDisk()
    log = open_log(disk)
    log.append([created()])
    log.append([batch(0)], is_durable=False)
    disk.fail("fdatasync", 1, errno.EIO)
    with pytest.raises(LogWriteError, match=r"syncing .* failed"):
        log.sync()
    assert log.state is LogState.FAILED
    for call in (log.sync, lambda: log.append([batch(1)])):
        with pytest.raises(LogWriteError, match="no more appends"):
            call()
