"""The FlatBuffers reader on hostile tables: positions out of bounds, senseless vtables, bombs."""

import struct

import flatbuffers
import pytest

from sbp_core import limits
from sbp_core.errors import HeaderError
from sbp_core.wire import headers
from sbp_core.wire.flat import Schema
from sbp_core.wire.headers import decode_header
from tests.support.tables import LAYOUTS, SCHEMA, Leaf, Node


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


# Tables made by hand: fields `flag` at byte 12 and `number` at byte 4.


def leaf(*vtable, distance=None, content=bytes(9)):
    """A root Leaf: the numbers of its vtable, then the table."""
    data = struct.pack(f"<I{len(vtable)}H", 4 + 2 * len(vtable), *vtable)
    return data + struct.pack("<i", len(data) - 4 if distance is None else distance) + content


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (leaf(8, 13, 12, 4, distance=13), "vtable outside"),
        (leaf(8, 13, 12, 4, distance=2**31 - 1), "vtable outside"),
        (leaf(8, 13, 12, 4, distance=-10), "vtable outside"),
        (leaf(8, 13, 12, 4, distance=-(2**31)), "vtable outside"),
        (leaf(0, 13, 12, 4), "vtable of impossible size 0"),
        (leaf(2, 13, 12, 4), "vtable of impossible size 2"),
        (leaf(7, 13, 12, 4), "vtable of impossible size 7"),
        (leaf(22, 13, 12, 4), "vtable of impossible size 22"),
        (leaf(22 + 4, 13, 12, 4), "vtable of impossible size 26"),
        (leaf(8, 0, 0, 0), "table of impossible size 0"),
        (leaf(8, 3, 0, 0), "table of impossible size 3"),
        (leaf(8, 14, 12, 4), "table of impossible size 14"),
        (leaf(8, 13, 13, 4), "Leaf.flag: outside its table"),
        (leaf(8, 13, 12, 6), "Leaf.number: outside its table"),
        (leaf(8, 13, 3, 4), "Leaf.flag: outside its table"),
        (leaf(8, 13, 4, 4), "Leaf.(number|flag): overlaps another field"),
        (leaf(8, 13, 11, 4), "Leaf.flag: overlaps another field"),
        (leaf(8, 13, 8, 0)[:-9], "table of impossible size 13"),
        (leaf(10, 8, 0, 0, 4, content=bytes(9)), "offset at byte 18 points outside"),
        (leaf(10, 8, 0, 0, 4, content=b"\x06" + bytes(8)), "offset at byte 18 points outside"),
        (leaf(10, 8, 0, 0, 4, content=b"\xff" * 9), "offset at byte 18 points outside"),
        (leaf(10, 8, 0, 0, 4, content=b"\x05\0\0\0\0\1\0\0\0"), "vector of 1 elements"),
    ],
)
def test_a_table_that_is_none(data, message):
    with pytest.raises(HeaderError, match=message):
        SCHEMA.decode(Leaf, data)


def nest(depth):
    value = Node()
    for _ in range(depth):
        value = Node(children=(value,))
    return SCHEMA.encode(value)


def test_nesting_has_a_limit():
    assert SCHEMA.decode(Node, nest(limits.HEADER_DEPTH_MAX))
    with pytest.raises(HeaderError, match="nested deeper"):
        SCHEMA.decode(Node, nest(limits.HEADER_DEPTH_MAX + 1))


# Bombs: a few bytes that say "the same again, a thousand times", on every level.


def test_an_exponential_tree():
    builder = flatbuffers.Builder()
    node = write_node(builder, {})
    for _ in range(limits.HEADER_DEPTH_MAX):
        node = write_node(builder, {4: write_references(builder, node, 100)})
    data = finish(builder, node)
    assert len(data) < 4096
    with pytest.raises(HeaderError, match="more than"):
        SCHEMA.decode(Node, data)


def test_the_same_bytes_in_a_thousand_tables():
    builder = flatbuffers.Builder()
    vector = builder.CreateByteVector(bytes(64 * limits.KIB))
    node = write_node(builder, {0: vector})
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
    size = 64 * limits.KIB
    builder = flatbuffers.Builder()
    builder.StartVector(width, size // width, 8)
    for _ in range(size // 4):
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


def test_an_empty_text_is_not_free():
    count = limits.HEADER_DECODED_BYTES_MAX // (4 + limits.HEADER_VECTOR_BYTES) + 1
    node = struct.pack("<I5HhiI", 16, 10, 8, 0, 0, 4, 0, 12, 4)
    texts = struct.pack(f"<I{count}I", count, *range(4 * count, 0, -4))
    with pytest.raises(HeaderError, match="refers to"):
        SCHEMA.decode(Node, node + texts + bytes(4))


def test_the_number_of_tables_has_a_limit_of_its_own():
    data = SCHEMA.encode(Node(children=(Node(),) * 9))
    assert Schema(LAYOUTS, tables_max=10).decode(Node, data)
    with pytest.raises(HeaderError, match="more than 9 of them"):
        Schema(LAYOUTS, tables_max=9).decode(Node, data)


def test_the_ways_in_which_tables_are_laid_out_have_a_limit():
    data = SCHEMA.encode(Node(children=(Node(b"x"), Node(texts=("x",)), Node(b"y"), Node())))
    assert Schema(LAYOUTS, layouts_max=4).decode(Node, data)
    with pytest.raises(HeaderError, match="in more than 3 ways"):
        Schema(LAYOUTS, layouts_max=3).decode(Node, data)


def test_repeated_references_are_refused_before_the_peer_is_known():
    builder = flatbuffers.Builder()
    data = builder.CreateByteVector(bytes(64 * limits.KIB))
    builder.StartObject(2)
    builder.PrependUOffsetTRelativeSlot(1, data, 0)
    features = write_references(builder, builder.EndObject(), 1000)
    builder.StartObject(6)
    builder.PrependUOffsetTRelativeSlot(3, features, 0)
    with pytest.raises(HeaderError, match="refers to"):
        decode_header(headers.HeartbeatRequest, finish(builder, builder.EndObject()))
