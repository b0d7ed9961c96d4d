"""The checks of the strictest FlatBuffers verifiers of other languages, and a few more.

Numbers, offsets and lengths are aligned from the start of the buffer, offsets lead forward, strings
are UTF-8 and end with a zero byte. Beyond that: no byte belongs to two things, what belongs to
none is zero, vtables are shared, and no default is written.
"""

import struct

from sbp_core.wire.flat import Bytes, Scalar, Structs, Table, Text, Vector


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
