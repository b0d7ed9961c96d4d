"""Every table of the schemas: round trips, and damaged octets."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbp_core.errors import HeaderError
from sbp_core.wire._generated.headers import LAYOUTS as HEADER_LAYOUTS
from sbp_core.wire._generated.record_batch import LAYOUTS as BATCH_LAYOUTS
from sbp_core.wire.flat import Octets, Scalar, Schema, Table, Text

LAYOUTS = {**HEADER_LAYOUTS, **BATCH_LAYOUTS}
TYPES = {table.__name__: table for table in LAYOUTS}
SCHEMA = Schema(LAYOUTS)

TEXTS = st.text(max_size=12)


def numbers(code):
    if code == "?":
        return st.booleans()
    bits = 8 * struct.calcsize(f"<{code}")
    low = 0 if code.isupper() else -(2 ** (bits - 1))
    return st.integers(low, low + 2**bits - 1)


def content(kind):
    """Values of a field of this kind."""
    if isinstance(kind, Scalar):
        return numbers(kind.code)
    if isinstance(kind, Text):
        return st.none() | TEXTS
    if isinstance(kind, Octets):
        return st.binary(max_size=12)
    if isinstance(kind, Table):
        return st.none() | values(TYPES[kind.name])
    if isinstance(kind.element, Table):
        return st.lists(values(TYPES[kind.element.name]), max_size=3).map(tuple)
    element = TEXTS if isinstance(kind.element, Text) else numbers(kind.element.code)
    return st.lists(element, max_size=3).map(tuple)


def values(table):
    """Values of a table; half of the fields keep their default."""
    fields = {field.name: content(field.kind) for field in LAYOUTS[table]}
    return st.fixed_dictionaries({}, optional=fields).map(lambda chosen: table(**chosen))


def damaged(encoded):
    """Ways to damage octets: single ones, offset-sized words, cuts and tails."""
    places = st.integers(0, len(encoded) - 1)
    single = st.tuples(places, st.binary(min_size=1, max_size=1))
    word = st.tuples(places, st.integers(0, 2**32 - 1).map(lambda n: n.to_bytes(4, "little")))
    near = st.tuples(places, st.integers(-64, 64).map(lambda n: struct.pack("<i", n)))

    def apply(arguments):
        changes, cut, tail = arguments
        octets = bytearray(encoded)
        for place, new in changes:
            octets[place : place + len(new)] = new
        return bytes(octets[: len(octets) - cut]) + tail

    changes = st.lists(single | word | near, max_size=6)
    return st.tuples(changes, st.just(0) | places, st.just(b"") | st.binary(max_size=8)).map(apply)


def maybe_decoded_type(table, octets):
    """The type that octets decode to, None for a HeaderError; anything else is a fault of ours."""
    try:
        return type(SCHEMA.decode(table, octets))
    except HeaderError:
        return None


@pytest.mark.parametrize("table", LAYOUTS, ids=lambda table: table.__name__)
@settings(max_examples=15, deadline=None)
@given(st.data())
def test_round_trip(table, data):
    value = data.draw(values(table))
    assert SCHEMA.decode(table, SCHEMA.encode(value)) == value


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_damaged_octets_are_an_error_or_a_value(data):
    table = data.draw(st.sampled_from(list(LAYOUTS)))
    octets = data.draw(damaged(SCHEMA.encode(data.draw(values(table)))))
    assert maybe_decoded_type(table, octets) in (table, None)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(list(LAYOUTS)), st.binary(max_size=200))
def test_any_octets_are_an_error_or_a_value(table, octets):
    assert maybe_decoded_type(table, octets) in (table, None)
