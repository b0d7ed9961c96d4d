"""Record batches as other clients write them, and batches that are not what they say."""

from __future__ import annotations

import struct

from flatbuffers import Builder

from sbp_core.records import encode_envelope
from sbp_core.wire._generated import LAYOUTS, RecordBatchMeta, RecordMeta
from sbp_core.wire.flat import Schema

TIME_MS = 1_700_000_000_000
_SCHEMA = Schema(LAYOUTS)


def sequence_batch(
    values, *, delta=None, base_offset=0, time_ms=TIME_MS, headers=(), properties=()
):
    """A batch as other clients write it: no padding, no properties."""
    meta = _SCHEMA.encode(
        RecordBatchMeta(
            stream_id=7,
            last_offset_delta=len(values) if delta is None else delta,
            base_timestamp=time_ms,
        )
    )
    records = b"".join(
        _record(RecordMeta(index, index, headers=headers, properties=properties), value)
        for index, value in enumerate(values)
    )
    return struct.pack(">bqi", 0x22, base_offset, len(meta)) + meta + records


def _record(meta: RecordMeta, body: bytes) -> bytes:
    encoded = _SCHEMA.encode(meta)
    return struct.pack(">ii", len(encoded), len(body)) + encoded + body


MILLION = 1_000_000


def lying_batch(encoding: str = "rows", count: int = MILLION, body: bytes = b"1234567") -> bytes:
    """A batch that no reader can decode, whatever its envelope declares."""
    return encode_envelope(
        [body],
        stream_id=0,
        record_count=count,
        base_timestamp_ms=0,
        encoding=encoding,
        schema_fingerprint="0" * 32 if encoding == "columns" else None,
    )


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
