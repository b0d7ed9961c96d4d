"""Tables as FlatBuffers' own Python runtime writes and reads them: another encoder and decoder.

It writes from back to front, so the order of its bytes differs from ours. It verifies nothing.
"""

import struct

import flatbuffers
from flatbuffers import number_types as numbers
from flatbuffers.table import Table as OfficialTable

from sbp_core.wire.flat import Bytes, Scalar, Structs, Table, Text, Vector

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
