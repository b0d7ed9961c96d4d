"""The writers that a log remembers against lists, over recoveries, new segments and moves."""

from __future__ import annotations

from collections import OrderedDict

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from sbp_core import limits
from sbp_core.errors import WriterGapError, WriterRepeatError, WriterUnknownError
from sbp_core.log.cleaning import Cleaner
from sbp_core.log.entry import Entry
from sbp_core.log.states.writer_states import NumberedBatch, decode_writers, encode_writers, mark_of
from sbp_core.rangeserver.appending.append_items import BatchNumber, InFlight, Writers
from sbp_core.segment_format import EntryKind
from tests.support.clock import examples
from tests.support.disk import FaultyDisk
from tests.support.log import batch, created, open_log

KEPT, PER_STREAM, IN_ALL = 3, 3, 6

streams = st.sampled_from((1, 1, 1, 2, 3))
writers = st.sampled_from("abcd")


@pytest.fixture(autouse=True, scope="module")
def few():
    """Limits that are reached soon."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "WRITER_BATCHES_KEPT", KEPT)
        patch.setattr(limits, "WRITERS_PER_STREAM_MAX", PER_STREAM)
        patch.setattr(limits, "WRITERS_MAX", IN_ALL)
        patch.setattr(limits, "SNAPSHOT_WRITERS_PER_ENTRY", 2)
        yield


class WritersOfALog(RuleBasedStateMachine):
    """Each stream has one open range on this server, or came from another one with its writers."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = FaultyDisk()
        self.model: OrderedDict[tuple[int, str], list[tuple[int, int]]] = OrderedDict()
        """By stream and writer, the one that appended last at the end: all its batches."""
        self.tails: dict[int, int] = {}
        self.range_index: dict[int, int] = {}

    @initialize()
    def begin(self) -> None:
        self.log = open_log(self.disk, segment_bytes=700)

    @rule(stream=streams, index=st.integers(1, 3), known=st.lists(writers, unique=True))
    def a_range_comes_from_elsewhere(self, stream: int, index: int, known: list[str]) -> None:
        """The writers before it had three batches each, the last ones."""
        if stream in self.tails:
            return
        other = open_log(FaultyDisk())
        other.append([created(stream)])
        for writer in known:
            for sequence in range(3):
                entry = batch(other.ranges()[0].next_offset, 2, key=(stream, 0))
                other.append([mark_of(entry, writer, sequence), entry])
        tail = other.ranges()[0].next_offset
        told = encode_writers(other.writers.writers_of(stream))
        remembered = [each.writer_id for each in decode_writers(told)]
        assert remembered == known[-PER_STREAM:]
        self.log.append(
            [
                created(stream, index, tail),
                Entry(EntryKind.RANGE_WRITERS, stream, index, tail, len(remembered), told),
            ]
        )
        self.tails[stream], self.range_index[stream] = tail, index
        for at, writer in enumerate(known):
            if writer in remembered:
                self.remember(stream, writer, [(6 * at + 2 * n, 2) for n in range(3)])
        assert self.log.writers.known_from(stream) == index

    @rule(
        stream=streams,
        writer=writers,
        ahead=st.sampled_from((0, 0, 0, 0, -1, -2, -3, -4, 1, 2)),
        count=st.integers(1, 2),
    )
    def append(self, stream: int, writer: str, ahead: int, count: int) -> None:
        """The log accepts, repeats or refuses a sequence by the batches that it remembers."""
        if stream not in self.tails:
            self.log.append([created(stream)])
            self.tails[stream], self.range_index[stream] = 0, 0
        batches = self.model.get((stream, writer), [])
        sequence = max(len(batches) + ahead, 0)
        number = BatchNumber(stream, writer, sequence)
        judge = Writers(self.log.writers, InFlight())
        if sequence > len(batches):
            with pytest.raises(WriterGapError if batches else WriterUnknownError):
                judge.check_next(number, self.range_index[stream])
            return
        if sequence < len(batches) - KEPT:
            with pytest.raises(WriterRepeatError):
                judge.maybe_repeat(number, self.range_index[stream], 1, memoryview(b""))
            return
        is_repeat = sequence < len(batches)
        expected_count = batches[sequence][1] if is_repeat else 1
        repeat = judge.maybe_repeat(
            number, self.range_index[stream], expected_count, memoryview(b"")
        )
        assert (repeat is not None) == is_repeat
        if repeat is not None:
            assert isinstance(repeat, NumberedBatch)
            assert repeat[:2] == batches[sequence]
            return
        judge.check_next(number, self.range_index[stream])
        tail = self.tails[stream]
        entry = batch(tail, count, key=(stream, self.range_index[stream]))
        self.log.append([mark_of(entry, writer, sequence), entry])
        self.tails[stream] += count
        self.remember(stream, writer, [*batches, (tail, count)])

    def remember(self, stream: int, writer: str, batches: list[tuple[int, int]]) -> None:
        self.model[stream, writer] = batches
        self.model.move_to_end((stream, writer))
        own = [each for each in self.model if each[0] == stream]
        if len(own) > PER_STREAM:
            del self.model[own[0]]
        elif len(self.model) > IN_ALL:
            self.model.popitem(last=False)

    @rule(stream=streams)
    def trim_and_clean(self, stream: int) -> None:
        """The log remembers batches of writers after it deletes their segments."""
        if stream in self.tails:
            self.log.append([Entry(EntryKind.TRIM, stream, -1, self.tails[stream], 0)])
            Cleaner(self.log).clean()

    @rule(stream=streams)
    def seal_and_go_on(self, stream: int) -> None:
        if stream in self.tails:
            index, tail = self.range_index[stream], self.tails[stream]
            self.range_index[stream] += 1
            self.log.append(
                [
                    Entry(EntryKind.SEAL, stream, index, tail, 0),
                    created(stream, index + 1, tail),
                ]
            )

    @rule(stream=streams)
    def what_is_told_too_late_does_not_count(self, stream: int) -> None:
        """The placement driver's answer may come twice: there may be appends since the first."""
        known_from = self.log.writers.known_from(stream)
        if known_from:
            late = encode_writers([])
            self.log.append([Entry(EntryKind.RANGE_WRITERS, stream, known_from, 0, 0, late)])

    @rule()
    def recover(self) -> None:
        self.disk.kill_process()
        self.log = open_log(self.disk, segment_bytes=700)

    @invariant()
    def those_that_appended_last_are_remembered(self) -> None:
        if not hasattr(self, "log"):
            return
        found = {
            (stream, state.writer_id): (
                state.last_sequence,
                [(each.base_offset, each.record_count) for each in state.batches],
            )
            for stream in (1, 2, 3)
            for state in self.log.writers.writers_of(stream)
        }
        assert found == {
            writer: (len(batches) - 1, batches[-KEPT:]) for writer, batches in self.model.items()
        }
        assert len(self.log.writers) == len(found)


TestWritersOfALog = WritersOfALog.TestCase
TestWritersOfALog.settings = settings(
    max_examples=examples(100), stateful_step_count=40, deadline=None
)
