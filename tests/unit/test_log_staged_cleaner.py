"""Freeing segments in which batches were staged: those that published them show what lives."""

from __future__ import annotations

from pathlib import Path

import pytest

from sbp_core.errors import LogCorruptionError
from sbp_core.log.cleaning import Cleaned, Cleaner
from sbp_core.log.durable_log import Log
from sbp_core.log.entry import Entry
from sbp_core.segment_format import ENTRY_HEADER_BYTES, EntryKind, segment_path
from tests.support.disk import FaultyDisk
from tests.support.log import (
    DIRECTORY,
    batch,
    bodies,
    commit,
    created,
    drop,
    entries,
    open_log,
    segment_bases,
    staged,
    staged_bodies,
)

SEGMENT_BYTES = 1_500
FILLER = (2, 0)


def filled(disk: FaultyDisk, txn_id: str = "t", count: int = 6) -> Log:
    """Small batches of a transaction among large ones of stream 2, in several segments."""
    log = open_log(disk, segment_bytes=SEGMENT_BYTES)
    log.append([created(), created(*FILLER)])
    for number in range(count):
        log.append([staged(txn_id, number, b"staged%d" % number)])
        fill(log)
    return log


def fill(log: Log, count: int = 2) -> None:
    for _ in range(count):
        logged = log.maybe_range(FILLER)
        assert logged is not None
        log.append([batch(logged.next_offset, body=b"x" * 500, key=FILLER)])


def trim(stream_id: int, offset: int = 2**40) -> Entry:
    return Entry(EntryKind.TRIM, stream_id, -1, offset, 0)


STAGED = [b"staged%d" % number for number in range(6)]


class Stand:
    """An object with some attributes replaced."""

    def __init__(self, real, **replaced):
        self._real = real
        self.__dict__.update(replaced)

    def __getattr__(self, name):
        return getattr(self._real, name)


class Watched:
    """A log that calls a function once, before the first use of the attribute named so."""

    def __init__(self, log, **before):
        self._log, self._before = log, before

    def __getattr__(self, name):
        self._before.pop(name, lambda: None)()
        return getattr(self._log, name)


def test_an_end_of_which_little_lives_is_not_rewritten_again_and_again():
    """It stays whole, so a rewriting frees the rest once."""
    log = open_log(FaultyDisk(), segment_bytes=3_000)
    log.append([created(), created(*FILLER)])
    log.append([staged("t", number, b"staged%d" % number) for number in range(10)])
    log.append([staged("u", 0, b"u")])
    fill(log, 5)
    log.append([commit(log, "t")])
    log.append([commit(log, "u")])
    fill(log, 5)
    log.append([trim(2), trim(1, 9)])
    cleaner = Cleaner(log)
    assert cleaner.clean().rewritten_count == 2
    assert cleaner.clean() == Cleaned()
    assert bodies(log, 9) == [b"staged9", b"u"]


def test_the_cleaner_sees_publications_that_arrive_while_it_looks():
    """It was undecided when that was asked, or is in the rows that are asked later."""
    disk = FaultyDisk()
    log = filled(disk)
    log.append([trim(2)])

    def publish():
        log.append([commit(log, "t")])
        fill(log, 6)
        log.append([trim(2)])
        log.append([staged("new", 0, b"new" * 100)])
        fill(log, 6)
        log.append([trim(2)])

    cleaner = Cleaner(Watched(log, maybe_range=publish))
    cleaner.clean()
    assert bodies(log) == STAGED
    cleaner.clean()
    assert bodies(log) == STAGED
    assert staged_bodies(log, "new") == [b"new" * 100]


def test_the_cleaner_sees_publications_in_a_segment_that_began_during_a_cleaning():
    disk = FaultyDisk()
    log = filled(disk)
    log.append([trim(2)])

    def publish():
        fill(log, 3)
        log.append([commit(log, "t")])

    Cleaner(Watched(log, staged=publish)).clean()
    assert bodies(log) == STAGED


def test_while_it_is_not_known_what_lives_nothing_staged_goes():
    disk = FaultyDisk()
    log = filled(disk)
    log.append([drop("t")])
    fill(log, 6)
    log.append([trim(2)])
    damaged = log.extent.sealed[-1]

    def index(extent, at):
        if extent.sealed[at] == damaged:
            raise LogCorruptionError("no index can be made")
        return log.lookup.index(extent, at)

    lookup = Stand(log.lookup, index=index)
    assert Cleaner(Stand(log, lookup=lookup)).clean().removed_count == 0
    assert sum(each.kind is EntryKind.STAGED for each in entries(disk)) == 6
    assert Cleaner(log).clean().removed_count > 3


def published_end(log: Log) -> tuple[Path, int]:
    """Publish the batches staged in stream 1; return the end's segment, sealed, and position."""
    location = log.append([commit(log, "t")]).locations[0]
    fill(log, 6)
    log.append([trim(2)])
    segment = next(each for each in log.extent.sealed if location.position < each.end)
    return segment_path(DIRECTORY, segment.base), location.position - segment.base


@pytest.mark.parametrize("damaged_byte", [ENTRY_HEADER_BYTES + 10, 15])
def test_a_damaged_end_whose_index_is_gone_takes_nothing_along(damaged_byte: int):
    """The index that is made again cannot know what was published, and is not kept for whole."""
    disk = FaultyDisk()
    log = filled(disk)
    path, position = published_end(log)
    log.close()
    whole = bytes(disk.names[path].cached)
    for data in (disk.names[path].cached, disk.names[path].durable):
        data[position + damaged_byte] ^= 1
    disk.remove(path.with_suffix(".idx"))
    log = open_log(disk, segment_bytes=SEGMENT_BYTES)
    for _ in range(2):
        cleaner = Cleaner(log)
        cleaner.clean()
        assert cleaner.clean() == Cleaned()
        with pytest.raises(LogCorruptionError):
            bodies(log)
        log.close()
        log = open_log(disk, segment_bytes=SEGMENT_BYTES)
    log.close()
    disk.names[path].cached[:] = whole
    disk.names[path].durable[:] = whole
    log = open_log(disk, segment_bytes=SEGMENT_BYTES)
    assert bodies(log) == STAGED, "the backup of one file makes it good"
    assert Cleaner(log).clean().rewritten_count == 1, "the segment that could not be cleaned before"


def test_a_damaged_end_of_what_is_dead_goes():
    disk = FaultyDisk()
    log = filled(disk)
    path, position = published_end(log)
    log.close()
    for data in (disk.names[path].cached, disk.names[path].durable):
        data[position + ENTRY_HEADER_BYTES + 10] ^= 1
    disk.remove(path.with_suffix(".idx"))
    log = open_log(disk, segment_bytes=SEGMENT_BYTES)
    log.append([trim(1)])
    Cleaner(log).clean()
    assert len(segment_bases(disk)) == 1
