"""Which connections a server takes when it has many."""

import pytest

from sbp_core import limits
from sbp_core.errors import ThrottledError
from sbp_core.server.admission import Admission

ORDINARY = limits.CONNECTIONS_MAX
RESERVED = limits.CONNECTIONS_RESERVED
FEW = limits.CONNECTIONS_RESERVED_PER_ADDRESS


def fill(admission, address, count):
    for _ in range(count):
        admission.enter(address)


@pytest.mark.parametrize(
    ("first", "same", "other"),
    [
        ("192.0.2.1", "192.0.2.1", "192.0.2.2"),
        ("192.0.2.1", "::ffff:192.0.2.1", "::ffff:192.0.2.2"),
        ("2001:db8::1", "2001:db8:0:0:ffff::2", "2001:db8:0:1::1"),
        ("fe80::1%eth0", "fe80::2%eth1", "fe80:0:0:1::1%eth0"),
    ],
)
def test_one_address_has_so_many_and_others_are_not_touched(first, same, other):
    admission = Admission(2)
    fill(admission, first, 2)
    for address in (first, same):
        with pytest.raises(ThrottledError, match="has 2 connections open already"):
            admission.enter(address)
    admission.enter(other)
    admission.leave(same)
    admission.enter(first)
    assert admission.connection_count == 3


@pytest.mark.parametrize("address", ["127.0.0.1", "127.5.0.1", "::1", "::ffff:127.0.0.1"])
def test_the_machine_itself_may_have_all(address):
    admission = Admission(1)
    fill(admission, address, ORDINARY)
    with pytest.raises(ThrottledError, match=f"{ORDINARY} connections open already"):
        admission.enter(address)


def test_a_flood_from_one_place_does_not_keep_others_out():
    admission = Admission(limits.CONNECTIONS_PER_ADDRESS_MAX)
    fill(admission, "127.0.0.1", ORDINARY)
    for number in range(RESERVED // FEW):
        fill(admission, f"192.0.2.{number}", FEW)
        with pytest.raises(ThrottledError):
            admission.enter(f"192.0.2.{number}")
    assert admission.connection_count == ORDINARY + RESERVED
    with pytest.raises(ThrottledError):
        admission.enter("198.51.100.1")
    admission.leave("192.0.2.0")
    admission.enter("198.51.100.1")


def test_what_left_is_forgotten():
    admission = Admission(5)
    for number in range(256):
        fill(admission, f"192.0.2.{number}", 3)
        for _ in range(3):
            admission.leave(f"192.0.2.{number}")
    assert admission.connection_count == 0
    assert not admission._counts
