"""Schema messages of Arrow that its own writer would not make."""

from __future__ import annotations

import struct

from flatbuffers import Builder

_NAME, _NULLABLE, _TYPE_KIND, _TYPE, _CHILDREN = 0, 1, 2, 3, 5
_INT, _STRUCT = 2, 13
_HEADER_BYTES = 8


def shared_parts_message(depth: int, width: int, *, byte_count: int = 0) -> bytes:
    """One column of structs in structs, each of which has the one below `width` times.

    So there are width ** depth columns. Arrow reads the more, the longer a message is.
    """
    builder = Builder()
    name = builder.CreateString("x")
    builder.StartObject(2)
    builder.PrependInt32Slot(0, 32, 0)
    number = builder.EndObject()
    builder.StartObject(0)
    group = builder.EndObject()
    part = _field(builder, name, _INT, number, [])
    for _ in range(depth):
        part = _field(builder, name, _STRUCT, group, [part] * width)
    columns = _vector(builder, [part])
    builder.StartObject(4)
    builder.PrependUOffsetTRelativeSlot(1, columns, 0)
    schema = builder.EndObject()
    builder.StartObject(5)
    builder.PrependInt16Slot(0, 4, 0)
    builder.PrependUint8Slot(1, 1, 0)
    builder.PrependUOffsetTRelativeSlot(2, schema, 0)
    builder.Finish(builder.EndObject())
    data = bytes(builder.Output())
    data = data.ljust(max(len(data) + -len(data) % 8, byte_count - _HEADER_BYTES), b"\0")
    return b"\xff\xff\xff\xff" + struct.pack("<i", len(data)) + data


def _field(builder: Builder, name: int, kind: int, type_table: int, children: list[int]) -> int:
    vector = _vector(builder, children)
    builder.StartObject(7)
    builder.PrependUOffsetTRelativeSlot(_NAME, name, 0)
    builder.PrependBoolSlot(_NULLABLE, True, False)
    builder.PrependUint8Slot(_TYPE_KIND, kind, 0)
    builder.PrependUOffsetTRelativeSlot(_TYPE, type_table, 0)
    builder.PrependUOffsetTRelativeSlot(_CHILDREN, vector, 0)
    return int(builder.EndObject())


def _vector(builder: Builder, targets: list[int]) -> int:
    builder.StartVector(4, len(targets), 4)
    for target in targets:
        builder.PrependUOffsetTRelative(target)
    return int(builder.EndVector())
