"""Every byte of a log's last entries: cut there, flipped, zeroed, and overwritten with old bytes.

Damaged entries are cut if they are not proven to be synced, else kept or reported.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from sbp_core.errors import LogCorruptionError
from sbp_core.log.bodies import read_bodies
from sbp_core.log.durable_log import Log
from sbp_core.log.entry import COMMIT_BYTES, Entry, Location
from sbp_core.log.recovery.inspection import inspect_log
from sbp_core.segment_format import ENTRY_HEADER_BYTES, ENTRY_PREFIX_BYTES, segment_path
from tests.support.disk import FaultyDisk
from tests.support.log import DIRECTORY, batch, contents, created, disk_with, open_log

SECTOR_BYTES = 512
CRC_BYTES = 4
KEY = (1, 0)


@dataclass(frozen=True)
class Piece:
    """An entry of the last segment, or a COMMIT, which says how far the log was synced."""

    at: Location
    maybe_batch: Entry | None = None
    durable_upto: int = 0


@dataclass(frozen=True)
class Sample:
    """A log of two segments: its files, and what the last one ends with."""

    files: dict[Path, bytes]
    batches: list[Entry]
    pieces: list[Piece]
    path: Path

    @property
    def base(self) -> int:
        return int(self.path.stem)

    @property
    def data(self) -> bytes:
        return self.files[self.path]

    @property
    def start(self) -> int:
        """Where in the file the group with the first of the last three entries begins."""
        third = [piece for piece in self.pieces if piece.maybe_batch][-3]
        group = [piece for piece in self.pieces if piece.at.end <= third.at.position][-1]
        return group.at.position - self.base


def sample(groups: list[int], body_bytes: int, *, is_durable: bool) -> Sample:
    """A log that ends in groups of the given numbers of batches, not closed."""
    disk = FaultyDisk()
    segment_bytes = 10 * (body_bytes + 150)
    log = open_log(disk, segment_bytes=segment_bytes)
    log.append([created()])
    batches: list[Entry] = []
    pieces: list[Piece] = []
    synced = log.end_position

    def append(count: int, *, is_durable: bool) -> None:
        nonlocal synced
        first = len(batches)
        own = [batch(n, 1, bytes([n]) * (body_bytes + n)) for n in range(first, first + count)]
        batches.extend(own)
        locations = log.append(own, is_durable=is_durable).locations
        commit = Location(locations[0].position - COMMIT_BYTES, COMMIT_BYTES)
        pieces.append(Piece(commit, durable_upto=synced))
        pieces.extend(map(Piece, locations, own))
        synced = log.end_position if is_durable else synced

    while len(log.extent.sealed) < 1:
        append(1, is_durable=True)
    base = log.extent.active.segment.base
    append(1, is_durable=True)
    for count in groups:
        append(count, is_durable=is_durable)
    last = [piece for piece in pieces if piece.at.position > base]
    assert len(log.extent.sealed) == 1
    return Sample(contents(disk), batches, last, segment_path(DIRECTORY, base))


LAYOUTS = {
    "a group each": ([1, 1, 1], True),
    "one group": ([3], True),
    "not synced": ([1, 1, 1], False),
    "two groups": ([2, 1], True),
}
SMALL = {name: sample(groups, 8, is_durable=synced) for name, (groups, synced) in LAYOUTS.items()}
LARGE = {name: sample(groups, 900, is_durable=synced) for name, (groups, synced) in LAYOUTS.items()}


@dataclass(frozen=True)
class Expected:
    """Result of a start after damage: refused at `refused_at`, cut at `cut_at`, or neither.

    `lost` are the numbers of the batches that are served as damaged, `kept` how many there are.
    """

    refused_at: int | None
    cut_at: int | None
    kept: int
    lost: list[int]


def expected(sample: Sample, data: bytes) -> Expected:
    """Derive it from the bytes that differ."""

    def is_header_same(position: int) -> bool:
        """Whether all is the same but the checksum of the body, which ends the prefix."""
        behind = position + ENTRY_PREFIX_BYTES
        length = ENTRY_HEADER_BYTES - ENTRY_PREFIX_BYTES
        return is_same(position, ENTRY_PREFIX_BYTES - CRC_BYTES) and is_same(behind, length)

    def is_same(position: int, length: int) -> bool:
        at = slice(position - sample.base, position - sample.base + length)
        return at.stop <= len(data) and data[at] == sample.data[at]

    proofs = [each for each in sample.pieces if is_same(each.at.position, each.at.length)]
    kept = len(sample.batches) - sum(each.maybe_batch is not None for each in sample.pieces)
    lost = []
    for piece in sample.pieces:
        at = piece.at
        if len(data) == at.position - sample.base:
            break
        if not is_same(at.position, at.length):
            if not any(each.durable_upto > at.position for each in proofs):
                return Expected(None, at.position, kept, lost)
            if not piece.maybe_batch or not is_header_same(at.position):
                return Expected(at.position, None, kept, lost)
            lost.append(kept)
        kept += piece.maybe_batch is not None
    end = sample.pieces[-1].at.end
    has_more = len(data) > end - sample.base
    return Expected(None, end if has_more else None, kept, lost)


def check(sample: Sample, data: bytes) -> Expected:
    """Open the log with this last segment; return what became of it."""
    meant = expected(sample, data)
    disk = disk_with({**sample.files, sample.path: data})
    report = inspect_log(disk, DIRECTORY)
    assert {fault.path for fault in report.faults} == (
        set() if meant.refused_at is None and not meant.lost else {sample.path}
    )
    if meant.refused_at is not None:
        before = contents(disk)
        with pytest.raises(LogCorruptionError, match=f"{sample.path.name}.* {meant.refused_at}:"):
            open_log(disk)
        assert contents(disk) == before
        return meant
    log = open_log(disk)
    torn = log.recovery.torn_tail
    assert (torn.position if torn else None) == meant.cut_at
    assert [each.records.base_offset for each in log.recovery.damaged_batches] == meant.lost
    log.append([batch(meant.kept, 1, b"on it goes")])
    check_batches(log, sample, meant)
    disk.lose_power(lambda n: 0)
    check_batches(open_log(disk), sample, meant)
    return meant


def check_batches(log: Log, sample: Sample, meant: Expected) -> None:
    slots = list(log.batches_from(KEY, 0))
    assert [slot.base_offset for slot in slots] == list(range(meant.kept + 1))
    whole = [slot for slot in slots if slot.base_offset not in meant.lost]
    bodies = [*(each.body for each in sample.batches[: meant.kept]), b"on it goes"]
    assert list(read_bodies(KEY, whole).data) == [bodies[slot.base_offset] for slot in whole]
    for number in meant.lost:
        error = read_bodies(KEY, [slots[number]]).error
        assert isinstance(error, LogCorruptionError)
        assert f"offsets [{number}, {number + 1}) of range 0 of stream 1" in str(error)


layouts = pytest.mark.parametrize("layout", LAYOUTS)
quick_layouts = pytest.mark.parametrize(
    "layout",
    [
        pytest.param(each, marks=[] if each == "two groups" else pytest.mark.exhaustive)
        for each in LAYOUTS
    ],
)


@quick_layouts
def test_every_cut(layout: str) -> None:
    small = SMALL[layout]
    for size in range(small.start, len(small.data)):
        meant = check(small, small.data[:size])
        assert meant.refused_at is None


@quick_layouts
def test_every_flipped_byte(layout: str) -> None:
    small = SMALL[layout]
    seen = set()
    for at in range(small.start, len(small.data)):
        flipped = bytearray(small.data)
        flipped[at] ^= 1 << at % 8
        meant = check(small, bytes(flipped))
        seen.add("cut" if meant.cut_at else "served" if meant.lost else "refused")
    is_proven = layout in ("a group each", "two groups")
    assert seen == ({"cut", "served", "refused"} if is_proven else {"cut"})


def spoilt_sectors(sample: Sample, replacement: bytes) -> Iterator[bytes]:
    """The last segment with each of its last sectors replaced by the same part of `replacement`."""
    first = sample.start // SECTOR_BYTES * SECTOR_BYTES
    for at in range(first + SECTOR_BYTES, len(sample.data), SECTOR_BYTES):
        sector = replacement[at : at + SECTOR_BYTES][: len(sample.data) - at]
        yield sample.data[:at] + sector + sample.data[at + len(sector) :]
        yield sample.data[:at] + replacement[at : len(sample.data)]  # and all that follow


@layouts
@pytest.mark.parametrize("content", ["zeros", "ones", "bytes before", "another segment"])
def test_sectors_that_were_not_written(layout: str, content: str) -> None:
    """Where there are old bytes instead, they are those of this file or of one that is gone."""
    large = LARGE[layout]
    size = len(large.data)
    older = large.files[segment_path(DIRECTORY, 0)]
    replacement = {
        "zeros": bytes(size),
        "ones": b"\xff" * size,
        "bytes before": bytes(3 * SECTOR_BYTES) + large.data,
        "another segment": older * 2,
    }[content]
    spoilt = list(spoilt_sectors(large, replacement))
    assert len(spoilt) > 8
    for data in spoilt:
        check(large, data)


@layouts
def test_bytes_behind_the_end_are_cut(layout: str) -> None:
    """As a crash leaves them that had made the file longer, but not written what belongs there."""
    small = SMALL[layout]
    older = small.files[segment_path(DIRECTORY, 0)]
    group = small.data[small.start :]
    for behind in (b"\0", bytes(5000), b"\xff" * SECTOR_BYTES, older, small.data, group, group[7:]):
        assert check(small, small.data + behind).cut_at == small.base + len(small.data)
