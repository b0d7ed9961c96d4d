"""The memory that connections share: a model walks through claims, requests and ends."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sbp_core import limits
from sbp_core.server.budget import Account, Budget, Intake, Lane
from tests.support.clock import examples

BYTES_MAX = 3 * limits.CONNECTION_IN_FLIGHT_BYTES_MAX
OWN_BYTES = limits.CONNECTION_OWN_BYTES
LARGEST = BYTES_MAX // 2
SIZES = st.one_of(
    st.integers(1, OWN_BYTES),
    st.integers(1, limits.SMALL_REQUEST_BYTES_MAX),
    st.integers(1, LARGEST),
)
NUMBERS = st.integers(0, 5)
ADDRESSES = ("192.0.2.1", "192.0.2.2")


class Peer:
    """One connection: its requests, one that waits for room, and the frame that it is sending."""

    def __init__(self, budget, address):
        self.intake = Intake(budget, self.on_change, address=address)
        self.requests = []
        self.waiting = None
        self.frame = 0
        self.is_reading = True

    def on_change(self):
        self.is_reading = self.intake.may_read
        if self.waiting and not self.waiting.is_waiting:
            self.requests.append(self.waiting)
            self.waiting = None

    def ask(self, size):
        held = self.intake.begin(size)
        if held.is_waiting:
            self.waiting = held
        else:
            self.requests.append(held)


class BudgetMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.budget = Budget(BYTES_MAX, own_bytes_max=OWN_BYTES)
        self.peers = [Peer(self.budget, ADDRESSES[number % 2]) for number in range(6)]

    @rule(number=NUMBERS, size=SIZES)
    def a_frame_outgrows_its_buffer(self, number, size):
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
    def a_request_comes(self, number, size):
        peer = self.peers[number]
        if not peer.frame and peer.intake.may_read:
            peer.ask(size)

    @rule(number=NUMBERS)
    def who_holds_nothing_is_let_in_with_a_small_request(self, number):
        peer = self.peers[number]
        if not (peer.requests or peer.waiting or peer.frame):
            peer.ask(OWN_BYTES)
            assert not peer.waiting

    @precondition(lambda self: any(peer.requests for peer in self.peers))
    @rule(data=st.data(), size=SIZES)
    def a_request_is_decoded(self, data, size):
        peer = data.draw(st.sampled_from([each for each in self.peers if each.requests]))
        peer.requests[-1].settle(size)

    @precondition(lambda self: any(peer.requests for peer in self.peers))
    @rule(data=st.data())
    def a_request_is_done(self, data):
        peer = data.draw(st.sampled_from([each for each in self.peers if each.requests]))
        held = peer.requests.pop()
        held.end()
        held.end()

    @rule(number=NUMBERS)
    def a_connection_closes_and_another_comes(self, number):
        peer = self.peers[number]
        if peer.waiting:
            peer.waiting.end()
            peer.waiting = None
        peer.intake.close()
        for held in peer.requests:
            held.end()
        self.peers[number] = Peer(self.budget, ADDRESSES[number % 2])

    @invariant()
    def what_is_taken_is_what_is_held(self):
        held = sum(each.size for peer in self.peers for each in peer.requests)
        held += sum(peer.frame for peer in self.peers if not peer.intake.is_waiting)
        assert self.budget.taken_bytes == held

    @invariant()
    def who_may_read_was_told_so(self):
        assert all(peer.is_reading == peer.intake.may_read for peer in self.peers)

    @invariant()
    def a_wait_has_a_reason(self):
        waiting = [peer for peer in self.peers if peer.intake.is_waiting]
        assert self.budget.is_contended == bool(waiting)
        assert self.budget.waiting_count == len(waiting)
        assert self.budget._maybe_next() is None, "it fits"
        for peer in waiting:
            assert peer.intake._account.own_bytes + peer.intake._waiting.size > OWN_BYTES

    def teardown(self):
        for number in range(6):
            self.a_connection_closes_and_another_comes(number)
        assert self.budget.taken_bytes == 0
        assert self.budget._pool_bytes == 0
        assert set(self.budget._lane_bytes.values()) == {0}
        assert not self.budget._address_bytes
        assert not self.budget.is_contended


BudgetMachine.TestCase.settings = settings(max_examples=examples(100), stateful_step_count=60)
TestBudget = BudgetMachine.TestCase


class Pool:
    """A budget, and the names of claims in the order in which they were granted."""

    def __init__(self, bytes_max, own_bytes_max=0):
        self.budget = Budget(bytes_max, own_bytes_max=own_bytes_max)
        self.granted = []

    def claim(self, name, size, lane=Lane.SMALL, address="a", account=None):
        account = account or Account(address)
        charge = self.budget.claim(account, size, lane, lambda: self.granted.append(name))
        if not charge.is_waiting:
            self.granted.append(name)
        return charge


def test_one_connection_may_not_take_it_all():
    intake = Intake(Budget(2 * limits.CONNECTION_IN_FLIGHT_BYTES_MAX), lambda: None)
    intake.begin(limits.CONNECTION_IN_FLIGHT_BYTES_MAX)
    assert intake.may_read
    one = intake.begin(1)
    assert not one.is_waiting
    assert not intake.may_read
    one.end()
    assert intake.may_read


def test_a_peer_admitted_with_a_large_frame_is_charged_for_its_request():
    budget = Budget(100)
    intake, other = Intake(budget, lambda: None), Intake(budget, lambda: None)
    intake.expect_frame(100)
    large = other.begin(limits.SMALL_REQUEST_BYTES_MAX + 1)
    assert large.is_waiting
    mine = intake.begin(110)
    assert (mine.is_waiting, budget.taken_bytes) == (False, 110)
    mine.end()
    assert (large.is_waiting, budget.taken_bytes) == (False, large.size)


def test_claims_of_a_lane_are_granted_in_their_order():
    pool = Pool(100)
    first, _ = pool.claim("first", 50), pool.claim("second", 20)
    claims = [
        pool.claim(name, size, address="b")
        for name, size in (("large", 70), ("small", 20), ("tiny", 5))
    ]
    assert all(claim.is_waiting for claim in claims)
    pool.budget.release(first)
    assert pool.granted[2:] == ["large"], "a later claim does not overtake"
    pool.budget.release(claims[0])
    assert pool.granted[2:] == ["large", "small", "tiny"]


def test_small_requests_do_not_wait_behind_large_ones_which_leave_a_quarter():
    pool = Pool(100)
    assert not pool.claim("frame", 75, Lane.LARGE, "a").is_waiting
    assert pool.claim("another frame", 10, Lane.LARGE, "b").is_waiting
    assert not pool.claim("small", 20, Lane.SMALL, "b").is_waiting


def test_small_requests_leave_a_quarter_to_large_ones_that_wait():
    pool = Pool(100)
    small = [pool.claim("small", 25, Lane.SMALL, address) for address in "abcd"]
    assert not pool.claim("frame", 30, Lane.LARGE).is_waiting, "none of its lane is taken"
    assert pool.claim("next frame", 30, Lane.LARGE).is_waiting
    for charge in small[:3]:
        pool.budget.release(charge)
    assert "next frame" in pool.granted


def test_one_address_leaves_a_quarter_to_others_which_take_turns():
    pool = Pool(100)
    held = [pool.claim("a", 25, address="a") for _ in range(3)]
    assert pool.claim("a waits", 25, address="a").is_waiting
    assert pool.claim("a waits, too", 25, address="a").is_waiting
    assert pool.claim("b", 25, address="b").is_waiting, "behind a, for a moment"
    pool.budget.release(held[0])
    assert pool.granted[3:] == ["a waits", "b"]


def test_a_request_within_the_share_of_its_connection_never_waits():
    pool = Pool(100, own_bytes_max=10)
    pool.claim("all", 100)
    account = Account("a")
    own = [pool.claim(name, 5, account=account) for name in ("one", "two")]
    third = pool.claim("three", 5, account=account)
    assert [charge.is_waiting for charge in (*own, third)] == [False, False, True]
    pool.budget.release(own[0])
    assert not third.is_waiting, "there is room in the share again"


def test_a_claim_that_is_withdrawn_lets_the_next_one_through():
    pool = Pool(100)
    pool.claim("most", 60, address="a")
    claim = pool.claim("first", 50, address="b")
    pool.claim("second", 10, address="b")
    pool.budget.release(claim)
    assert pool.granted == ["most", "second"]


def test_a_request_that_waits_yields_when_others_need_its_memory():
    pool = Pool(100, own_bytes_max=10)
    asked = []
    for name, size in (("polling", 60), ("in its own share", 10)):
        charge = pool.claim(name, size)
        pool.budget.yield_for_others(charge, lambda name=name: asked.append(name))
    pool.claim("fits", 10, address="b", account=Account("b", own_bytes=10))
    assert asked == []
    pool.claim("waits", 40, address="b")
    assert asked == ["polling"]
    pool.claim("waits", 40, address="b")
    assert asked == ["polling"], "once"


def test_a_frame_is_in_the_way_only_while_another_waits_for_its_memory():
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
