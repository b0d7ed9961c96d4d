"""Other encoders, decoders and verifiers of FlatBuffers."""

from __future__ import annotations

import os
import shutil
import struct

import flatbuffers
import pytest
from flatbuffers import number_types as numbers
from flatbuffers.table import Table as OfficialTable
from msgspec import Struct

from sbp_core.wire.flat import Bytes, Field, Scalar, Schema, Structs, Table, Text, Vector

needs_flatc = pytest.mark.skipif(
    shutil.which("flatc") is None and "CI" not in os.environ,
    reason="flatc is missing: install it, e.g. `apt-get install flatbuffers-compiler`",
)
"""Skips a test on a machine without flatc. It fails in CI, where flatc has to be there."""


class Leaf(Struct, frozen=True, gc=False):
    flag: bool = False
    number: int = -1
    text: str | None = None


class Node(Struct, frozen=True, gc=False):
    data: bytes = b""
    numbers: tuple[int, ...] = ()
    texts: tuple[str, ...] = ()
    leaf: Leaf | None = None
    children: tuple[Node, ...] = ()
    pairs: tuple[tuple[int, int], ...] = ()


LEAF = (Field("flag", 0, Scalar("?"), False), Field("number", 1, Scalar("q"), -1))
LAYOUTS = {
    Leaf: (*LEAF, Field("text", 2, Text())),
    Node: (
        Field("data", 0, Bytes()),
        Field("numbers", 1, Vector(Scalar("i"))),
        Field("texts", 2, Vector(Text())),
        Field("leaf", 3, Table("Leaf")),
        Field("children", 4, Vector(Table("Node"))),
        Field("pairs", 5, Structs("qq")),
    ),
}
SCHEMA = Schema(LAYOUTS)


FLAGS = {
    "?": numbers.BoolFlags,
    "b": numbers.Int8Flags,
    "B": numbers.Uint8Flags,
    "h": numbers.Int16Flags,
    "H": numbers.Uint16Flags,
    "i": numbers.Int32Flags,
    "I": numbers.Uint32Flags,
    "q": numbers.Int64Flags,
}


def encode_officially(layouts, value):
    """The bytes of a value as a root table."""
    builder = flatbuffers.Builder()
    builder.Finish(_write_table(builder, layouts, value))
    return bytes(builder.Output())


def _write_table(builder, layouts, value):
    layout = layouts[type(value)]
    present = []
    for field in layout:
        content = getattr(value, field.name)
        if isinstance(field.kind, Scalar):
            if content != field.default:
                present.append((field, content))
        elif content or content == "":
            present.append((field, _write(builder, layouts, field.kind, content)))
    builder.StartObject(1 + max((field.id for field in layout), default=-1))
    for field, content in present:
        if isinstance(field.kind, Scalar):
            builder.Prepend(FLAGS[field.kind.code], content)
            builder.Slot(field.id)
        else:
            builder.PrependUOffsetTRelativeSlot(field.id, content, 0)
    return builder.EndObject()


def _write(builder, layouts, kind, content):
    match kind:
        case Table():
            return _write_table(builder, layouts, content)
        case Text():
            return builder.CreateString(content)
        case Bytes():
            return builder.CreateByteVector(content)
        case Structs(codes):
            width = struct.calcsize(f"<{codes[0]}")
            builder.StartVector(struct.calcsize(f"<{codes}"), len(content), width)
            for item in reversed(content):
                for code, number in zip(reversed(codes), reversed(item), strict=True):
                    builder.Prepend(FLAGS[code], number)
        case Vector(Scalar(code)):
            width = struct.calcsize(f"<{code}")
            builder.StartVector(width, len(content), width)
            for number in reversed(content):
                builder.Prepend(FLAGS[code], number)
        case Vector(element):
            offsets = [_write(builder, layouts, element, item) for item in content]
            builder.StartVector(4, len(offsets), 4)
            for offset in reversed(offsets):
                builder.PrependUOffsetTRelative(offset)
    return builder.EndVector()


def decode_officially(layouts, table, data):
    """The value of a root table."""
    types = {each.__name__: each for each in layouts}
    position = struct.unpack_from("<I", data)[0]
    return _read_table(layouts, types, table, OfficialTable(bytearray(data), position))


def _read_table(layouts, types, table, official):
    content = {}
    for field in layouts[table]:
        place = official.Offset(4 + 2 * field.id)
        if place:
            content[field.name] = _read(
                layouts, types, field.kind, official, official.Pos + place, place
            )
    return table(**content)


def _read(layouts, types, kind, official, position, place):
    """The content of a field at `position`; `place` is where that is in its table."""
    match kind:
        case Scalar(code):
            return official.Get(FLAGS[code], position)
        case Text():
            return official.String(position).decode()
        case Table(name):
            below = OfficialTable(official.Bytes, official.Indirect(position))
            return _read_table(layouts, types, types[name], below)
    start, count = official.Vector(place), official.VectorLen(place)
    match kind:
        case Bytes():
            return bytes(official.Bytes[start : start + count])
        case Structs(codes):
            size = struct.calcsize(f"<{codes}")
            starts = [start + size * index for index in range(count)]
            return tuple(_read_struct(codes, official, each) for each in starts)
        case Vector(element):
            width = struct.calcsize(f"<{element.code}") if isinstance(element, Scalar) else 4
            starts = [start + width * index for index in range(count)]
            return tuple(_read(layouts, types, element, official, each, 0) for each in starts)
    raise AssertionError(kind)


def _read_struct(codes, official, position):
    width = struct.calcsize(f"<{codes[0]}")
    return tuple(
        official.Get(FLAGS[code], position + width * index) for index, code in enumerate(codes)
    )


def check_strictly(layouts, table, data):
    """Raise AssertionError unless `data` is a well-written root table of this type."""
    _Check(layouts, data).root(table)


class _Check:
    def __init__(self, layouts, data):
        self.layouts = layouts
        self.types = {table.__name__: table for table in layouts}
        self.data = data
        self.taken = {}
        self.vtables = {}

    def root(self, table):
        self.take(0, 4)
        self.table(table, self.target(0))
        end = 0
        for start in sorted(self.taken):
            assert start >= end, f"byte {start} belongs to two things"
            assert not any(self.data[end:start]), f"something between {end} and {start}"
            end = self.taken[start]
        assert not any(self.data[end:])

    def take(self, start, size):
        assert 0 <= start <= start + size <= len(self.data)
        assert self.taken.get(start) is None, f"byte {start} belongs to two things"
        self.taken[start] = start + size

    def number(self, code, position):
        size = struct.calcsize(f"<{code}")
        assert position % size == 0, f"byte {position}: {code} is not aligned"
        return struct.unpack_from(f"<{code}", self.data, position)[0]

    def target(self, position):
        offset = self.number("I", position)
        assert offset >= 4
        return position + offset

    def table(self, table, position):
        places, size = self.vtable(position - self.number("i", position))
        self.take(position, 4)
        assert position + size <= len(self.data)
        fields = {field.id: field for field in self.layouts[table]}
        for slot, place in enumerate(places):
            if place:
                field = fields[slot]
                width = struct.calcsize(f"<{getattr(field.kind, 'code', 'I')}")
                assert place + width <= size
                self.take(position + place, width)
                self.field(field, position + place)

    def vtable(self, position):
        size, table_size = self.number("H", position), self.number("H", position + 2)
        assert size >= 4
        assert size % 2 == 0
        if position not in self.vtables:
            self.take(position, size)
            data = self.data[position : position + size]
            assert data not in self.vtables.values(), "a vtable that is there already"
            self.vtables[position] = data
        places = struct.unpack_from(f"<{size // 2 - 2}H", self.data, position + 4)
        assert not places or places[-1], "a vtable that ends with fields that are not there"
        return places, table_size

    def field(self, field, position):
        if isinstance(field.kind, Scalar):
            assert self.number(field.kind.code, position) != field.default
        else:
            self.content(field.kind, self.target(position))

    def content(self, kind, position):
        match kind:
            case Table(name):
                self.table(self.types[name], position)
            case Text():
                count = self.number("I", position)
                self.take(position, 4 + count + 1)
                assert self.data[position + 4 + count] == 0
                self.data[position + 4 : position + 4 + count].decode()
            case Bytes():
                self.elements("B", position)
            case Structs(codes):
                self.elements(codes, position)
            case Vector(Scalar(code)):
                self.elements(code, position)
            case Vector(element):
                for place in self.elements("I", position):
                    self.content(element, self.target(place))

    def elements(self, codes, position):
        """The places of a vector's elements, of which there is one at least."""
        count, size = self.number("I", position), struct.calcsize(f"<{codes}")
        assert count
        self.take(position, 4 + count * size)
        places = range(position + 4, position + 4 + count * size, size)
        for place in places:
            self.number(codes[0], place)
        return places
