"""Record batches as other clients write them, and batches that are not what they say."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from flatbuffers import Builder

from sbp_core.records import encode_envelope
from sbp_core.records.encodings.sequence import encode_sequence_record
from sbp_core.wire._generated import LAYOUTS, RecordBatchMeta, RecordMeta
from sbp_core.wire.flat import Schema

TIME_MS = 1_700_000_000_000


def sequence_batch(values, *, delta=None, base_offset=0, headers=(), properties=()):
    """A batch as other clients write it: no padding, no properties."""
    meta = Schema(LAYOUTS).encode(
        RecordBatchMeta(
            stream_id=7,
            last_offset_delta=len(values) if delta is None else delta,
            base_timestamp=TIME_MS,
        )
    )
    records = b"".join(
        encode_sequence_record(
            RecordMeta(index, index, headers=headers, properties=properties), value
        )
        for index, value in enumerate(values)
    )
    return struct.pack(">bqi", 0x22, base_offset, len(meta)) + meta + records


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


PREFIX = struct.Struct(">bqi")
LENGTHS = struct.Struct(">ii")


class NoRecordSequenceError(Exception):
    """The bytes are no record sequence; the message says where and why."""


@dataclass(frozen=True)
class Record:
    """One record, as a reader of that time sees it."""

    offset: int
    timestamp_ms: int
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()
    properties: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class RecordSequence:
    """A whole batch. `last_offset_delta` is the number of records, or one less, by writer."""

    stream_id: int
    last_offset_delta: int
    records: tuple[Record, ...]
    properties: tuple[tuple[str, str], ...] = ()


def check_record_sequence(batch: bytes) -> RecordSequence:
    """Return what a batch holds. Raises NoRecordSequenceError if no data node would take it."""
    try:
        return _read(batch)
    except (struct.error, UnicodeDecodeError) as error:
        raise NoRecordSequenceError(f"it is cut off, or no text: {error}") from error


def _read(batch: bytes) -> RecordSequence:
    magic, base_offset, meta_bytes = PREFIX.unpack_from(batch)
    _check(magic == 0x22, f"its magic is {magic:#x}")
    position = PREFIX.size + meta_bytes
    _check(0 < meta_bytes <= len(batch) - PREFIX.size, f"metadata of {meta_bytes} bytes")
    meta = _Table.root(batch[PREFIX.size : position])
    base_ms = meta.number(4, "q")
    records: list[Record] = []
    while position < len(batch):
        meta_bytes, body_bytes = LENGTHS.unpack_from(batch, position)
        position += LENGTHS.size
        end = position + meta_bytes + body_bytes
        _check(
            meta_bytes > 0 and body_bytes >= 0 and end <= len(batch),
            f"record {len(records)} has {meta_bytes} bytes of metadata and a body of {body_bytes};"
            f" {len(batch) - position} bytes are left",
        )
        table = _Table.root(batch[position : position + meta_bytes])
        delta = table.number(0, "i")
        _check(delta == len(records), f"record {len(records)} says that it is number {delta}")
        records.append(
            Record(
                base_offset + delta,
                base_ms + table.number(1, "i"),
                batch[position + meta_bytes : end],
                table.pairs(2),
                table.pairs(3),
            )
        )
        position = end
    last = meta.number(3, "i")
    _check(bool(records), "it holds no record")
    _check(last in {len(records), len(records) - 1}, f"last_offset_delta {last}: {len(records)}")
    return RecordSequence(meta.number(0, "q"), last, tuple(records), meta.pairs(5))


def _check(is_right: bool, what: str) -> None:
    if not is_right:
        raise NoRecordSequenceError(what)


class _Table:
    """A FlatBuffers table, verified as far as it is read: bounds and alignment."""

    def __init__(self, data: bytes, position: int) -> None:
        self._data = data
        self._position = position
        vtable = position - self._at("i", position)
        size, self._size = self._at("H", vtable), self._at("H", vtable + 2)
        _check(size >= 4 and size % 2 == 0, f"a vtable of {size} bytes")
        self._slots = [self._at("H", vtable + 4 + 2 * each) for each in range(size // 2 - 2)]

    @classmethod
    def root(cls, data: bytes) -> _Table:
        _check(len(data) >= 4, f"metadata of {len(data)} bytes")
        return cls(data, struct.unpack_from("<I", data)[0])

    def number(self, field_id: int, code: str) -> int:
        """A number, 0 where it is left out."""
        place = self._place(field_id, struct.calcsize(f"<{code}"))
        return 0 if place is None else self._at(code, place)

    def pairs(self, field_id: int) -> tuple[tuple[str, str], ...]:
        """A vector of KeyValue."""
        place = self._place(field_id, 4)
        if place is None:
            return ()
        vector = place + self._at("I", place)
        places = [vector + 4 + 4 * each for each in range(self._at("I", vector))]
        tables = [_Table(self._data, each + self._at("I", each)) for each in places]
        return tuple((each._text(0), each._text(1)) for each in tables)

    def _text(self, field_id: int) -> str:
        place = self._place(field_id, 4)
        _check(place is not None, "a KeyValue without key or value")
        assert place is not None
        start = place + self._at("I", place)
        count = self._at("I", start)
        _check(self._data[start + 4 + count : start + 5 + count] == b"\0", "a text without an end")
        return self._data[start + 4 : start + 4 + count].decode()

    def _place(self, field_id: int, size: int) -> int | None:
        slot = self._slots[field_id] if field_id < len(self._slots) else 0
        _check(slot + size <= self._size, f"field {field_id} lies outside its table")
        return self._position + slot if slot else None

    def _at(self, code: str, position: int) -> Any:
        size = struct.calcsize(f"<{code}")
        is_inside = 0 <= position <= len(self._data) - size
        _check(is_inside and position % size == 0, f"byte {position} of metadata")
        return struct.unpack_from(f"<{code}", self._data, position)[0]
