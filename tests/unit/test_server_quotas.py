"""Quotas of identities without a server: connections, changed rules, and identities that change."""

import pytest

from sbp_core.errors import ThrottledError
from sbp_core.server import quotas as module
from sbp_core.server.quotas import Allowance, Quotas
from sbp_core.settings.quota_settings import NO_RULES, rules_of


class World:
    def __init__(self, limits=None, **quota):
        self.now = 0.0
        self.rules = rules_of({"etl": quota})
        self.quotas = Quotas(lambda: self.now, lambda: self.rules, **(limits or {}))


class Connection:
    """A connection that has been spare for `spare`, in ms."""

    def __init__(self, world, spare=-1.0):
        self.allowance = Allowance(world.quotas)
        self.spare = spare
        self.is_leaving = False

    def bind(self, subject="etl"):
        self.allowance.bind(subject, self)

    def spare_ms(self):
        return self.spare

    def go_away(self):
        self.is_leaving = True
        self.allowance.end(self)


def test_the_connection_that_is_spare_for_the_longest_makes_room():
    world = World(connections=3)
    open_ones = [Connection(world, spare) for spare in (-1.0, 10.0, 20.0)]
    for each in open_ones:
        each.bind()
    Connection(world).bind()
    assert [each.is_leaving for each in open_ones] == [False, False, True]
    Connection(world).bind()
    assert [each.is_leaving for each in open_ones] == [False, True, True]
    refused = Connection(world)
    for _ in range(2):
        with pytest.raises(ThrottledError, match="etl has 3 connections open already"):
            refused.bind()
    assert world.quotas.refused_count == 2
    open_ones[0].allowance.end(open_ones[0])
    refused.bind()


def test_a_connection_counts_for_the_identity_that_it_has_now():
    world = World(connections=1, memory_bytes=100)
    one, other = Connection(world), Connection(world)
    one.bind()
    one.allowance.hold(100)
    assert not one.allowance.is_open
    one.bind("dashboard")
    other.bind()
    other.allowance.look()
    assert (one.allowance.is_open, other.allowance.is_open) == (True, True)
    one.bind(None)
    assert one.allowance.is_open


def test_rules_that_change_hold_at_once_for_connections_that_wait():
    world = World(bytes_in_per_s=10)
    one = Connection(world)
    one.bind()
    one.allowance.charge_request(110)
    assert one.allowance.maybe_wait_seconds() == module.UNTOLD_SECONDS_MAX
    world.rules = rules_of({"etl": {"bytes_in_per_s": 55}})
    one.allowance.look()
    assert one.allowance.maybe_wait_seconds() == pytest.approx(1)
    world.rules = NO_RULES
    one.allowance.look()
    assert one.allowance.is_open
    one.bind()
    assert one.allowance.is_off


def test_memory_that_a_request_gives_back_is_for_the_connections_that_wait():
    world = World(memory_bytes=100)
    one, other = Connection(world), Connection(world)
    woken = []
    for each in (one, other):
        each.bind()
    one.allowance.hold(60)
    assert other.allowance.is_open
    one.allowance.hold(60)
    assert not other.allowance.is_open
    assert other.allowance.maybe_wait_seconds() is None
    other.allowance.when_memory(lambda: woken.append(other.allowance.look()))
    one.allowance.end(one)
    one.allowance.hold(-10)
    assert not woken
    one.allowance.hold(-60)
    assert (len(woken), other.allowance.is_open) == (1, True)


def test_the_rate_holds_for_an_identity_that_makes_a_connection_for_each_request():
    """Each of 100 clients has a connection for one request, and waits on the connection."""
    world = World(requests_per_s=2)
    clients = [Connection(world) for _ in range(100)]
    executed = refused = 0
    for second in range(60):
        world.now = float(second)
        for at, each in enumerate(clients):
            each.bind()
            while each.allowance.is_open:
                try:
                    each.allowance.charge_request(1)
                    executed += 1
                except ThrottledError:
                    refused += 1
                each.allowance.end(each)
                each = clients[at] = Connection(world)  # noqa: PLW2901
                each.bind()
            each.allowance.maybe_wait_seconds()
            each.allowance.look()
    assert 2 * 60 <= executed <= 2 * (60 + module.BURST_SECONDS) + 2
    assert refused > 0


def test_debt_outlives_the_connections_and_other_meters_are_dropped():
    world = World({"meters_kept": 2}, bytes_in_per_s=10)
    world.rules = rules_of({"bytes_in_per_s": 10})
    for name, size in (("debtor", 100), ("quiet", 0)):
        connection = Connection(world)
        connection.bind(name)
        connection.allowance.charge_request(size)
        connection.allowance.end(connection)
    Connection(world).bind("third")
    assert world.quotas._meters.keys() == {"debtor", "third"}
    again = Connection(world)
    again.bind("debtor")
    assert not again.allowance.is_open
