"""Members of a group that are slow, lose answers and die: no stream has two readers.

The messages between members and the placement driver are lost, late, and come twice, in any order.
A consumer here follows the rules for clients in docs/reference/protocol.md.
"""

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from sbp_core.errors import MemberUnknownError, StreamNotHeldError
from sbp_core.pd.groups.group import Group, GroupState, Member
from tests.support.clock import examples

MEMBERS = st.sampled_from(["a", "b", "c"])
STREAMS = st.integers(1, 4)
SUBSCRIPTIONS = st.one_of(st.just({1, 2, 3, 4}), st.sets(STREAMS))
WHICH = st.integers(0, 7)
"""A message, counted from the newest."""


@dataclass
class Consumer:
    """The knowledge of a process; `reads` are the streams that it may be reading a record of."""

    generation: int
    reads: set[int] = field(default_factory=set)
    assigned: set[int] = field(default_factory=set)

    def on_answer(self, generation, assigned):
        if generation < self.generation:
            return
        self.generation = generation
        self.assigned = set(assigned)
        self.reads |= self.assigned


class GroupMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.group = Group(1_000)
        self.streams = {1, 2, 3}
        self.wanted = {}
        self.consumers = {}
        self.heartbeats, self.answers, self.commits = [], [], []

    def eligible(self, members):
        return {each: frozenset(self.wanted[each] & self.streams) for each in members}

    def advance(self, group):
        assert (group.generation > self.group.generation) == (group is not self.group)
        self.group = group

    def answer(self, member_id):
        answer = (member_id, self.group.generation, self.group.assigned(member_id))
        self.answers.append(answer)
        return answer[1:]

    @rule(member_id=MEMBERS, wanted=SUBSCRIPTIONS, is_late=st.booleans())
    def join(self, member_id, wanted, is_late):
        """A member joins, or joins again as its answer was lost, or with other streams."""
        self.wanted[member_id] = wanted
        member = Member(member_id, (), 1, 1)
        members = {*self.group.members, member_id}
        self.advance(self.group.with_member(member, self.eligible(members)))
        answer = self.answer(member_id)
        if not is_late:
            self.consumers.setdefault(member_id, Consumer(0)).on_answer(*answer)

    @rule(member_id=MEMBERS, late=st.sampled_from(["", "", "", "request", "answer"]))
    def send_heartbeat(self, member_id, late):
        consumer = self.consumers.get(member_id)
        if consumer is not None:
            self.heartbeats.append((member_id, consumer.generation, frozenset(consumer.reads)))
            if late != "request":
                self.heartbeat_arrives(0)
            if not late and self.answers and self.answers[-1][0] == member_id:
                self.answer_arrives(0)

    @rule(which=WHICH)
    def heartbeat_arrives(self, which):
        """It stays in the network: it may come again."""
        for member_id, generation, held in self.heartbeats[-1 - which :][:1]:
            try:
                self.group.member(member_id, generation)
            except MemberUnknownError:
                continue
            self.advance(self.group.after_heartbeat(member_id, generation, held))
            self.answer(member_id)

    @rule(which=WHICH)
    def answer_arrives(self, which):
        for member_id, *answer in self.answers[-1 - which :][:1]:
            if member_id in self.consumers:
                self.consumers[member_id].on_answer(*answer)

    @rule(member_id=MEMBERS)
    def finish_reading(self, member_id):
        consumer = self.consumers.get(member_id)
        if consumer is not None:
            consumer.reads &= consumer.assigned

    @rule(member_id=MEMBERS, stream_id=STREAMS)
    def send_commit(self, member_id, stream_id):
        consumer = self.consumers.get(member_id)
        if consumer is not None and stream_id in consumer.reads:
            since = self.group.holdings[stream_id].since
            self.commits.append((member_id, consumer.generation, stream_id, since))

    @rule(which=WHICH)
    def commit_arrives(self, which):
        """It counts if it is from the holding that the stream has now, and only then."""
        for member_id, generation, stream_id, since in self.commits[-1 - which :][:1]:
            holding = self.group.holdings.get(stream_id)
            is_current = (
                holding is not None and holding.member_id == member_id and holding.since == since
            )
            try:
                self.group.member(member_id, generation)
                self.group.check_holds(member_id, generation, stream_id)
            except (MemberUnknownError, StreamNotHeldError):
                assert not is_current
            else:
                assert is_current

    @rule(member_id=MEMBERS)
    def expire(self, member_id):
        """The member's own count of its session timeout ends first: it waits for no answer then."""
        self.consumers.pop(member_id, None)
        if member_id in self.group.members:
            left = self.group.members.keys() - {member_id}
            self.advance(self.group.without_members([member_id], self.eligible(left)))
        self.answers = [each for each in self.answers if each[0] != member_id]

    @rule(stream_id=STREAMS)
    def create_or_delete_stream(self, stream_id):
        """The holding of a stream that is deleted goes with it, as do its readers."""
        if stream_id in self.streams:
            held = {k: each for k, each in self.group.holdings.items() if k != stream_id}
            self.group = Group(self.group.generation, self.group.members, held)
            for consumer in self.consumers.values():
                consumer.reads.discard(stream_id)
                consumer.assigned.discard(stream_id)
            kept = [(m, g, [s for s in a if s != stream_id]) for m, g, a in self.answers]
            self.answers = kept
        self.streams ^= {stream_id}
        if self.group.members:
            self.advance(self.group.rebalanced(self.eligible(self.group.members)))

    @invariant()
    def no_stream_has_two_readers(self):
        reads = [each for consumer in self.consumers.values() for each in consumer.reads]
        assert len(reads) == len(set(reads))

    @invariant()
    def a_member_holds_the_streams_that_it_reads(self):
        for member_id, consumer in self.consumers.items():
            for stream_id in consumer.reads:
                assert self.group.holdings[stream_id].member_id == member_id

    @invariant()
    def the_state_is_that_of_the_members(self):
        assert (self.group.state is GroupState.EMPTY) == (not self.group.members)

    @precondition(lambda self: self.group.members)
    @rule()
    def settle(self):
        """Once all messages arrive, each stream that somebody subscribes to has its reader."""
        for member_id in self.group.members:
            self.consumers.setdefault(member_id, Consumer(0)).on_answer(*self.answer(member_id))
        for _ in range(100):
            before = self.group
            for member_id, consumer in self.consumers.items():
                if member_id not in self.group.members:
                    continue
                consumer.on_answer(*self.answer(member_id))
                consumer.reads &= consumer.assigned
                self.send_heartbeat(member_id, late="")
            if self.group is before:
                break
        assert self.group.state is GroupState.STABLE
        eligible = self.eligible(self.group.members)
        assert self.group.holdings.keys() == frozenset().union(*eligible.values())
        for member_id in self.group.members:
            consumer = self.consumers[member_id]
            assert consumer.reads == set(self.group.assigned(member_id)) <= eligible[member_id]


def test_no_stream_has_two_readers_and_each_gets_one():
    run_state_machine_as_test(
        GroupMachine, settings=settings(max_examples=examples(400), stateful_step_count=100)
    )
