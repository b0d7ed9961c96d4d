"""Replicas in the log: entries read by number, ranges that are cut, and damage to them."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from sbp_core.errors import LogCorruptionError, LogError
from sbp_core.log.cleaning import Cleaned, Cleaner
from sbp_core.log.durable_log import Log
from sbp_core.log.entry import Entry, Location
from sbp_core.log.index_file import SegmentIndex, encode_index
from sbp_core.log.recovery.inspection import inspect_log, repair_log
from sbp_core.log.segment_rows import SegmentRows
from sbp_core.log.segment_scan import Damage, SegmentScanner
from sbp_core.log.states.range_states import RangeState, range_created
from sbp_core.log.states.replicated_entries import (
    NUMBERED_KINDS,
    copied_entry,
    copy_begun_entry,
    fenced_entry,
    settled_entry,
)
from sbp_core.log.states.writer_states import NumberedBatch, WriterState, encode_writers, mark_of
from sbp_core.replication import Prefix
from sbp_core.segment_format import EntryKind, maybe_segment_base
from tests.support.disk import FaultyDisk
from tests.support.log import (
    CREATED,
    DIRECTORY,
    KEY,
    batch,
    bodies,
    commit,
    created,
    drop,
    feed,
    in_transit,
    open_log,
    prefix_of,
    replicated_range,
    staged,
    staged_bodies,
)


def rolled(segment_bytes: int = 600) -> tuple[Log, list[Entry], FaultyDisk]:
    """A log over several segments, and the entries of its replicated range."""
    disk = FaultyDisk()
    log = open_log(disk, segment_bytes=segment_bytes)
    log.append([CREATED, created(2)])
    numbered: list[Entry] = []
    for number in range(12):
        at = replicated_range(log).next_offset
        group = {
            3: [staged("t", 0, b"t0"), staged("u", 0, b"u0"), staged("t", 1, b"t1", 2)],
            5: [drop("u"), staged("v", 0, b"v0")],
        }.get(number) or ([commit(log, "t")] if number == 7 else [])
        group += [] if group else [mark_of(batch(at, 2), "w", number), batch(at, 2, b"x" * 90)]
        log.append([*group, batch(number, 1, b"other", (2, 0))])
        numbered += group
    return log, numbered, disk


def in_requests(log: Log, key: tuple[int, int], seq: int) -> list[Entry]:
    """The entries of a range as another replica asks for them, four at a time."""
    found: list[Entry] = []
    while len(found) < seq:
        assert log.prefix_at(key, len(found)) == prefix_of(*found)
        more = log.numbered_entries(key, len(found), seq)
        found += in_transit(itertools.islice(more, 4))
        next(more, None)  # a frame is full: the next entry has to wait
        more.close()
    return found


@pytest.mark.parametrize("is_full", [False, True])
def test_a_segment_is_read_once_however_many_ranges_are_copied_from_it(is_full: bool):
    disk = FaultyDisk()
    log = open_log(disk, segment_bytes=1 << 30)
    keys = [(stream_id, 0) for stream_id in range(1, 61)]
    log.append([range_created(*key, 0, 77, is_replicated=True) for key in keys])
    for number in range(10):
        log.append([batch(number, 1, b"x" * 3_000, key) for key in keys])
    segment_bytes = log.end_position
    if is_full:
        log.end_segment()
    before = disk.read_bytes
    for key in reversed(keys):
        expected = [batch(number, 1, b"x" * 3_000, key) for number in range(10)]
        assert in_requests(log, key, 10) == in_transit(expected)
    assert disk.read_bytes - before < 5 * segment_bytes


@pytest.mark.parametrize("key", [KEY, (2, 0), (3, 0)])
def test_entries_that_are_not_here_are_refused(key: tuple[int, int]):
    log, numbered, _ = rolled()
    seq = len(numbered) + 1 if key == KEY else 1
    for ask in (
        lambda: list(log.numbered_entries(key, 0, seq)),
        lambda: log.prefix_at(key, seq),
        lambda: log.truncation(key, 0, Prefix(seq, b"d" * 16)),
    ):
        with pytest.raises(LogError, match=r"not here|not replicated|without a gap"):
            ask()


@pytest.mark.parametrize("seq", [0, 7, 12, 23])
def test_a_replica_that_is_cut_equals_one_that_never_had_more(seq: int):
    log, numbered, disk = rolled()
    assert seq < len(numbered) == 24
    expected_disk = FaultyDisk()
    with open_log(expected_disk) as expected:
        expected.append([CREATED])
        feed(expected, in_transit(numbered[:seq]))
    expected = open_log(expected_disk)
    end_offset = replicated_range(expected).next_offset
    log.append([fenced_entry(KEY)])
    with pytest.raises(LogError, match="differ from the decided ones"):
        log.truncation(KEY, end_offset, Prefix(seq, b"other digest 16b"))
    log.append([log.truncation(KEY, end_offset, prefix_of(*numbered[:seq]))])
    for _ in range(2):
        assert replicated_range(log) == replace(replicated_range(expected), state=RangeState.SEALED)
        assert bodies(log) == bodies(expected)
        assert log.bytes_from(KEY, 0) == expected.bytes_from(KEY, 0)
        assert log.maybe_since(KEY, end_offset, 0) is None
        assert {each.txn_id: staged_bodies(log, each.txn_id) for each in log.staged.stagings()} == {
            each.txn_id: staged_bodies(expected, each.txn_id) for each in expected.staged.stagings()
        }
        assert log.staged.ends(1) == expected.staged.ends(1)
        assert log.staged.is_ended(1, "t") == expected.staged.is_ended(1, "t")
        assert log.writers.writers_of(1) == expected.writers.writers_of(1)
        log.close()
        log = open_log(disk, segment_bytes=600)


def test_writers_that_a_later_range_shares_are_forgotten_by_a_cut():
    log, numbered, _ = rolled()
    log.append([fenced_entry(KEY), range_created(1, 1, 2, 77, is_replicated=True)])
    log.append([log.truncation(KEY, 2, prefix_of(*numbered[:2]))])
    assert log.writers.writers_of(1) == []
    at_end = encode_writers([WriterState("w", 0, (NumberedBatch(0, 2, 5),))])
    log.append([Entry(EntryKind.RANGE_WRITERS, 1, 1, 2, 1, at_end)])
    assert log.writers.maybe_writer(1, "w") is not None


@pytest.mark.parametrize("is_settled", [True, False])
def test_the_cleaner_drops_no_entry_of_a_range_that_is_not_settled(is_settled: bool):
    log, numbered, disk = rolled()
    end = replicated_range(log).next_offset
    log.append([Entry(EntryKind.STREAM_DELETED, 2, -1, 0, 0), fenced_entry(KEY)])
    log.append([Entry(EntryKind.TRIM, 1, -1, end, 0)])
    if is_settled:
        log.append([settled_entry(KEY, end, prefix_of(*numbered))])
    log.end_segment()
    segments = len(log.extent.sealed)
    for _ in range(2):
        cleaned = Cleaner(log).clean(1.0)
        if not is_settled:
            assert in_transit(log.numbered_entries(KEY, 0, 24)) == in_transit(numbered)
            assert [log.prefix_at(KEY, seq) for seq in range(25)] == [
                prefix_of(*numbered[:seq]) for seq in range(25)
            ]
    assert cleaned == Cleaned()
    if is_settled:
        assert segments > len(log.extent.sealed)
        with pytest.raises(LogError, match="another replica may have it"):
            list(log.numbered_entries(KEY, 0, 24))
        return
    assert any(each.generation for each in log.extent.sealed)
    log.close()
    log = open_log(disk)
    log.append([log.truncation(KEY, 2, prefix_of(*numbered[:2]))])
    assert log.staged.stagings() == []
    log.end_segment()
    Cleaner(log).clean(1.0)
    assert log.extent.sealed == ()


def test_a_rewritten_segment_without_all_entries_yields_none_of_them():
    """Marks go when a settled range is cleaned: what is left must not be taken for the rest."""
    log, numbered, _ = rolled(100_000)
    log.append([Entry(EntryKind.STREAM_DELETED, 2, -1, 0, 0)])
    log.append([settled_entry(KEY, replicated_range(log).next_offset, prefix_of(*numbered))])
    log.end_segment()
    assert Cleaner(log).clean(1.0).rewritten_count == 1
    with pytest.raises(LogError, match="another replica may have it"):
        next(log.numbered_entries(KEY, 0, 24))
    with pytest.raises(LogError, match="another replica may have it"):
        log.prefix_at(KEY, 3)
    assert log.prefix_at(KEY, 24) == prefix_of(*numbered)


@pytest.mark.parametrize("is_replicated", [True, False])
def test_index_files_have_prefixes_where_a_range_is_replicated(is_replicated: bool):
    log, numbered, disk = rolled()
    ranges = [each for each in log.ranges() if is_replicated or each.prefix is None]
    segment = log.extent.sealed[0]
    encoded = b"".join(encode_index(segment, ranges, SegmentRows(0)))
    assert encoded[8:12] == (b"\0\0\0\4" if is_replicated else b"\0\0\0\3")
    index = SegmentIndex(encoded)
    assert index.ranges() == ranges
    assert index.seq(KEY) == (24 if is_replicated else 0)
    assert index.seq((2, 0)) == 0 or is_replicated
    indexes = [log.lookup.index(log.extent, at) for at in range(len(log.extent.sealed))]
    log.close()
    again = open_log(disk)
    for at, known in enumerate(indexes):
        assert again.lookup.index(again.extent, at).ranges() == known.ranges()
    assert indexes[-1].seq(KEY) > indexes[0].seq(KEY) > 0
    assert len(numbered) == 24


def places(disk: FaultyDisk) -> list[tuple[Path, Entry, Location]]:
    """Where the numbered entries of the range are."""
    found = []
    for path in sorted(each for each in disk.names if each.suffix == ".log"):
        base = maybe_segment_base(path.name)
        assert base is not None
        file = disk.open(path, is_writable=False)
        for item in SegmentScanner(file, base, file.size()).entries():
            assert not isinstance(item, Damage)
            entry, location = item
            if (entry.stream_id, entry.range_index) == KEY and entry.kind in NUMBERED_KINDS:
                found.append((path, entry, location))
    return found


def spoil(disk: FaultyDisk, path: Path, position: int) -> None:
    base = maybe_segment_base(path.name)
    assert base is not None
    for data in (disk.names[path].cached, disk.names[path].durable):
        data[position - base] ^= 1


def whole(*, is_settled: bool) -> tuple[FaultyDisk, list[Entry]]:
    """A log of one segment, closed."""
    log, numbered, disk = rolled(100_000)
    if is_settled:
        log.append([settled_entry(KEY, replicated_range(log).next_offset, prefix_of(*numbered))])
    log.close()
    return disk, numbered


@pytest.mark.parametrize("is_header", [True, False])
@pytest.mark.parametrize("segment_bytes", [600, 100_000])
@pytest.mark.parametrize("seq", [2, 7, 24])
def test_a_repaired_log_keeps_the_prefix_in_front_of_damage(
    seq: int, segment_bytes: int, is_header: bool
):
    log, numbered, disk = rolled(segment_bytes)
    log.close()
    path, _, location = places(disk)[seq - 1]
    spoil(disk, path, location.position + 13 if is_header else location.end - 1)
    found = inspect_log(disk, DIRECTORY)
    assert found.faults
    repair_log(disk, DIRECTORY, found, 5_000)
    assert inspect_log(disk, DIRECTORY).faults == ()
    log = open_log(disk, segment_bytes=segment_bytes)
    found_range = replicated_range(log)
    assert not found_range.is_whole
    assert found_range.prefix == prefix_of(*numbered[: seq - 1])
    assert in_transit(log.numbered_entries(KEY, 0, seq - 1)) == in_transit(numbered[: seq - 1])
    log.append(
        [fenced_entry(KEY), log.truncation(KEY, 2, prefix_of(*numbered[:2]))] if seq > 2 else []
    )
    assert seq <= 2 or (bodies(log) == [b"x" * 90] and replicated_range(log).is_whole)


def test_a_check_says_where_the_next_start_cuts():
    """In front of the mark of a writer, if its batch is torn."""
    disk = FaultyDisk()
    log = open_log(disk)
    log.append([CREATED])
    mark = log.append([mark_of(batch(0), "w", 0), batch(0)]).locations[0]
    disk.kill_process()
    path, _, location = places(disk)[-1]
    disk.names[path].truncate(location.end - 1)
    tail = inspect_log(disk, DIRECTORY).torn_tail
    assert tail is not None
    assert tail.position == mark.position
    assert open_log(disk).recovery.torn_tail == tail


def test_a_segment_with_nothing_but_an_end_of_a_replica_stays():
    log = open_log(FaultyDisk())
    log.append([CREATED])
    log.end_segment()
    log.append([drop("t")])
    log.end_segment()
    assert Cleaner(log).clean(1.0).removed_count == 1
    assert in_transit(log.numbered_entries(KEY, 0, 1)) == [drop("t")]


@pytest.mark.parametrize("seq", [2, 18])
def test_a_replica_whose_damage_is_mended_is_settled_as_a_whole(seq: int):
    disk, numbered = whole(is_settled=False)
    path, _, location = places(disk)[seq - 1]
    spoil(disk, path, location.end - 1)
    log = open_log(disk, segment_bytes=100_000)
    log.append([fenced_entry(KEY)])
    log.end_segment()
    log.append([created(9)])
    end, end_offset = prefix_of(*numbered), replicated_range(log).next_offset
    with pytest.raises(LogCorruptionError):
        log.truncation(KEY, end_offset, end)
    spoil(disk, path, location.end - 1)
    log.append([log.truncation(KEY, end_offset, end)])
    for _ in range(2):
        assert replicated_range(log).is_whole
        assert (replicated_range(log).state, replicated_range(log).prefix) == (
            RangeState.SEALED,
            end,
        )
        assert {each.txn_id for each in log.staged.stagings()} == {"v"}
        assert [writer.last_sequence for writer in log.writers.writers_of(1)] == [11]
        log.close()
        log = open_log(disk, segment_bytes=100_000)


@pytest.mark.parametrize("gap", [0, 5])
def test_records_are_copied_behind_those_that_are_here(gap: int):
    """Or behind some that are trimmed elsewhere; what was staged here does not count."""
    log, _, disk = rolled()
    records = [bytes(each) for each in bodies(log)]
    log.append([fenced_entry(KEY)])
    log.append([copy_begun_entry(KEY, replicated_range(log).next_offset + gap)])
    at, end = replicated_range(log).next_offset, Prefix(90, b"decided by the PD"[:16])
    for entries in ([batch(at, 3, b"new")], [staged("s", 0, b"kept")]):
        log.append(entries)
        log.close()
        log = open_log(disk, segment_bytes=600)
        found = replicated_range(log)
        assert (found.state, found.prefix, found.is_replicated) == (RangeState.FENCED, None, True)
        assert found.start_offset == (at if gap else 0)
    assert {each.txn_id: staged_bodies(log, each.txn_id) for each in log.staged.stagings()} == {
        "s": [b"kept"]
    }
    with pytest.raises(LogError, match="expected an end at offset"):
        log.append([copied_entry(KEY, at + 4, end)])
    log.append([copied_entry(KEY, at + 3, end)])
    for _ in range(2):
        found = replicated_range(log)
        assert (found.state, found.prefix, found.next_offset) == (RangeState.SEALED, end, at + 3)
        assert found.is_whole
        assert bodies(log, found.start_offset) == [*([] if gap else records), b"new"]
        assert not log.writers.is_known(1)
        for after_seq in (0, 20, 25, 60):  # its entries are not here
            with pytest.raises(LogError, match="another replica may have it"):
                list(log.numbered_entries(KEY, after_seq, 90))
        log.close()
        log = open_log(disk, segment_bytes=600)


def test_a_copy_that_begins_where_its_range_does_keeps_nothing():
    log, _, disk = rolled()
    start = replicated_range(log).start_offset
    log.append([fenced_entry(KEY)])
    log.append([copy_begun_entry(KEY, start), copied_entry(KEY, start, Prefix())])
    for _ in range(2):
        found = replicated_range(log)
        ends = found.start_offset, found.next_offset
        assert (found.state, ends) == (RangeState.SEALED, (start, start))
        assert found.is_whole
        assert bodies(log, start) == []
        log.close()
        log = open_log(disk, segment_bytes=600)


def test_a_copy_that_lost_records_is_not_whole():
    disk = FaultyDisk()
    with open_log(disk) as log:
        log.append([CREATED, fenced_entry(KEY), copy_begun_entry(KEY, 0)])
        log.append([batch(0)])
        log.append([batch(1)])
    path, _, location = places(disk)[-1]
    for data in (disk.names[path].cached, disk.names[path].durable):
        del data[location.position :]
    for _ in range(2):
        with open_log(disk) as log:
            assert replicated_range(log).state is RangeState.FENCED
            assert not replicated_range(log).is_whole
