"""The reducer: entries change the states of ranges, and a snapshot preserves them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbp_core.errors import LogCorruptionError
from sbp_core.limits import SNAPSHOT_RANGES_PER_ENTRY
from sbp_core.log.entry import SNAPSHOT_KINDS, Entry
from sbp_core.log.states.range_states import (
    NO_TIME,
    LoggedRange,
    RangeState,
    RangeStates,
    range_created,
)
from sbp_core.log.states.state_snapshot import (
    SnapshotReader,
    decode_states,
    encode_snapshot,
    encode_states,
)
from sbp_core.segment_format import EntryKind
from tests.support.log import batch, created

SEAL = Entry(EntryKind.SEAL, 1, 0, 5, 0)
DELETE = Entry(EntryKind.STREAM_DELETED, 1, -1, 0, 0)


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ([batch(0)], "never created"),
        ([SEAL], "never created"),
        ([created(), batch(1)], "record at offset 0"),
        ([created(), batch(0, 3), batch(2)], "record at offset 3"),
        ([created(), batch(0, 0)], "at least 1 record"),
        ([created(), SEAL, batch(0)], "which is SEALED"),
        ([created(), DELETE, batch(0)], "which is DELETED"),
    ],
)
def test_entries_that_contradict_those_before_are_refused_and_change_nothing(
    entries: list[Entry], reason: str
) -> None:
    states = RangeStates()
    with pytest.raises(LogCorruptionError, match=reason):
        states.after(entries)
    assert list(states) == []


@pytest.mark.parametrize("kind", [EntryKind.COMMIT, *sorted(SNAPSHOT_KINDS)])
def test_entries_about_the_log_do_not_change_ranges(kind: EntryKind) -> None:
    with pytest.raises(LogCorruptionError, match=kind.name):
        RangeStates().after([Entry(kind, 1, 0, 0, 0)])


i64 = st.integers(-(2**63), 2**63 - 1)
ranges_lists = st.lists(
    st.builds(
        LoggedRange, i64, st.integers(-(2**31), 2**31 - 1), i64, i64, st.sampled_from(RangeState)
    ),
    unique_by=lambda logged: logged.key,
    max_size=8,
)


@given(ranges_lists, st.integers(1, 3))
def test_a_snapshot_brings_all_states_back(ranges: list[LoggedRange], chunk: int) -> None:
    states = RangeStates(ranges)
    entries = encode_snapshot(states, ranges_per_entry=chunk)
    assert len(entries) == max(1, -(-len(ranges) // chunk))
    reader = SnapshotReader()
    assert [reader.add(entry) for entry in entries] == [False] * (len(entries) - 1) + [True]
    assert list(RangeStates(reader.ranges)) == list(states) == sorted(ranges, key=lambda r: r.key)


def test_a_snapshot_that_does_not_go_on_is_damage() -> None:
    states = RangeStates(LoggedRange(1, n, 0, 0) for n in range(SNAPSHOT_RANGES_PER_ENTRY + 1))
    first, second = encode_snapshot(states)
    (other,) = encode_snapshot(RangeStates())
    for wrong in (other, created(), batch(0)):
        reader = SnapshotReader()
        reader.add(first)
        assert not reader.is_complete
        with pytest.raises(LogCorruptionError, match="should go on: 65536 of 65537 are here"):
            reader.add(wrong)
    cut = Entry(second.kind, 0, 1, second.base_offset, 1, second.body[:-1])
    nowhere = Entry(second.kind, 0, 1, second.base_offset, 1, bytes(second.body[:-1]) + b"\x07")
    for damaged in (cut, nowhere):
        with pytest.raises(LogCorruptionError):
            reader.add(damaged)


def test_the_time_of_creation_outlives_snapshots_and_is_missing_in_older_ones():
    states = RangeStates()
    for entry in (range_created(1, 0, 5, 77), range_created(2, 0, 0, NO_TIME), batch(5, 3)):
        states.apply(entry)
    states.apply(Entry(EntryKind.SEAL, 1, 0, 8, 0))
    first, second = states
    assert (first.created_at_ms, first.next_offset, second.created_at_ms) == (77, 8, NO_TIME)
    kept = decode_states(memoryview(encode_states([first, second])), 2)
    assert [each.created_at_ms for each in kept] == [77, NO_TIME]
    assert kept == [first, second]
    older = encode_states([second])
    assert [each.created_at_ms for each in decode_states(memoryview(older), 1)] == [NO_TIME]
    assert len(encode_states([first])) == len(older) + 8


def test_a_range_that_is_restored_without_its_time_keeps_the_known_one():
    states = RangeStates()
    states.apply(range_created(1, 0, 5, 77))
    states.update({(1, 0): LoggedRange(1, 0, 5, 9)})
    assert next(iter(states)).created_at_ms == 77


def test_other_fields_of_a_range_created_entry_are_not_a_time():
    for body in (b"", b"\x01", b"\x03" + bytes(8), b"\x01" + bytes(9)):
        states = RangeStates()
        states.apply(Entry(EntryKind.RANGE_CREATED, 1, 0, 5, 0, body))
        assert next(iter(states)).created_at_ms == NO_TIME
