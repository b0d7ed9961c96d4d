"""Finding batches over all segments, with index files as they should be and as they should not."""

from __future__ import annotations

import os
import random
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path

import pytest

from sbp_core import limits
from sbp_core.errors import LogCorruptionError, LogError
from sbp_core.log.batch_lookup import BatchLookup
from sbp_core.log.bodies import read_bodies
from sbp_core.log.disk import OsDisk
from sbp_core.log.durable_log import Log
from sbp_core.log.entry import COMMIT_BYTES, Entry, Location
from sbp_core.log.index_file import INDEX_HEADER_BYTES, index_path
from sbp_core.segment_format import SegmentHeader, encode_segment_header, segment_path
from tests.support.disk import FaultyDisk, Inode
from tests.support.log import DIRECTORY, batch, contents, created, open_log, segment_bases

KEYS = [(1, 0), (1, 1), (7, 0), (2**62, 3)]
STARTS = dict(zip(KEYS, (0, 9, 100, 5), strict=True))


class Filled:
    """A log of some segments, and what is in it by key."""

    def __init__(self, *, group_count: int = 40, segment_bytes: int = 1000) -> None:
        choose = random.Random(3)
        self.disk = FaultyDisk()
        self.segment_bytes = segment_bytes
        self.log = self.open()
        self.batches: dict[tuple[int, int], list[Entry]] = {key: [] for key in KEYS}
        self.locations: dict[tuple[int, ...], Location] = {}
        self.group_positions: list[int] = []
        self.log.append([created(*key, STARTS[key]) for key in KEYS])
        for _ in range(group_count):
            group: list[Entry] = []
            tails = {key: self.tail(key) for key in KEYS}
            for key in choose.choices(KEYS, (1, 1, 6, 2), k=choose.randrange(1, 5)):
                body = choose.randbytes(choose.randrange(60))
                group.append(batch(tails[key], choose.randrange(1, 4), body, key))
                tails[key] += group[-1].count
            locations = self.log.append(group).locations
            self.group_positions.append(locations[0].position - COMMIT_BYTES)
            for entry, at in zip(group, locations, strict=True):
                self.batches[entry.stream_id, entry.range_index].append(entry)
                self.locations[entry.stream_id, entry.range_index, entry.base_offset] = at

    def tail(self, key: tuple[int, int]) -> int:
        batches = self.batches[key]
        return batches[-1].base_offset + batches[-1].count if batches else STARTS[key]

    def open(self) -> Log:
        self.disk.kill_process()
        self.log = open_log(self.disk, segment_bytes=self.segment_bytes)
        return self.log

    def offsets(self) -> Iterator[tuple[tuple[int, int], int]]:
        return ((key, at) for key in KEYS for at in range(STARTS[key], self.tail(key)))

    def check(self, log: Log | None = None) -> None:
        """Every batch is found from each of its offsets, with all that follow."""
        log = log or self.log
        for key, offset in self.offsets():
            slots = list(log.batches_from(key, offset))
            expected = [
                each for each in self.batches[key] if each.base_offset + each.count > offset
            ]
            assert [slot.location for slot in slots] == [
                self.locations[(*key, each.base_offset)] for each in expected
            ]
            bodies = read_bodies(key, slots)
            assert bodies.error is None
            assert list(bodies.data) == [each.body for each in expected]

    def group_of(self, position: int) -> int:
        """The number of the group that a byte belongs to."""
        return bisect_right(self.group_positions, position)

    def index_paths(self) -> list[Path]:
        return sorted(path for path in self.disk.names if path.suffix == ".idx")


def test_recent_is_what_the_active_segment_holds() -> None:
    filled = Filled()
    active = segment_bases(filled.disk)[-1]
    found = {
        is_recent: {
            slot.location.position >= active
            for key, offset in filled.offsets()
            if filled.log.is_recent(key, offset) == is_recent
            for slot in [next(filled.log.batches_from(key, offset))]
        }
        for is_recent in (True, False)
    }
    assert found == {True: {True}, False: {False}}
    assert not filled.log.is_recent((3, 0), 0)


def test_indexes_that_are_gone_are_made_again_as_they_were() -> None:
    filled = Filled()
    before = {path: bytes(filled.disk.names[path].cached) for path in filled.index_paths()}
    for path in before:
        filled.disk.remove(path)
    filled.check(filled.open())
    assert {path: bytes(filled.disk.names[path].cached) for path in before} == before
    opened = filled.disk.calls["open"]
    filled.check()
    assert filled.disk.calls["open"] == opened, "all is open already"


def test_batches_that_are_lost_at_the_end_of_a_segment_are_missed() -> None:
    disk = FaultyDisk()
    log = open_log(disk, segment_bytes=600)
    log.append([created(1), created(2)])
    log.append([batch(0)])
    lost = log.append([batch(1)]).locations[0]
    for number in range(8):
        log.append([batch(number, 1, bytes(100), (2, 0))])
    assert len(segment_bases(disk)) > 2
    assert lost.position < segment_bases(disk)[1]
    disk.names[segment_path(DIRECTORY, 0)].cached[lost.position] ^= 1
    disk.remove(index_path(DIRECTORY, 0))
    disk.kill_process()
    log = open_log(disk, segment_bytes=600)
    slots = log.batches_from((1, 0), 0)
    assert next(slots).end_offset == 1
    with pytest.raises(LogCorruptionError, match=r"offsets \[1, 2\) of range 0 of stream 1"):
        next(slots)
    with pytest.raises(LogCorruptionError, match=r"offsets \[1, 2\)"):
        next(log.batches_from((1, 0), 1))


def test_a_segment_that_was_exchanged_under_an_open_log_is_noticed() -> None:
    filled = Filled()
    first, second, *_ = segment_bases(filled.disk)
    names = filled.disk.names
    path = segment_path(DIRECTORY, first)
    rewritten = Inode()
    rewritten.cached[:] = names[path].cached
    header = encode_segment_header(SegmentHeader(first, generation=1, end=second))
    rewritten.cached[: len(header)] = header
    for exchanged, reason in (
        (names[segment_path(DIRECTORY, second)], f"belongs to {second}"),
        (rewritten, "generation=1"),
    ):
        names[path] = exchanged
        with pytest.raises(LogError, match=reason):
            next(filled.log.batches_from((7, 0), 100))


def test_open_files_and_indexes_are_bounded_for_any_number_of_segments() -> None:
    filled = Filled()
    assert len(segment_bases(filled.disk)) > 8
    lookup = BatchLookup(filled.disk, DIRECTORY, files_open_max=4, index_bytes_max=4 * 4096 - 1)
    filled.log.lookup = lookup
    filled.check()
    assert len(lookup.views._views) == 4
    assert len(lookup._indexes) == 3
    assert limits.SEGMENT_FILES_OPEN_MAX > 4


@pytest.mark.parametrize("damage", ["cut", "flipped", "removed"])
def test_damage_to_an_index_that_is_in_use_changes_nothing(tmp_path: Path, damage: str) -> None:
    """A mapped file that is cut short would end the process here."""
    filled = Filled()
    for path, data in contents(filled.disk).items():
        (tmp_path / path.name).write_bytes(data)
    log = open_log(OsDisk(), tmp_path, segment_bytes=filled.segment_bytes)
    filled.check(log)
    for path in tmp_path.glob("*.idx"):
        data = path.read_bytes()
        if damage == "removed":
            path.unlink()
        elif damage == "flipped":
            path.write_bytes(data[:-9] + bytes([data[-9] ^ 255]) + data[-8:])
        else:
            os.truncate(path, len(data) // 2)
    filled.check(log)
    log.lookup.clear()
    filled.check(log)  # they are made again
    log.close()


def test_an_index_takes_37_bytes_a_range_and_33_a_batch() -> None:
    filled = Filled()
    base, following, *_ = segment_bases(filled.disk)
    rows = sum(base < at.position < following for at in filled.locations.values())
    size = len(filled.disk.names[index_path(DIRECTORY, base)].cached)
    assert size == INDEX_HEADER_BYTES + 37 * len(KEYS) + 33 * rows


def test_an_index_of_another_segment_is_not_taken() -> None:
    filled = Filled()
    first, second, *_ = filled.index_paths()
    filled.disk.names[first], filled.disk.names[second] = (
        filled.disk.names[second],
        filled.disk.names[first],
    )
    filled.check(filled.open())
