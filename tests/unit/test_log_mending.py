"""Damage in a segment: which entries it hit, and what is accepted in their places."""

from __future__ import annotations

import pytest

from sbp_core.errors import LogCorruptionError
from sbp_core.log.cleaning import Cleaner
from sbp_core.log.durable_log import Log
from sbp_core.log.entry import Entry
from sbp_core.log.mending import DamagedEntry, SegmentCheck, mend
from sbp_core.log.states.replicated_entries import settled_entry
from sbp_core.log.states.writer_states import mark_of
from sbp_core.segment_format import ENTRY_HEADER_BYTES, EntryKind, segment_path
from tests.support.disk import FaultyDisk
from tests.support.log import CREATED, DIRECTORY, KEY, batch, drop, open_log, staged

NUMBERED = [
    mark_of(batch(0), "w", 0),
    batch(0, 1, b"first"),
    staged("t", 0, b"staged"),
    drop("t"),
    batch(1, 1, b"second"),
]


def written() -> tuple[FaultyDisk, Log]:
    disk = FaultyDisk()
    log = open_log(disk)
    log.append([CREATED])
    log.append(NUMBERED)
    return disk, log


def content(disk: FaultyDisk) -> bytearray:
    return disk.names[segment_path(DIRECTORY, 0)].cached


def found(log: Log) -> list[DamagedEntry]:
    """The damage, read in pieces of a byte."""
    view = log.segment_view(0)
    assert view is not None
    check, damaged = SegmentCheck(view, log.end_position), []
    while not check.is_done:
        damaged += list(check.read(1))
    return damaged


def spoilt(disk: FaultyDisk, log: Log, what: bytes, distance: int = 0) -> DamagedEntry:
    """Flip a bit of the only place of some bytes, or so far in front of it."""
    assert found(log) == []
    content(disk)[content(disk).index(what) - distance] ^= 1
    (damaged,) = found(log)
    return damaged


@pytest.mark.parametrize(("what", "seq"), [(b"first", 2), (b"staged", 3), (b"second", 5)])
def test_only_what_was_there_is_written_in_its_place(what: bytes, seq: int):
    disk, log = written()
    before = bytes(content(disk))
    damaged = spoilt(disk, log, what)
    assert (damaged.key, damaged.seq) == (KEY, seq)
    as_damaged = bytes(content(disk))
    entry = NUMBERED[seq - 1]
    for wrong in (bytes(len(what)), what[:-1], what + b"x"):
        with pytest.raises(LogCorruptionError):
            mend(disk, DIRECTORY, damaged, entry.prefix, wrong)
        assert bytes(content(disk)) == as_damaged
    mend(disk, DIRECTORY, damaged, entry.prefix, entry.body)
    assert bytes(content(disk)) == before
    assert bytes(disk.names[segment_path(DIRECTORY, 0)].durable) == before
    assert found(log) == []


def test_numbers_are_not_known_behind_an_entry_without_a_header():
    disk, log = written()
    spoilt(disk, log, b"first", ENTRY_HEADER_BYTES - 20)
    content(disk)[content(disk).index(b"second")] ^= 1
    lost, damaged = found(log)
    assert (lost.key, lost.header, lost.seq) == (None, None, 0)
    assert (damaged.key, damaged.seq) == (KEY, 0)


def test_nothing_is_written_into_a_segment_that_was_rewritten():
    disk, log = written()
    damaged = spoilt(disk, log, b"second")
    mend(disk, DIRECTORY, damaged, b"second")
    logged = log.maybe_range(KEY)
    assert logged is not None
    assert logged.prefix is not None
    log.append([settled_entry(KEY, 2, logged.prefix), Entry(EntryKind.TRIM, KEY[0], -1, 1, 0)])
    log.end_segment()
    assert Cleaner(log).clean(1.0).rewritten_count == 1
    rewritten = bytes(content(disk))
    mend(disk, DIRECTORY, damaged, b"second")
    assert bytes(content(disk)) == rewritten
