"""Output of the FlatBuffers writer, and the values that it refuses."""

import pytest

from sbp_core import limits
from sbp_core.errors import HeaderError
from sbp_core.wire import headers
from sbp_core.wire._generated import LAYOUTS as WIRE_LAYOUTS
from sbp_core.wire._generated import WRITERS
from sbp_core.wire.flat import Schema
from sbp_core.wire.headers import decode_header, encode_header
from tests.support.tables import LAYOUTS, SCHEMA, Leaf, Node, check_strictly


def test_a_table_stands_before_what_it_refers_to():
    written = (
        "14000000"  # the root is 20 bytes on
        "0a001100 1000 0400 0c00 0000"  # vtable: its size, the table's, where its fields are
        "00000000"  # so that the number is at a multiple of 8
        "10000000"  # the table: its vtable is 16 bytes before it,
        "0500000000000000 08000000 01 000000"  # the number, 8 bytes to the text, the flag
        "03000000 616263 00"
    )
    assert SCHEMA.encode(Leaf(flag=True, number=5, text="abc")) == bytes.fromhex(written)


def test_tables_with_the_same_fields_share_a_vtable():
    one, more = (SCHEMA.encode(Node(children=(Node(b"abcd"),) * count)) for count in (1, 11))
    reference_bytes, distance_bytes, count_bytes = 4, 4, 4
    node_bytes = distance_bytes + reference_bytes + count_bytes + len(b"abcd")
    assert len(more) - len(one) == 10 * (reference_bytes + node_bytes)
    check_strictly(LAYOUTS, Node, more)


@pytest.mark.parametrize("size", range(9))
def test_numbers_are_aligned_behind_content_of_any_length(size):
    pairs = ((3, 4),) * size
    value = Node(bytes(size), (1,) * size, ("x" * size,), Leaf(True, 2), (Node(),), pairs)
    data = SCHEMA.encode(value)
    check_strictly(LAYOUTS, Node, data)
    assert SCHEMA.decode(Node, data) == value


def test_bytes_may_come_in_any_buffer():
    expected = SCHEMA.encode(Node(data=b"abc"))
    for data in (bytearray(b"abc"), memoryview(b"xabcx")[1:-1]):
        assert SCHEMA.encode(Node(data=data)) == expected


def test_an_enum_is_written_as_its_number():
    as_enum = headers.HeartbeatRequest(client_role=headers.ClientRole.PD)
    assert encode_header(as_enum) == encode_header(headers.HeartbeatRequest(client_role=1))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (Leaf(number=2**63), r"Leaf\.number cannot be 9223372036854775808: "),
        (Leaf(number=-(2**63) - 1), r"Leaf\.number cannot be -9223372036854775809: "),
        (Leaf(number=1.5), r"Leaf\.number cannot be 1\.5: "),
        (Leaf(number="7"), r"Leaf\.number cannot be '7': "),
        (Leaf(number=None), r"Leaf\.number cannot be None: "),
        (Leaf(text=7), r"Leaf\.text: "),
        (Leaf(text="\ud800"), r"Leaf\.text: .*surrogates"),
        (Node(data="text"), r"Node\.data: "),
        (Node(data=7), r"Node\.data: "),
        (Node(numbers=(1, 2**31)), r"Node\.numbers: "),
        (Node(numbers=("1",)), r"Node\.numbers: "),
        (Node(numbers=7), r"Node\.numbers: "),
        (Node(texts=("a", None)), r"Node\.texts: "),
        (Node(leaf=Node()), r"Node\.leaf: Node\(.* is no Leaf"),
        (Node(leaf=7), r"Node\.leaf: 7 is no Leaf"),
        (Node(children=(Node(), None)), r"Node\.children: None is no Node"),
        (Node(leaf=Leaf(number=2**63)), r"^Leaf\.number cannot be"),
        (Node(pairs=((1, 2**63),)), r"Node\.pairs: "),
        (Node(pairs=((1,),)), r"Node\.pairs: "),
        (Node(pairs=(1,)), r"Node\.pairs: "),
    ],
)
def test_content_that_does_not_fit_is_an_error_that_names_the_field(value, message):
    with pytest.raises(HeaderError, match=message):
        SCHEMA.encode(value)


def test_content_that_does_not_fit_is_not_told_at_any_length():
    with pytest.raises(HeaderError) as refused:
        SCHEMA.encode(Leaf(number="x" * 10_000))
    assert len(str(refused.value)) < 200


def test_a_header_that_no_frame_can_carry_is_not_written():
    with pytest.raises(HeaderError, match="split the request"):
        encode_header(headers.Status(detail=bytes(limits.HEADER_BYTES_MAX)))


def test_few_plans_are_kept_whatever_is_written():
    names = [field.name for field in WIRE_LAYOUTS[headers.StreamRange]]
    for chosen in range(2 ** len(names)):
        fields = [name for bit, name in enumerate(names) if chosen >> bit & 1]
        odd = {"servers": (headers.ReplicaServer(),), "end_digest": b"7"}
        value = headers.StreamRange(**{name: odd.get(name, 7) for name in fields})
        assert decode_header(headers.StreamRange, encode_header(value)) == value
    for kept in (headers._SCHEMA._written["StreamRange"], headers._SCHEMA._read["StreamRange"]):
        assert kept.plan.cache_info().currsize == limits.TABLE_PLANS_MAX


def sent_headers(count):
    """Headers of APPEND and FETCH with the fields that clients and servers set."""
    ranges = [headers.StreamRange(1000 + at, 3, 7 * at, -1) for at in range(count)]
    marks = [(), ("writer", 5)]
    yield headers.AppendRequest(
        30_000,
        tuple(
            headers.AppendInfo(each, at, 9, each.stream_id, *marks[at % 2])
            for at, each in enumerate(ranges)
        ),
    )
    results = (headers.AppendResult(1000 + at, at, at + 1, 5, SUCCESS) for at in range(count))
    yield headers.AppendResponse(0, tuple(results), headers.Status(handler_duration_us=8))
    yield headers.FetchRequest(
        500,
        1,
        tuple(
            headers.FetchInfo(each, at, 10 + at, 9, each.stream_id, at % 2 - 1)
            for at, each in enumerate(ranges)
        ),
        30_000,
    )
    yield headers.FetchResponse(
        0,
        tuple(headers.FetchResult(1000 + at, at, 1, SUCCESS, 0, 11) for at in range(count)),
        SUCCESS,
    )


SUCCESS = headers.Status()


@pytest.mark.parametrize("count", [1, 2, 5])
def test_frequent_messages_are_written_in_a_straight_line(count):
    schema, generic = Schema(WIRE_LAYOUTS, WRITERS), Schema(WIRE_LAYOUTS)
    for header in sent_headers(count):
        assert schema.encode(header) == generic.encode(header)
    asked = {table.__name__: schema._written[table.__name__].plan.cache_info() for table in WRITERS}
    assert [name for name, info in asked.items() if info.misses] == []
