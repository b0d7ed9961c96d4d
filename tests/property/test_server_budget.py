"""The memory that connections share: a model walks through claims, requests and ends."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sbp_core import limits
from sbp_core.server.budget import Budget
from sbp_core.server.intake import Intake

BYTES_MAX = 3 * limits.CONNECTION_IN_FLIGHT_BYTES_MAX
SIZES = st.integers(1, BYTES_MAX)
NUMBERS = st.integers(0, 4)


class Peer:
    """One connection: its requests, one that waits for room, and the frame that it is sending."""

    def __init__(self, budget):
        self.intake = Intake(budget, self.on_change)
        self.requests = []
        self.waiting = 0
        self.frame = 0
        self.is_reading = True

    def on_change(self):
        self.is_reading = self.intake.may_read
        if self.waiting and not self.intake.is_waiting:
            self.requests.append(self.waiting)
            self.waiting = 0

    def ask(self, size):
        self.intake.begin(size)
        if self.intake.is_waiting:
            self.waiting = size
        else:
            self.requests.append(size)


class BudgetMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.budget = Budget(BYTES_MAX)
        self.peers = [Peer(self.budget) for _ in range(5)]

    @rule(number=NUMBERS, size=SIZES)
    def a_frame_begins(self, number, size):
        peer = self.peers[number]
        if not peer.frame and peer.intake.may_read:
            peer.frame = size
            peer.intake.expect_frame(size)

    @rule(number=NUMBERS)
    def a_frame_ends_and_is_served(self, number):
        peer = self.peers[number]
        if peer.frame and peer.intake.may_read:
            size, peer.frame = peer.frame, 0
            peer.ask(size)
            assert not peer.waiting, "its room was there already"
            peer.intake.expect_frame(0)

    @rule(number=NUMBERS, size=SIZES)
    def a_small_request_comes(self, number, size):
        peer = self.peers[number]
        if not peer.frame and peer.intake.may_read:
            peer.ask(size)

    @precondition(lambda self: any(peer.requests for peer in self.peers))
    @rule(data=st.data())
    def a_request_is_done(self, data):
        peer = data.draw(st.sampled_from([each for each in self.peers if each.requests]))
        peer.intake.end(peer.requests.pop())

    @rule(number=NUMBERS)
    def a_connection_closes_and_another_comes(self, number):
        peer = self.peers[number]
        peer.waiting = 0
        peer.intake.close()
        for size in peer.requests:
            peer.intake.end(size)
        self.peers[number] = Peer(self.budget)

    @invariant()
    def what_is_taken_is_what_is_held(self):
        held = sum(sum(peer.requests) for peer in self.peers)
        held += sum(peer.frame for peer in self.peers if not peer.intake.is_waiting)
        assert self.budget.taken_bytes == held

    @invariant()
    def who_may_read_was_told_so(self):
        assert all(peer.is_reading == peer.intake.may_read for peer in self.peers)

    @invariant()
    def nobody_waits_without_a_reason(self):
        waiting = [peer for peer in self.peers if peer.intake.is_waiting]
        assert self.budget.is_contended == bool(waiting)
        if waiting:
            largest = max(peer.frame or peer.waiting for peer in waiting)
            assert self.budget.taken_bytes + largest > BYTES_MAX

    @invariant()
    def no_more_than_the_budget_is_taken(self):
        assert self.budget.taken_bytes <= BYTES_MAX


BudgetMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=60)
TestBudget = BudgetMachine.TestCase


def test_one_connection_may_not_take_it_all():
    intake = Intake(Budget(2 * limits.CONNECTION_IN_FLIGHT_BYTES_MAX), lambda: None)
    intake.begin(limits.CONNECTION_IN_FLIGHT_BYTES_MAX)
    assert intake.may_read
    intake.begin(1)
    assert not intake.is_waiting
    assert not intake.may_read
    intake.end(1)
    assert intake.may_read


def test_who_was_let_in_with_a_large_frame_takes_what_its_request_counts_for():
    budget = Budget(100)
    intake, other = Intake(budget, lambda: None), Intake(budget, lambda: None)
    intake.expect_frame(100)
    other.begin(5)
    assert other.is_waiting
    intake.begin(110)
    assert (intake.is_waiting, budget.taken_bytes) == (False, 110)
    intake.end(110)
    assert (other.is_waiting, budget.taken_bytes) == (False, 5)


def test_claims_are_granted_in_their_order():
    budget = Budget(100)
    granted = []
    budget.take(100)
    for name, size in (("large", 80), ("small", 1), ("middle", 20)):
        assert budget.maybe_wait(size, lambda name=name: granted.append(name)) is not None
    budget.give_back(50)
    assert granted == []
    budget.give_back(30)
    assert granted == ["large"]
    budget.give_back(20)
    assert granted == ["large", "small"]


def test_a_claim_that_is_withdrawn_lets_the_next_one_through():
    budget = Budget(100)
    granted = []
    budget.take(90)
    claim = budget.maybe_wait(50, lambda: granted.append("first"))
    budget.maybe_wait(10, lambda: granted.append("second"))
    budget.withdraw(claim)
    assert granted == ["second"]


def test_a_frame_is_in_the_way_only_while_somebody_waits_for_its_memory():
    budget = Budget(100)
    holder, waiter = Intake(budget, lambda: None), Intake(budget, lambda: None)
    holder.expect_frame(60)
    assert not holder.is_in_the_way
    waiter.expect_frame(60)
    assert holder.is_in_the_way
    assert not waiter.is_in_the_way
    holder.close()
    assert waiter.may_read
    assert not waiter.is_in_the_way
