"""The table of hosted ranges: built by log entries, in order, and by nothing else."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbp_core.errors import (
    InvalidRequestError,
    LogCorruptionError,
    LogError,
    NotFoundError,
    RangeNotFoundError,
    RangeSealedError,
)
from sbp_core.log.entry import Entry, EntryKind, Location
from sbp_core.rangeserver.ranges import (
    RANGE,
    HostedRange,
    RangeInput,
    RangeState,
    RangeTable,
)

PLACE = Location(100, 50)


def created(stream_id=1, range_index=0, start=0):
    return Entry(EntryKind.RANGE_CREATED, stream_id, range_index, start, 0)


def batch(base, count, stream_id=1, range_index=0):
    return Entry(EntryKind.BATCH, stream_id, range_index, base, count, b"")


def table_of(*entries):
    table = RangeTable()
    for entry in entries:
        table.apply(entry, PLACE)
    return table


def test_the_product_of_states_and_inputs_is_listed():
    for state, asked in itertools.product(RangeState, RangeInput):
        hosted = HostedRange(1, 0, 0)
        hosted.state = state
        target = RANGE.maybe_next(state, asked)
        if target is None:
            with pytest.raises((RangeSealedError, NotFoundError)):
                hosted.receive(asked)
            assert hosted.state is state
        else:
            hosted.receive(asked)
            assert hosted.state is target


def test_offsets_are_assigned_ahead_and_become_readable_when_durable():
    table = table_of(created())
    hosted = table.range_at(1, 0)
    assert [hosted.assign(3), hosted.assign(2)] == [0, 3]
    assert (hosted.next_offset, hosted.assigned_offset) == (0, 5)
    table.apply(batch(0, 3), PLACE)
    assert (hosted.next_offset, hosted.assigned_offset) == (3, 5)


def test_a_range_that_is_created_twice_keeps_what_it_has():
    table = table_of(created(), batch(0, 3), created())
    assert table.range_at(1, 0).next_offset == 3


def trimmed(offset, stream_id=1):
    return Entry(EntryKind.TRIM, stream_id, -1, offset, 0)


def test_a_trim_moves_the_start_forward_inside_the_bounds_of_each_range():
    seal = Entry(EntryKind.SEAL, 1, 0, 5, 0)
    table = table_of(created(), batch(0, 5), seal, created(1, 1, 5), batch(5, 5, 1, 1))
    assert table.bounds_of(1) == (0, 10)
    for offset, starts in [(3, [3, 5]), (2, [3, 5]), (7, [5, 7]), (99, [5, 10]), (0, [5, 10])]:
        table.apply(trimmed(offset), PLACE)
        assert [each.start_offset for each in table.ranges_of(1)] == starts
        assert table.bounds_of(1) == (max(starts) if starts[0] == 5 else starts[0], 10)
    assert table.range_at(1, 1).assign(2) == 10
    table.apply(trimmed(1, stream_id=77), PLACE)
    assert not table.has_stream(77)


def test_a_seal_ends_the_range_behind_what_was_assigned():
    table = table_of(created())
    hosted = table.range_at(1, 0)
    hosted.assign(3)
    hosted.receive(RangeInput.SEAL)
    assert hosted.maybe_end_offset == 3
    with pytest.raises(RangeSealedError, match="sealed at offset 3"):
        hosted.assign(1)


def test_offsets_never_wrap():
    hosted = HostedRange(1, 0, 2**63 - 3)
    with pytest.raises(InvalidRequestError, match="no offsets left"):
        hosted.assign(3)
    assert hosted.assign(2) == 2**63 - 3


def test_the_latest_range_is_the_default_and_others_are_found_by_index():
    table = table_of(created(range_index=1, start=10), created(range_index=0))
    assert table.range_at(1, -1).range_index == 1
    assert table.range_at(1, 0).start_offset == 0
    with pytest.raises(RangeNotFoundError, match="range 2 of stream 1 is not hosted here"):
        table.range_at(1, 2)
    with pytest.raises(RangeNotFoundError, match="no range of stream 2"):
        table.ranges_of(2)


def test_entries_that_contradict_the_log_are_corruption():
    with pytest.raises(LogCorruptionError, match="never created"):
        table_of(batch(0, 1))
    with pytest.raises(LogError, match="cannot follow"):
        table_of(created(), batch(1, 1))
    with pytest.raises(LogCorruptionError, match="newer version"):
        table_of(created(), Entry(EntryKind.STAGED, 1, 0, 0, 1))


@given(st.lists(st.integers(1, 1000), max_size=20), st.booleans())
def test_replaying_the_log_gives_the_same_range(counts, is_sealed):
    live = table_of(created(start=7))
    hosted = live.range_at(1, 0)
    entries = [created(start=7)]
    entries += [batch(hosted.assign(count), count) for count in counts]
    if is_sealed:
        entries.append(Entry(EntryKind.SEAL, 1, 0, hosted.assigned_offset, 0))
    for entry in entries[1:]:
        live.apply(entry, PLACE)
    replayed = table_of(*entries).range_at(1, 0)
    for seen in (hosted, replayed):
        assert seen.next_offset == seen.assigned_offset == 7 + sum(counts)
        assert seen.maybe_end_offset == (7 + sum(counts) if is_sealed else None)
