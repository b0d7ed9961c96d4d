"""The table of hosted ranges: their state in the log, and the requests since."""

import itertools

import pytest

from sbp_core.errors import InvalidRequestError, NotFoundError, RangeNotFoundError, RangeSealedError
from sbp_core.log.states.range_states import LoggedRange, RangeState
from sbp_core.rangeserver.hosted_ranges import RANGE, HostedRange, RangeInput, RangeTable


def logged(start=0, tail=None, stream_id=1, range_index=0, state=RangeState.OPEN):
    return LoggedRange(stream_id, range_index, start, start if tail is None else tail, state)


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
    table = RangeTable([logged()])
    hosted = table.range_at(1, 0)
    assert [hosted.assign(3), hosted.assign(2)] == [0, 3]
    assert (hosted.next_offset, hosted.assigned_offset) == (0, 5)
    table.publish(logged(tail=3))
    assert (hosted.next_offset, hosted.assigned_offset) == (3, 5)
    assert table.range_at(1, 0) is hosted


def test_a_committed_state_moves_a_range_by_the_table_and_never_back():
    for state, committed in itertools.product(RangeState, RangeState):
        hosted = HostedRange(1, 0, 0)
        hosted.state = state
        hosted.publish(logged(state=committed))
        assert hosted.state is state.or_later(committed)
        assert hosted.state in {state, *RANGE.table[state].values()}


def test_bounds_of_a_stream_do_not_count_ranges_that_were_trimmed_away():
    table = RangeTable([logged(0, 5, state=RangeState.SEALED), logged(5, 10, range_index=1)])
    assert table.bounds_of(1) == (0, 10)
    table.publish(logged(5, 5, state=RangeState.SEALED))
    table.publish(logged(7, 10, range_index=1))
    assert table.bounds_of(1) == (7, 10)
    assert not table.has_stream(77)


def test_a_seal_ends_the_range_behind_what_was_assigned_whatever_is_published_later():
    table = RangeTable([logged()])
    hosted = table.range_at(1, 0)
    hosted.assign(3)
    hosted.receive(RangeInput.SEAL)
    table.publish(logged(tail=3))
    assert (hosted.state, hosted.assigned_offset) == (RangeState.SEALED, 3)
    with pytest.raises(RangeSealedError, match="sealed at offset 3"):
        hosted.assign(1)


def test_a_range_has_no_end_before_the_records_below_it_are_durable():
    table = RangeTable([logged()])
    hosted = table.range_at(1, 0)
    hosted.assign(3)
    table.move(hosted, RangeInput.SEAL)
    assert (hosted.state, hosted.end_offset) == (RangeState.SEALED, None)
    table.publish(logged(tail=3))  # the seal itself may still be lost
    assert hosted.end_offset is None
    table.publish(logged(tail=3, state=RangeState.SEALED))
    assert hosted.end_offset == 3
    assert RangeTable([logged(tail=3, state=RangeState.SEALED)]).range_at(1, 0).end_offset == 3


def test_offsets_never_wrap():
    hosted = HostedRange(1, 0, 2**63 - 3)
    with pytest.raises(InvalidRequestError, match="no offsets left"):
        hosted.assign(3)
    assert hosted.assign(2) == 2**63 - 3


def test_the_latest_range_is_the_default_and_others_are_found_by_index():
    table = RangeTable([logged(10, range_index=1), logged()])
    assert table.range_at(1, -1).range_index == 1
    assert table.range_at(1, 0).start_offset == 0
    with pytest.raises(RangeNotFoundError, match="range 2 of stream 1 is not hosted here"):
        table.range_at(1, 2)
    with pytest.raises(RangeNotFoundError, match="no range of stream 2"):
        table.ranges_of(2)
