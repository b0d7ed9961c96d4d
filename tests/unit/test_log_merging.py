"""Small batches in full segments: which are merged, when, and what every reader finds then."""

from __future__ import annotations

from collections.abc import Iterable

from sbp_core import limits
from sbp_core.log.cleaning import Cleaned, Cleaner
from sbp_core.log.entry import Entry
from sbp_core.log.merging import MERGE_BYTES_MAX, MERGE_SPAN_MS
from sbp_core.log.recovery.inspection import inspect_log
from sbp_core.log.states.replicated_entries import copy_begun_entry, fenced_entry, settled_entry
from sbp_core.replication import Prefix
from sbp_core.segment_format import EntryKind
from tests.support.disk import FaultyDisk
from tests.support.log import (
    CREATED,
    DIRECTORY,
    KEYS,
    SEGMENT_BYTES,
    Clock,
    batch,
    check_all,
    check_batches,
    commit,
    concatenate,
    counts,
    created,
    filled,
    freed_bytes,
    open_log,
    opened,
    slots,
    small,
    staged,
)
from tests.support.log import KEY as REPLICATED


def test_small_batches_of_interleaved_streams_are_merged_once() -> None:
    disk = FaultyDisk()
    log = opened(disk)
    appended = filled(log)
    full = len(log.extent.sealed)
    own = Cleaner(log, concatenate)
    cleaned = own.clean()
    assert full > 2
    assert cleaned.rewritten_count == full
    assert cleaned.merged_count == sum(
        sum(count for count in counts(log, key) if count > 1) for key in KEYS
    )
    assert len([count for count in counts(log) if count > 1]) == full
    assert cleaned.freed_bytes > 2 * SEGMENT_BYTES
    assert own.clean() == Cleaned()
    for _ in range(2):
        check_all(log, appended)
        assert not inspect_log(disk, DIRECTORY).lost
        log.close()
        for path in [each for each in disk.names if each.suffix == ".idx"]:
            disk.remove(path)
        log = opened(disk)
        assert Cleaner(log, concatenate).clean() == Cleaned()


def test_a_merged_batch_has_the_latest_time_so_no_look_up_misses_a_record() -> None:
    disk = FaultyDisk()
    log = opened(disk)
    appended = filled(log)
    before = {key: [slot.time_ms for slot in slots(log, key)] for key in KEYS}
    Cleaner(log, concatenate).clean()
    for key, times in before.items():
        merged = slots(log, key)
        for slot in merged:
            assert slot.time_ms == max(times[slot.base_offset : slot.end_offset])
        for offset, time_ms in enumerate(times):
            found = log.maybe_since(key, 0, time_ms)
            assert found is not None
            assert found.offset <= offset
            assert found.time_ms >= time_ms
    check_all(log, appended)


def test_batches_further_apart_in_time_are_not_merged() -> None:
    clock = Clock()
    log = opened(FaultyDisk(), clock)
    log.append([created()])
    for offset in range(200):
        clock.now_ms += MERGE_SPAN_MS // 20
        log.append([small(offset)])
    Cleaner(log, concatenate).clean()
    assert max(counts(log)) in {19, 20}
    log.end_segment()
    for offset in range(200, 400):
        clock.now_ms += MERGE_SPAN_MS + 1
        log.append([small(offset)])
    own = Cleaner(log, concatenate)
    own.clean()
    full = len(log.extent.sealed)
    log.end_segment()
    assert own.clean() == Cleaned()
    assert full < len(log.extent.sealed)


def test_a_segment_of_large_batches_stays_and_so_do_large_ones_in_another() -> None:
    log = open_log(FaultyDisk(), segment_bytes=2 * limits.MIB)
    log.append([created(*key) for key in KEYS])
    large = bytes(MERGE_BYTES_MAX)
    for offset in range(70):
        log.append([batch(offset, body=large), small(offset, (2, 0))])
    assert len(log.extent.sealed) == 1
    assert Cleaner(log, concatenate).clean() == Cleaned()
    log.append([batch(70, body=large), *(small(offset, (2, 0)) for offset in range(70, 3_000))])
    log.end_segment()
    assert Cleaner(log, concatenate).clean().merged_count > 2_000
    assert counts(log) == [1] * 71


def test_staged_batches_stay_and_end_a_run() -> None:
    log = opened(FaultyDisk())
    log.append([created(), created(2)])
    log.append([small(offset) for offset in range(20)])
    log.append([staged("t", 0, b"staged")])
    log.append([commit(log, "t")])
    log.append([small(offset) for offset in range(21, 40)])
    log.end_segment()
    assert Cleaner(log, concatenate).clean().merged_count == 39
    assert counts(log) == [20, 1, 19]


def test_replicated_ranges_keep_their_batches_and_their_history() -> None:
    log = opened(FaultyDisk())
    log.append([CREATED, created(7)])
    log.append([small(offset, REPLICATED) for offset in range(40)])
    log.append([small(offset, (7, 0)) for offset in range(40)])
    log.end_segment()
    log.append([small(offset, (7, 0)) for offset in range(40, 80)])
    log.end_segment()
    assert Cleaner(log, concatenate).clean() == Cleaned(0, 1, freed_bytes(log), 40)
    assert counts(log, REPLICATED) == [1] * 40
    assert counts(log, (7, 0)) == [1] * 40 + [40]
    assert len(list(log.numbered_entries(REPLICATED, 0, 40))) == 40


def test_batches_of_a_range_that_is_copied_stay_as_its_other_replicas_have_them() -> None:
    """Only equal ones can mend each other. Its entries have no numbers until it is settled."""
    log = opened(FaultyDisk())
    log.append([CREATED, created(7)])
    log.append([fenced_entry(REPLICATED)])
    log.append([copy_begun_entry(REPLICATED, 0)])
    for offset in range(40):
        log.append([small(offset, REPLICATED), *small_pair(offset)])
    log.end_segment()
    assert Cleaner(log, concatenate).clean().merged_count > 40
    log.append([settled_entry(REPLICATED, 40, Prefix(40, b"d" * 16))])
    log.end_segment()
    assert Cleaner(log, concatenate).clean().merged_count == 0
    assert counts(log, REPLICATED) == [1] * 40


def small_pair(at: int) -> list[Entry]:
    return [small(2 * at, (7, 0)), small(2 * at + 1, (7, 0))]


def test_a_segment_stays_if_none_of_a_few_batches_can_be_merged() -> None:
    """Columns and sequences stay as they are: to rewrite a segment of them would be for nothing."""
    tried: list[int] = []

    def none(bodies: Iterable[memoryview]) -> tuple[int, None]:
        tried.append(len(next(iter(bodies))))
        return 1, None

    log = opened(FaultyDisk())
    filled(log)
    own = Cleaner(log, none)
    assert own.clean() == Cleaned()
    assert len(tried) == sum(3 * len(KEYS) for _ in log.extent.sealed)
    tried.clear()
    assert own.clean() == Cleaned()
    assert not tried


def test_a_segment_is_rewritten_if_batches_of_any_stream_can_be_merged() -> None:
    def second(bodies: Iterable[memoryview]) -> tuple[int, bytes | None]:
        parts = [bytes(each) for each in bodies]
        return len(parts), b"".join(parts) if parts[0].startswith(b"2:") else None

    log = opened(FaultyDisk())
    appended = filled(log)
    assert Cleaner(log, second).clean().rewritten_count == len(log.extent.sealed)
    assert max(counts(log)) == 1
    assert max(counts(log, (2, 0))) > 1
    check_all(log, appended)


def test_only_live_batches_are_merged() -> None:
    log = opened(FaultyDisk())
    appended = filled(log)
    log.append([Entry(EntryKind.TRIM, 1, -1, 10, 0), Entry(EntryKind.STREAM_DELETED, 2, -1, 0, 0)])
    Cleaner(log, concatenate).clean()
    found = slots(log, offset=10)
    assert found[0].base_offset == 10
    check_batches((1, 0), found, appended[1, 0], 10)
