"""Trim arithmetic, of the metadata and of a range server, against its plain definition."""

from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sbp_core.log.entry import Entry
from sbp_core.log.states.range_states import RangeStates
from sbp_core.pd.model import NewStream, RangeRecord, SealedRange
from sbp_core.rangeserver.hosted_ranges import RangeTable
from sbp_core.segment_format import EntryKind
from tests.support.clock import examples

FIRST = (-1, -1)


def remaining(ranges, offset):
    """The ranges with an offset that is not trimmed, and always the last one."""
    kept = [(index, max(start, offset), end) for index, start, end in ranges[:-1] if end > offset]
    index, start, end = ranges[-1]
    ceiling = offset if end is None else min(offset, end)
    return [*kept, (index, max(start, ceiling), end)]


def stream_id_of(store):
    ((stream, _),) = store.create_streams([NewStream(None, 1, 1, 0, (1,))], 0)
    return stream.stream_id


@pytest.fixture
def store(home):
    return home.open()


@settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    lengths=st.lists(st.integers(0, 6), max_size=6),
    is_open=st.booleans(),
    offsets=st.lists(st.integers(0, 40), min_size=1, max_size=5),
)
def test_the_store_trims_by_the_definition(store, lengths, is_open, offsets):
    ends = [sum(lengths[: count + 1]) for count in range(len(lengths))]
    edges = [0, *ends]
    expected = [(index, start, end) for index, (start, end) in enumerate(pairwise(edges))]
    if is_open or not expected:
        expected.append((len(expected), edges[-1], None))
    other, stream_id = stream_id_of(store), stream_id_of(store)
    for index, start, end in expected:
        if index:
            store.create_ranges([RangeRecord(stream_id, index, start, None, 1, (1, 2))])
        if end is not None:
            store.seal_ranges([SealedRange(stream_id, index, end)])
    for offset in offsets:
        before, revision = expected, store.revision()
        expected = remaining(before, offset)
        assert remaining(expected, offset) == expected
        ((stream, smallest), nothing) = store.trim_streams([(stream_id, offset), (10**6, 1)])
        assert nothing is None
        assert stream.stream_id == stream_id
        found = store.ranges_after(FIRST, 100, stream_id=stream_id, server_id=2)
        found += store.ranges_after(FIRST, 100, stream_id=stream_id, server_id=None)
        listed = [(each.range_index, each.start_offset, each.end_offset) for each in found]
        assert listed[-len(expected) :] == expected
        assert smallest == found[-len(expected)]
        assert (store.revision() > revision) == (expected != before)
    (untouched,) = store.ranges_after(FIRST, 100, stream_id=other, server_id=None)
    assert (untouched.start_offset, untouched.end_offset) == (0, None)


@given(
    counts=st.lists(st.lists(st.integers(1, 4), max_size=3), min_size=1, max_size=4),
    offsets=st.lists(st.integers(0, 50), max_size=5),
)
def test_a_server_serves_from_the_highest_offset_that_was_trimmed(counts, offsets):
    entries, tail = [], 0
    for index, batches in enumerate(counts):
        if index:
            entries.append(Entry(EntryKind.SEAL, 1, index - 1, tail, 0))
        entries.append(Entry(EntryKind.RANGE_CREATED, 1, index, tail, 0))
        for count in batches:
            entries.append(Entry(EntryKind.BATCH, 1, index, tail, count))
            tail += count
    entries += [Entry(EntryKind.TRIM, 1, -1, offset, 0) for offset in offsets]
    states = RangeStates()
    states.update(states.after(entries))
    table = RangeTable(states)
    start = min(max(offsets, default=0), tail)
    assert table.bounds_of(1) == (start, tail)
    served = [
        offset
        for hosted in table.ranges_of(1)
        for offset in range(hosted.start_offset, hosted.next_offset)
    ]
    assert served == list(range(start, tail))
