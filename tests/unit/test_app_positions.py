"""The positions of a consumer: what is fetched, handed out, done and committed."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sbp_core.app import defaults
from sbp_core.app.positions import Positions
from sbp_core.errors import ConfigurationError


def test_all_streams_are_fetched_in_turn():
    positions = Positions()
    count = defaults.FETCH_STREAMS_MAX + 10
    for stream_id in range(count):
        positions.add(stream_id, f"s{stream_id}", 0, end_offset=None, committed_offset=None)
    rounds = [positions.next_items(100) for _ in range(2)]
    assert [len(items) for items in rounds] == [defaults.FETCH_STREAMS_MAX] * 2
    assert {each.stream_id for items in rounds for each in items} == set(range(count))


def test_a_stream_that_is_read_to_its_end_is_not_fetched():
    positions = Positions()
    positions.add(1, "one", 5, end_offset=5, committed_offset=None)
    positions.add(2, "two", 4, end_offset=5, committed_offset=None)
    assert [each.stream_id for each in positions.next_items(100)] == [2]
    assert not positions.is_over


def test_a_stream_that_is_not_read_is_named():
    positions = Positions()
    positions.add(1, "one", 0, end_offset=None, committed_offset=None)
    with pytest.raises(ConfigurationError, match="'two' now; it reads one"):
        positions.of("two")


class OneConsumer(RuleBasedStateMachine):
    """A caller that takes records, asks for the next ones, seeks, commits, and is killed."""

    def __init__(self):
        super().__init__()
        self.cursor = None
        self.finished = set()
        """Offsets that were handed out, and the next one was asked for, since the last seek."""
        self.start()

    def start(self):
        self.positions = Positions()
        self.positions.add(
            1, "one", self.cursor or 0, end_offset=None, committed_offset=self.cursor
        )
        self.at = self.positions.of("one")
        self.current = None
        self.from_offset = self.at.next_offset

    @rule()
    def hand_out(self):
        self.done()
        (item,) = self.positions.next_items(100)
        self.current = item.fetch_offset
        self.at.done_offset = self.current
        self.at.next_offset = self.current + 1

    @rule()
    def done(self):
        if self.current is not None:
            self.finished.add(self.current)
            self.at.done_offset = self.at.next_offset
            self.current = None

    @rule(is_by_caller=st.booleans())
    def commit(self, is_by_caller):
        if is_by_caller:
            if self.current is not None:
                self.finished.add(self.current)
            self.positions.finish()
        offsets = self.positions.to_commit()
        self.positions.on_committed(offsets)
        assert self.cursor is None or offsets.get(1, self.cursor) >= self.cursor
        self.cursor = offsets.get(1, self.cursor)
        assert self.positions.to_commit() == {}
        if is_by_caller:
            assert self.cursor == self.at.next_offset

    @rule(offset=st.integers(0, 20))
    def seek(self, offset):
        self.positions.seek(self.at, offset)
        self.current, self.from_offset, self.cursor = None, offset, None
        self.at.committed_offset = None
        self.finished.clear()

    @precondition(lambda self: self.cursor is not None)
    @rule()
    def is_killed_and_starts_again(self):
        self.start()

    @invariant()
    def nothing_is_committed_that_was_not_finished(self):
        if self.cursor is not None:
            assert set(range(self.from_offset, self.cursor)) <= self.finished


TestOneConsumer = OneConsumer.TestCase
