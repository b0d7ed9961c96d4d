"""Quotas of identities: what each may use, whatever it and the others do."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from sbp_core.errors import ThrottledError
from sbp_core.server.quotas import (
    BURST_SECONDS,
    UNTOLD_SECONDS_MAX,
    WAIT_SECONDS_MAX,
    Allowance,
    Quotas,
    Rate,
)
from sbp_core.settings.quota_settings import rules_of
from sbp_core.wire.headers import AppendResponse
from tests.support.clock import examples

RATES = st.integers(1, 1_000)
PAUSES = st.floats(0, 30)
AMOUNTS = st.integers(0, 5_000)


class Connection:
    """One connection of an identity, which asks as soon as it may."""

    def __init__(self, quotas, subject):
        self.allowance = Allowance(quotas)
        self.subject = subject
        self.count = 0

    def try_to_ask(self):
        """Ask once if that is allowed; whether it was."""
        self.allowance.bind(self.subject, self)
        self.look()
        if not self.allowance.is_open:
            return False
        try:
            self.allowance.charge_request(0)
        except ThrottledError:
            return False
        self.count += 1
        return True

    def look(self):
        """Do as a server does while a frame waits."""
        if not self.allowance.is_open:
            self.allowance.maybe_wait_seconds()
            self.allowance.look()

    def spare_ms(self):
        return -1.0

    def go_away(self):
        raise AssertionError


class World:
    def __init__(self, **quota):
        self.now = 0.0
        rules = rules_of(quota)
        self.quotas = Quotas(lambda: self.now, lambda: rules)

    def connections(self, subject, count):
        return [Connection(self.quotas, subject) for _ in range(count)]


@settings(max_examples=examples(300), deadline=None)
@given(RATES, st.lists(st.tuples(PAUSES, AMOUNTS), max_size=40))
def test_who_waits_uses_no_more_than_the_rate_and_a_burst(per_second, steps):
    """The last amount may be too much; what is charged for it is bounded, as the wait is."""
    rate, now, used = Rate(per_second), 0.0, 0.0
    for pause, amount in steps:
        now += pause + rate.wait_seconds(now + pause)
        assert rate.wait_seconds(now) < 1e-6
        assert used <= per_second * (now + BURST_SECONDS) * (1 + 1e-9) + 1e-6
        rate.charge(amount, now)
        used += min(amount, per_second * WAIT_SECONDS_MAX)
        assert rate.wait_seconds(now) <= WAIT_SECONDS_MAX


@settings(max_examples=examples(300), deadline=None)
@given(RATES, AMOUNTS, st.integers(0, 40))
def test_a_quiet_identity_gets_its_burst_back(per_second, amount, seconds):
    rate = Rate(per_second)
    rate.charge(amount, 0.0)
    now = min(amount / per_second, BURST_SECONDS + WAIT_SECONDS_MAX) + seconds
    assert rate.wait_seconds(now, per_second * BURST_SECONDS) < 1e-6
    assert math.isclose(rate.wait_seconds(now, 2 * per_second * BURST_SECONDS), BURST_SECONDS)


@settings(max_examples=examples(200), deadline=None)
@given(RATES, RATES, AMOUNTS)
def test_a_rate_that_is_changed_keeps_what_is_to_be_paid_off(before, after, amount):
    changed, same = Rate(before), Rate(after)
    paid = min(amount, before * (BURST_SECONDS + WAIT_SECONDS_MAX))
    changed.charge(amount, 5.0)
    changed.change(after, 5.0)
    same.charge(paid, 5.0)
    assert math.isclose(changed.wait_seconds(5.0), same.wait_seconds(5.0), abs_tol=1e-6)
    changed.change(0, 6.0)
    assert changed.wait_seconds(6.0, 10**9) == 0


@settings(max_examples=examples(100), deadline=None)
@given(st.integers(1, 20), st.integers(1, 40), st.lists(st.floats(0.01, 2), max_size=60))
def test_all_connections_of_an_identity_share_its_quota_and_no_other_one_does(
    per_second, connection_count, pauses
):
    """One identity asks whenever it may, on several connections. The other one never waits."""
    world = World(requests_per_s=per_second)
    greedy = world.connections("greedy", connection_count)
    (modest,) = world.connections("modest", 1)
    for pause in pauses:
        if pause > 1 / per_second:
            assert modest.try_to_ask(), "an identity below its rate waited for another one"
        while any([each.try_to_ask() for each in greedy]):  # noqa: C419 - each of them tries
            pass
        world.now += pause
    most = per_second * (world.now + BURST_SECONDS) + 2
    assert sum(each.count for each in greedy) <= most + 1e-6


@settings(max_examples=examples(100), deadline=None)
@given(st.integers(0, 10**9), st.integers(1, 3), st.booleans())
def test_no_frame_waits_for_longer_than_its_caller(debt_bytes, connection_count, is_told):
    """A client that was asked to wait is held to that; another one cannot know of it."""
    world = World(bytes_in_per_s=1)
    first, *others = world.connections("s", connection_count)
    for each in (first, *others):
        each.allowance.bind("s", each)
    first.allowance.charge_request(debt_bytes)
    told_ms = 0
    if is_told:
        told_ms = first.allowance.throttled(AppendResponse(), ()).throttle_time_ms
        assert told_ms <= 1000 * WAIT_SECONDS_MAX
    for each in (first, *others):
        each.look()
    world.now = UNTOLD_SECONDS_MAX
    for each in (first, *others):
        each.look()
    assert all(each.allowance.is_open for each in others)
    assert first.allowance.is_open is (told_ms <= 1000 * UNTOLD_SECONDS_MAX)
    world.now = max(world.now, told_ms / 1000)
    first.look()
    assert first.allowance.is_open
