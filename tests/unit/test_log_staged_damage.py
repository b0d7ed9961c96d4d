"""Damage to what transactions staged, and to its ends: starts, checks and repairs."""

from __future__ import annotations

from pathlib import Path

import pytest

from sbp_core.errors import LogCorruptionError, LogError
from sbp_core.log.durable_log import Log
from sbp_core.log.entry import Location
from sbp_core.log.recovery.inspection import inspect_log, repair_log
from sbp_core.log.segment_scan import Damage, SegmentScanner
from sbp_core.segment_format import EntryKind, maybe_segment_base
from tests.support.disk import FaultyDisk
from tests.support.log import (
    DIRECTORY,
    KEY,
    batch,
    bodies,
    commit,
    contents,
    created,
    disk_with,
    drop,
    open_log,
    staged,
    staged_bodies,
    staging,
)

STAGED = [b"staged%d" % number for number in range(4)]
FILLER = (2, 0)


def fill(log: Log, count: int = 3) -> None:
    for _ in range(count):
        logged = log.maybe_range(FILLER)
        assert logged is not None
        log.append([batch(logged.next_offset, body=b"x" * 400, key=FILLER)])


def filled(*, is_published: bool = True, is_last: bool = False) -> FaultyDisk:
    """Four batches are staged and published, each step in a segment of its own but for the last."""
    disk = FaultyDisk()
    log = open_log(disk, segment_bytes=1_500)
    log.append([created(), created(*FILLER)])
    for number, body in enumerate(STAGED):
        fill(log)
        log.append([staged("t", number, body)])
    log.append([staged("undecided", 0, b"undecided")])
    fill(log)
    if is_published:
        log.append([commit(log, "t")])
        log.append([batch(4, body=b"behind")])
    if not is_last:
        fill(log)
    log.close()
    return disk


def places(disk: FaultyDisk, kind: EntryKind) -> list[tuple[Path, Location]]:
    """Where the entries of a kind are."""
    found = []
    for path in sorted(each for each in disk.names if each.suffix == ".log"):
        base = maybe_segment_base(path.name)
        assert base is not None
        file = disk.open(path, is_writable=False)
        found += [
            (path, item[1])
            for item in SegmentScanner(file, base, file.size()).entries()
            if not isinstance(item, Damage) and item[0].kind is kind
        ]
    return found


def spoil(disk: FaultyDisk, path: Path, position: int) -> None:
    base = maybe_segment_base(path.name)
    assert base is not None
    disk.names[path].cached[position - base] ^= 1
    disk.names[path].durable[position - base] ^= 1


def repaired(disk: FaultyDisk) -> Log:
    repair_log(disk, DIRECTORY, inspect_log(disk, DIRECTORY), 5_000)
    again = inspect_log(disk, DIRECTORY)
    assert again.faults == ()
    log = open_log(disk, segment_bytes=1_500)
    assert log.recovery.torn_tail is None
    return log


@pytest.mark.parametrize("number", [0, 3])
def test_a_damaged_batch_that_was_staged_is_lost_at_its_offset(number: int):
    disk = filled()
    path, location = places(disk, EntryKind.STAGED)[number]
    spoil(disk, path, location.end - 1)
    found = inspect_log(disk, DIRECTORY)
    assert [each.position for each in found.faults] == [location.position]
    assert [(each.base_offset, each.end_offset) for each in found.lost] == [(number, number + 1)]
    log = repaired(disk)
    kept = [*STAGED[:number], *STAGED[number + 1 :], b"behind"]
    served = []
    for offset in range(5):
        try:
            served.append(bodies(log, offset)[0])
        except (AssertionError, LogError):
            assert offset <= number
            served += [STAGED[offset]] if offset < number else []
    assert served == kept
    assert staged_bodies(log, "undecided") == [b"undecided"]
    assert inspect_log(disk_with(contents(disk)), DIRECTORY).lost == found.lost


def test_a_damaged_end_loses_what_it_published_and_nothing_else():
    disk = filled()
    (place,) = places(disk, EntryKind.TXN_END)
    spoil(disk, place[0], place[1].end - 1)
    found = inspect_log(disk, DIRECTORY)
    assert [(each.base_offset, each.end_offset) for each in found.lost] == [(0, 4)]
    log = repaired(disk)
    assert bodies(log, 4) == [b"behind"]
    with pytest.raises(LogCorruptionError):
        bodies(log, 0)


@pytest.mark.parametrize("number", range(3))
def test_a_repaired_last_segment_goes_on_with_what_is_staged(number: int):
    """A decision in it is damaged, so no start goes on there."""
    disk = FaultyDisk()
    log = open_log(disk)
    log.append([created(), staged("t", 0, b"t0")])
    log.append([drop("other")])
    log.append([staged("t", 1, b"t1"), staged("u", 0, b"u0")])
    log.append([staged("x", 0)])
    log.append([commit(log, "u")])
    log.close()
    (path, location), *_ = places(disk, EntryKind.TXN_END)
    spoil(disk, path, location.end - 1)
    staged_places = places(disk, EntryKind.STAGED)
    if number:
        spoil(disk, path, staged_places[number - 1][1].end - 1)
    with pytest.raises(LogCorruptionError):
        open_log(disk)
    log = repaired(disk)
    assert bodies(log) == [b"u0"]
    assert log.staged.is_ended(1, "u")
    left = {each.txn_id: each.batch_count for each in log.staged.stagings()}
    assert left == [{"t": 2, "x": 1}, {"x": 1}, {"t": 1, "x": 1}][number]
    if not number:
        log.append([commit(log, "t")])
        assert bodies(log) == [b"u0", b"t0", b"t1"]
    log.close()
    assert inspect_log(disk, DIRECTORY).is_intact


def test_a_missing_segment_loses_what_was_staged_in_it():
    disk = filled()
    path, location = places(disk, EntryKind.STAGED)[1]
    disk.remove(path)
    found = inspect_log(disk, DIRECTORY)
    assert (1, 2) in [(each.base_offset, each.end_offset) for each in found.lost]
    log = repaired(disk)
    assert bodies(log, 4) == [b"behind"]
    with pytest.raises(LogError, match=f"the batch staged at log position {location.position}"):
        list(log.batches_from(KEY, 1))


def test_a_transaction_that_lost_a_batch_in_another_segment_is_not_staged_after_a_repair():
    disk = filled(is_published=False)
    log = open_log(disk, segment_bytes=1_500)
    log.append([drop("other")])
    log.close()
    path, _ = places(disk, EntryKind.STAGED)[1]
    disk.remove(path)
    path, location = places(disk, EntryKind.TXN_END)[0]
    spoil(disk, path, location.end - 1)
    log = repaired(disk)
    assert [each.txn_id for each in log.staged.stagings()] == ["undecided"]
    assert staged_bodies(log, "undecided") == [b"undecided"]


def test_a_start_serves_all_but_a_damaged_batch_that_was_staged():
    disk = FaultyDisk()
    log = open_log(disk)
    log.append([created(), staged("t", 0, b"t0"), staged("t", 1, b"t1")])
    log.append([commit(log, "t"), staged("u", 0, b"u0")])
    log.append([staged("u", 1, b"u1")])
    log.append([staged("u", 2, b"u2")])
    log.close()
    wrong = places(disk, EntryKind.STAGED)
    for number in (1, 3):
        spoil(disk, wrong[number][0], wrong[number][1].end - 1)
    log = open_log(disk)
    assert [str(each.records) for each in log.recovery.damaged_batches] == [
        "records of a transaction of range 0 of stream 1"
    ] * 2
    assert [slot.count for slot in log.batches_from(KEY, 0)] == [1, 1]
    with pytest.raises(AssertionError, match=r"\[1, 2\) of range 0 of stream 1 cannot be served"):
        bodies(log)
    assert staging(log, "u").batch_count == 3, "later batches name its transaction"
    log.append([commit(log, "u")])
    assert bodies(log, 4) == [b"u2"]
    with pytest.raises(AssertionError, match=r"\[3, 4\) of range 0 of stream 1 cannot be served"):
        bodies(log, 2)
