"""Every table: round trips, what FlatBuffers' own runtime makes of it, and damaged bytes."""

import struct

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import replace

from sbp_core.errors import HeaderError
from sbp_core.wire._generated import LAYOUTS as WIRE_LAYOUTS
from sbp_core.wire._generated import WRITERS
from sbp_core.wire.flat import Bytes, Field, Scalar, Schema, Structs, Table, Text, Vector
from tests.support.clock import examples
from tests.support.tables import check_strictly, decode_officially, encode_officially

CODES = "?bBhHiIq"


class Numbers(Struct, frozen=True, gc=False):
    """Numbers of every width, each alone, in vectors and in structs."""

    flag: bool = False
    i8: int = 0
    u8: int = 0
    i16: int = 0
    u16: int = 7
    i32: int = -1
    u32: int = 0
    i64: int = -1
    flags: tuple[bool, ...] = ()
    i8s: tuple[int, ...] = ()
    u8s: tuple[int, ...] = ()
    i16s: tuple[int, ...] = ()
    u16s: tuple[int, ...] = ()
    i32s: tuple[int, ...] = ()
    u32s: tuple[int, ...] = ()
    i64s: tuple[int, ...] = ()
    narrow: tuple[tuple[int, int, int], ...] = ()
    wide: tuple[tuple[int, int], ...] = ()


class Mixed(Struct, frozen=True, gc=False):
    """Numbers behind content of any length."""

    text: str | None = None
    data: bytes = b""
    one: Numbers | None = None
    texts: tuple[str, ...] = ()
    many: tuple[Numbers, ...] = ()


NUMBERS = (
    *(
        Field(name, index, Scalar(code), default)
        for index, (name, code, default) in enumerate(
            zip(Numbers.__struct_fields__[:8], CODES, (False, 0, 0, 0, 7, -1, 0, -1), strict=True)
        )
    ),
    *(
        Field(name, index, Vector(Scalar(code)))
        for index, (name, code) in enumerate(
            zip(Numbers.__struct_fields__[8:16], CODES, strict=True), start=8
        )
    ),
    Field("narrow", 16, Structs("hhh")),
    Field("wide", 17, Structs("qq")),
)
MIXED = (
    Field("text", 0, Text()),
    Field("data", 1, Bytes()),
    Field("one", 2, Table("Numbers")),
    Field("texts", 3, Vector(Text())),
    Field("many", 4, Vector(Table("Numbers"))),
)
LAYOUTS = {**WIRE_LAYOUTS, Numbers: NUMBERS, Mixed: MIXED}
TYPES = {table.__name__: table for table in LAYOUTS}
SCHEMA = Schema(LAYOUTS, WRITERS)
GENERIC = Schema(LAYOUTS)

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
    if isinstance(kind, Bytes):
        return st.binary(max_size=12)
    if isinstance(kind, Structs):
        item = st.tuples(*(numbers(code) for code in kind.codes))
        return st.lists(item, max_size=3).map(tuple)
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
    """Ways to damage bytes: single ones, offset-sized words, cuts and tails."""
    places = st.integers(0, len(encoded) - 1)
    single = st.tuples(places, st.binary(min_size=1, max_size=1))
    word = st.tuples(places, st.integers(0, 2**32 - 1).map(lambda n: n.to_bytes(4, "little")))
    near = st.tuples(places, st.integers(-64, 64).map(lambda n: struct.pack("<i", n)))

    def apply(arguments):
        changes, cut, tail = arguments
        data = bytearray(encoded)
        for place, new in changes:
            data[place : place + len(new)] = new
        return bytes(data[: len(data) - cut]) + tail

    changes = st.lists(single | word | near, max_size=6)
    return st.tuples(changes, st.just(0) | places, st.just(b"") | st.binary(max_size=8)).map(apply)


def maybe_decoded_type(table, data):
    """The type that bytes decode to, None for a HeaderError; anything else is a fault of ours."""
    try:
        return type(SCHEMA.decode(table, data))
    except HeaderError:
        return None


def for_each(tables, check, *, max_examples, **more):
    """Run `check` with values of each table, and with `more`; a failure shows the value."""
    for table in tables:
        run = given(value=values(table), **more)(check)
        settings(max_examples=max_examples, deadline=None)(run)()


def check_round_trip(value):
    table = type(value)
    encoded, official = SCHEMA.encode(value), encode_officially(LAYOUTS, value)
    assert {SCHEMA.encode(value) for _ in range(2)} == {encoded}, "not so when it is known"
    assert SCHEMA.decode(table, encoded) == value
    assert SCHEMA.decode(table, official) == value
    assert decode_officially(LAYOUTS, table, encoded) == value
    check_strictly(LAYOUTS, table, encoded)
    check_strictly(LAYOUTS, table, official)


def test_round_trip():
    for_each(LAYOUTS, check_round_trip, max_examples=15)


def encoded_or_error(schema, value):
    try:
        return schema.encode(value)
    except HeaderError as error:
        return str(error)


def test_generated_writers_write_and_refuse_what_the_generic_one_does():
    for_each(WRITERS, check_writer, max_examples=examples(100), data=st.data())


def check_writer(value, data):
    name = data.draw(st.sampled_from(value.__struct_fields__))
    misfit = replace(value, **{name: data.draw(st.sampled_from([2**70, 1.5, "x", (None,), value]))})
    for each in (value, misfit):
        assert encoded_or_error(SCHEMA, each) == encoded_or_error(GENERIC, each)


@settings(max_examples=examples(400), deadline=None)
@given(st.data())
def test_damaged_bytes_are_an_error_or_a_value(data):
    table = data.draw(st.sampled_from(list(LAYOUTS)))
    encoded = data.draw(damaged(SCHEMA.encode(data.draw(values(table)))))
    assert maybe_decoded_type(table, encoded) in (table, None)


@settings(max_examples=examples(200), deadline=None)
@given(st.sampled_from(list(LAYOUTS)), st.binary(max_size=200))
def test_any_bytes_are_an_error_or_a_value(table, data):
    assert maybe_decoded_type(table, data) in (table, None)
