"""The FlatBuffers codec: what it writes, what it takes, and hostile tables."""

import struct
from dataclasses import dataclass

import flatbuffers
import pytest

from sbp_core import limits
from sbp_core.errors import HeaderError
from sbp_core.wire import headers
from sbp_core.wire.flat import Field, Octets, Scalar, Schema, Structs, Table, Text, Vector
from sbp_core.wire.headers import decode_header, encode_header


@dataclass(frozen=True, slots=True)
class Leaf:
    flag: bool = False
    number: int = -1
    text: str | None = None


@dataclass(frozen=True, slots=True)
class Node:
    data: bytes = b""
    numbers: tuple[int, ...] = ()
    texts: tuple[str, ...] = ()
    leaf: Leaf | None = None
    children: tuple["Node", ...] = ()
    pairs: tuple[tuple[int, int], ...] = ()


LEAF = (Field("flag", 0, Scalar("?"), False), Field("number", 1, Scalar("q"), -1))
SCHEMA = Schema(
    {
        Leaf: (*LEAF, Field("text", 2, Text())),
        Node: (
            Field("data", 0, Octets()),
            Field("numbers", 1, Vector(Scalar("i"))),
            Field("texts", 2, Vector(Text())),
            Field("leaf", 3, Table("Leaf")),
            Field("children", 4, Vector(Table("Node"))),
            Field("pairs", 5, Structs("qq")),
        ),
    }
)
OLDER = Schema({Leaf: LEAF})


def write_node(builder, slots):
    """Write a Node that points at things already written: {field id: position}."""
    builder.StartObject(6)
    for slot, position in slots.items():
        builder.PrependUOffsetTRelativeSlot(slot, position, 0)
    return builder.EndObject()


def write_references(builder, target, count):
    """Write a vector of `count` references to one and the same thing."""
    builder.StartVector(4, count, 4)
    for _ in range(count):
        builder.PrependUOffsetTRelative(target)
    return builder.EndVector()


def finish(builder, root):
    builder.Finish(root)
    return bytes(builder.Output())


@pytest.mark.parametrize(
    "value",
    [
        Node(),
        Leaf(flag=True, number=-(2**63), text=""),
        Leaf(text="größe \x00 \U0001f600"),
        Node(data=bytes(range(256)), numbers=(0, -1, 2**31 - 1), texts=("", "a", "")),
        Node(leaf=Leaf(), children=(Node(), Node(children=(Node(b"x"),)))),
        Node(pairs=((1, -1), (2**63 - 1, -(2**63)))),
    ],
)
def test_round_trip(value):
    assert SCHEMA.decode(type(value), SCHEMA.encode(value)) == value


def test_an_absent_text_is_not_an_empty_one():
    assert SCHEMA.decode(Leaf, SCHEMA.encode(Leaf())).text is None
    assert SCHEMA.decode(Leaf, SCHEMA.encode(Leaf(text=""))).text == ""


def test_defaults_are_not_written():
    assert SCHEMA.encode(Leaf(number=-1)) == SCHEMA.encode(Leaf())
    assert len(SCHEMA.encode(Leaf())) < len(SCHEMA.encode(Leaf(number=0)))


def test_fields_appended_later_are_ignored_and_missing_ones_take_their_default():
    newer = SCHEMA.encode(Leaf(number=7, text="new"))
    assert OLDER.decode(Leaf, newer) == Leaf(number=7)
    assert SCHEMA.decode(Leaf, OLDER.encode(Leaf(number=7))) == Leaf(number=7)


@pytest.mark.parametrize("view", [bytes, bytearray, memoryview, lambda b: memoryview(b"z" + b)[1:]])
def test_any_buffer_is_read(view):
    value = Node(texts=("a",), data=b"xyz")
    assert SCHEMA.decode(Node, view(SCHEMA.encode(value))) == value


def test_a_value_is_a_copy():
    data = bytearray(SCHEMA.encode(Node(data=b"before")))
    value = SCHEMA.decode(Node, data)
    data[:] = bytes(len(data))
    assert value == Node(data=b"before")


def test_a_header_that_no_frame_can_carry_is_not_written():
    with pytest.raises(HeaderError, match="split the request"):
        encode_header(headers.Status(detail=bytes(limits.HEADER_BYTES_MAX)))


@pytest.mark.parametrize("length", range(8))
def test_too_few_octets(length):
    with pytest.raises(HeaderError):
        SCHEMA.decode(Leaf, bytes(length))
    with pytest.raises(HeaderError):
        SCHEMA.decode(Leaf, b"\xff" * length)


def test_text_must_be_utf8():
    broken = SCHEMA.encode(Leaf(text="abcd")).replace(b"abcd", b"ab\xff\xfe")
    with pytest.raises(HeaderError, match="Leaf"):
        SCHEMA.decode(Leaf, broken)


def test_text_has_a_limit():
    fits = Leaf(text="x" * limits.STRING_BYTES_MAX)
    assert SCHEMA.decode(Leaf, SCHEMA.encode(fits)) == fits
    builder = flatbuffers.Builder()
    text = builder.CreateString("x" * (limits.STRING_BYTES_MAX + 1))
    builder.StartObject(3)
    builder.PrependUOffsetTRelativeSlot(2, text, 0)
    with pytest.raises(HeaderError, match="string of"):
        SCHEMA.decode(Leaf, finish(builder, builder.EndObject()))


@pytest.mark.parametrize(
    "value",
    [
        Leaf(text="777"),
        Node(data=b"777"),
        Node(numbers=(7, 7, 7)),
        Node(texts=("a", "b", "c")),
        Node(children=(Node(), Node(), Node())),
        Node(pairs=((7, 7), (7, 7), (7, 7))),
    ],
)
@pytest.mark.parametrize("count", [2**10, 2**31 - 1, 2**31, 2**32 - 1])
def test_a_count_beyond_the_end(value, count):
    encoded = SCHEMA.encode(value)
    three = struct.pack("<I", 3)
    assert encoded.count(three) == 1
    with pytest.raises(HeaderError):
        SCHEMA.decode(type(value), encoded.replace(three, struct.pack("<I", count)))


def nest(depth):
    value = Node()
    for _ in range(depth):
        value = Node(children=(value,))
    return SCHEMA.encode(value)


def test_nesting_has_a_limit():
    assert SCHEMA.decode(Node, nest(limits.HEADER_DEPTH_MAX))
    with pytest.raises(HeaderError, match="nested deeper"):
        SCHEMA.decode(Node, nest(limits.HEADER_DEPTH_MAX + 1))


# Bombs: a few octets that say "the same again, a thousand times", on every level.


def test_an_exponential_tree():
    builder = flatbuffers.Builder()
    node = write_node(builder, {})
    for _ in range(limits.HEADER_DEPTH_MAX):
        node = write_node(builder, {4: write_references(builder, node, 100)})
    data = finish(builder, node)
    assert len(data) < 4096
    with pytest.raises(HeaderError, match="more than"):
        SCHEMA.decode(Node, data)


def test_the_same_octets_in_a_thousand_tables():
    builder = flatbuffers.Builder()
    octets = builder.CreateByteVector(bytes(64 * limits.KIB))
    node = write_node(builder, {0: octets})
    data = finish(builder, write_node(builder, {4: write_references(builder, node, 1000)}))
    with pytest.raises(HeaderError, match="refers to"):
        SCHEMA.decode(Node, data)


def test_the_same_text_a_thousand_times():
    builder = flatbuffers.Builder()
    text = builder.CreateString("x" * limits.STRING_BYTES_MAX)
    data = finish(builder, write_node(builder, {2: write_references(builder, text, 1000)}))
    with pytest.raises(HeaderError, match="refers to"):
        SCHEMA.decode(Node, data)


@pytest.mark.parametrize(("slot", "width"), [(1, 4), (5, 16)])
def test_the_same_numbers_in_a_thousand_tables(slot, width):
    octets = 64 * limits.KIB
    builder = flatbuffers.Builder()
    builder.StartVector(width, octets // width, 8)
    for _ in range(octets // 4):
        builder.PrependInt32(1)
    node = write_node(builder, {slot: builder.EndVector()})
    data = finish(builder, write_node(builder, {4: write_references(builder, node, 1000)}))
    with pytest.raises(HeaderError, match="refers to"):
        SCHEMA.decode(Node, data)


def test_a_list_of_references_in_a_hundred_tables():
    builder = flatbuffers.Builder()
    references = write_references(builder, builder.CreateString(""), 64 * limits.KIB)
    node = write_node(builder, {2: references})
    data = finish(builder, write_node(builder, {4: write_references(builder, node, 100)}))
    with pytest.raises(HeaderError, match="refers to"):
        SCHEMA.decode(Node, data)


def test_what_a_server_reads_before_it_knows_the_peer():
    builder = flatbuffers.Builder()
    octets = builder.CreateByteVector(bytes(64 * limits.KIB))
    builder.StartObject(2)
    builder.PrependUOffsetTRelativeSlot(1, octets, 0)
    features = write_references(builder, builder.EndObject(), 1000)
    builder.StartObject(6)
    builder.PrependUOffsetTRelativeSlot(3, features, 0)
    with pytest.raises(HeaderError, match="refers to"):
        decode_header(headers.HeartbeatRequest, finish(builder, builder.EndObject()))


def test_a_large_honest_header_is_read():
    request = headers.DescribeStreamsRequest(
        stream_ids=tuple(range(limits.STREAMS_PER_REQUEST_MAX)),
        names=tuple(f"stream-{index:0100d}" for index in range(limits.STREAMS_PER_REQUEST_MAX)),
    )
    assert decode_header(headers.DescribeStreamsRequest, encode_header(request)) == request
