"""Merging small batches where something fails: a disk, a merge, or a server that stops."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from itertools import islice

import pytest

from sbp_core.errors import LogError
from sbp_core.log.cleaning import Cleaned, Cleaner
from sbp_core.log.disk import TEMPORARY_SUFFIX
from sbp_core.log.index_file import index_path
from sbp_core.log.segment_scan import Damage, SegmentScanner
from sbp_core.log.states.replicated_entries import fenced_entry, settled_entry
from sbp_core.replication import Prefix
from sbp_core.segment_format import segment_path
from tests.support.disk import FaultyDisk
from tests.support.log import (
    CREATED,
    DIRECTORY,
    check_all,
    concatenate,
    counts,
    created,
    filled,
    freed_bytes,
    opened,
    segment_bases,
    small,
)
from tests.support.log import KEY as REPLICATED


def spoil(disk: FaultyDisk, base: int, nth: int) -> None:
    """Change the last byte of an entry of the segment at `base`."""
    path = segment_path(DIRECTORY, base)
    data = bytes(disk.names[path].cached)
    found = SegmentScanner(disk.open(path, is_writable=False), base, len(data)).entries()
    item = next(islice(found, nth, None))
    assert not isinstance(item, Damage)
    at = item[1].end - 1 - base
    disk.names[path].write(bytes([data[at] ^ 1]), at)


def test_other_segments_are_cleaned_if_the_index_of_the_one_before_is_lost() -> None:
    """Then it is not known whether a segment has entries of replicated ranges, so it stays."""
    disk = FaultyDisk()
    log = opened(disk)
    log.append([CREATED, created(7)])
    log.append([fenced_entry(REPLICATED)])
    log.append([settled_entry(REPLICATED, 0, Prefix())])
    for offset in range(120):
        log.append([small(offset, (7, 0))])
        if offset % 40 == 39:
            log.end_segment()
    bases = [segment.base for segment in log.extent.sealed]
    assert len(bases) == 3
    disk.remove(index_path(DIRECTORY, bases[0]))
    log.lookup.clear()
    spoil(disk, bases[1], 0)  # the snapshot, from which that index could be made again
    spoil(disk, bases[0], 1)  # the creation of a range
    own = Cleaner(log, concatenate)
    assert own.clean() == Cleaned(0, 1, freed_bytes(log), 40)
    assert [segment.generation for segment in log.extent.sealed] == [0, 0, 1]
    assert own.clean() == Cleaned()


@pytest.mark.parametrize(("run_max", "merged_count"), [(7, 1), (40, 0)])
def test_a_merge_is_given_up_when_the_cleaner_stops(
    caplog: pytest.LogCaptureFixture, run_max: int, merged_count: int
) -> None:
    """Behind a merged batch, or within one of many: the segment stays as it was."""
    disk = FaultyDisk()
    log = opened(disk)
    appended = filled(log)
    before, names = log.extent, set(disk.names)
    merged: list[bytes] = []

    def stopping(bodies: Iterable[memoryview]) -> tuple[int, bytes]:
        is_rewritten = any(path.suffix == TEMPORARY_SUFFIX for path in disk.names)
        if is_rewritten:
            own.stop()
        parts = [bytes(each) for _, each in zip(range(run_max), bodies, strict=False)]
        if is_rewritten:
            merged.append(parts[0])
        return len(parts), b"".join(parts)

    own = Cleaner(log, stopping)
    with caplog.at_level(logging.DEBUG):
        assert own.clean() == own.clean() == Cleaned()
    assert len(merged) == merged_count
    assert not caplog.records
    assert log.extent == before
    assert set(disk.names) == names
    check_all(log, appended)


def test_batches_at_which_a_merge_fails_stay(caplog: pytest.LogCaptureFixture) -> None:
    """All that it had read; the next ones are tried again."""

    def failing(bodies: Iterable[memoryview]) -> tuple[int, bytes]:
        parts = [bytes(each) for _, each in zip(range(8), bodies, strict=False)]
        if parts[0].startswith(b"2:") or b"1:13;" in parts:
            raise ZeroDivisionError
        return len(parts), b"".join(parts)

    log = opened(FaultyDisk())
    appended = filled(log)
    with caplog.at_level(logging.ERROR):
        assert Cleaner(log, failing).clean().merged_count > 0
    assert counts(log)[:10] == [8, *[1] * 8, 8]
    assert max(counts(log, (2, 0))) == 1
    check_all(log, appended)
    assert 0 < len(caplog.records) <= 2 * len(log.extent.sealed)
    assert all(record.exc_info is not None for record in caplog.records)


def test_a_disk_that_fails_in_a_merge_is_no_mistake_of_it() -> None:
    def failing(_: Iterable[memoryview]) -> tuple[int, bytes]:
        raise LogError("disk")

    log = opened(FaultyDisk())
    filled(log)
    with pytest.raises(LogError, match="disk"):
        Cleaner(log, failing).clean()


def test_a_merged_log_opens_though_the_snapshot_behind_is_damaged_after_a_power_cut() -> None:
    """The merged segment has no history that would say it again, so its index is on the disk."""
    disk = FaultyDisk()
    log = opened(disk)
    appended = filled(log)
    assert Cleaner(log, concatenate).clean().rewritten_count == len(log.extent.sealed)
    disk.lose_power(lambda _: 0)
    spoil(disk, segment_bases(disk)[-1], 0)
    log = opened(disk)
    check_all(log, appended)
