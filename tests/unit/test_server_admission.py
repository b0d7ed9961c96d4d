"""Which connections a server takes when it has many."""

import pytest

from sbp_core import limits
from sbp_core.errors import ThrottledError
from sbp_core.server.accepting import Admission, local_reserve, owner_of

ORDINARY = limits.CONNECTIONS_MAX
RESERVED = limits.CONNECTIONS_RESERVED
FEW = limits.CONNECTIONS_RESERVED_PER_ADDRESS


def fill(admission, address, count):
    for _ in range(count):
        admission.enter(owner_of(address))


@pytest.mark.parametrize(
    ("first", "same", "other"),
    [
        ("192.0.2.1", "192.0.2.1", "192.0.2.2"),
        ("192.0.2.1", "::ffff:192.0.2.1", "::ffff:192.0.2.2"),
        ("2001:db8::1", "2001:db8:0:0:ffff::2", "2001:db8:0:1::1"),
        ("fe80::1%eth0", "fe80::2%eth1", "fe80:0:0:1::1%eth0"),
    ],
)
def test_connections_of_one_address_have_a_limit_and_others_are_not_touched(first, same, other):
    admission = Admission(2)
    fill(admission, first, 2)
    for address in (first, same):
        with pytest.raises(ThrottledError, match="has 2 connections open already"):
            admission.enter(owner_of(address))
    admission.enter(owner_of(other))
    admission.leave(owner_of(same))
    admission.enter(owner_of(first))
    assert admission.connection_count == 3


@pytest.mark.parametrize("address", ["127.0.0.1", "127.5.0.1", "::1", "::ffff:127.0.0.1"])
def test_the_machine_itself_may_have_all(address):
    admission = Admission(1)
    fill(admission, address, ORDINARY + local_reserve())
    with pytest.raises(ThrottledError, match=f"{ORDINARY + local_reserve()} connections open"):
        admission.enter(owner_of(address))


def test_a_flood_from_one_place_does_not_keep_others_out():
    admission = Admission(limits.CONNECTIONS_PER_ADDRESS_MAX)
    fill(admission, "127.0.0.1", ORDINARY)
    for number in range(RESERVED // FEW):
        fill(admission, f"192.0.2.{number}", FEW)
        with pytest.raises(ThrottledError):
            admission.enter(owner_of(f"192.0.2.{number}"))
    assert admission.connection_count == ORDINARY + RESERVED
    with pytest.raises(ThrottledError):
        admission.enter(owner_of("198.51.100.1"))
    admission.leave(owner_of("192.0.2.0"))
    admission.enter(owner_of("198.51.100.1"))


def test_a_connection_that_left_is_forgotten():
    admission = Admission(5)
    for number in range(256):
        fill(admission, f"192.0.2.{number}", 3)
        for _ in range(3):
            admission.leave(owner_of(f"192.0.2.{number}"))
    assert admission.connection_count == 0
    assert not admission._counts


def test_the_machine_itself_gets_in_when_others_filled_the_server_and_its_reserve():
    admission = Admission(ORDINARY)
    fill(admission, "192.0.2.255", ORDINARY)
    for number in range(RESERVED // FEW):
        fill(admission, f"192.0.2.{number}", FEW)
    with pytest.raises(ThrottledError):
        admission.enter(owner_of("198.51.100.1"))
    fill(admission, "127.0.0.1", FEW)


def test_a_refused_connection_frees_its_place_and_few_are_refused_at_a_time():
    admission = Admission(limits.CONNECTIONS_LEAVING_MAX + 1)
    owner = owner_of("192.0.2.1")
    fill(admission, owner, limits.CONNECTIONS_LEAVING_MAX + 1)
    assert admission.is_full_for(owner)
    for _ in range(limits.CONNECTIONS_LEAVING_MAX):
        assert admission.may_send_away
        admission.send_away(owner)
        admission.enter(owner)
    assert not admission.may_send_away
    admission.leave(owner, was_sent_away=True)
    assert admission.may_send_away
    assert admission.count_of(owner) == limits.CONNECTIONS_LEAVING_MAX + 1
