"""FlatBuffers tables <-> frozen dataclasses, driven by the layouts that the schema generates.

Decoding verifies as it reads: every offset, vtable, vector and string must lie inside the header,
nesting, the number of tables and the decoded size are bounded, and all is copied into immutable
values. FlatBuffers' own Python accessors check nothing, so a hostile header read through them
yields garbage silently. Encoding uses the library's builder.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import flatbuffers

from sbp_core import limits
from sbp_core.errors import HeaderError

T = TypeVar("T")

_U16: Final = struct.Struct("<H")
_I32: Final = struct.Struct("<i")
_U32: Final = struct.Struct("<I")

_REFERENCE_BYTES: Final = _U32.size
"""A table is referred to at least once, so an honest header has no more tables than these fit."""


@dataclass(frozen=True, slots=True)
class Scalar:
    """A number or bool held in the table itself: `code` is its struct format character."""

    code: str


@dataclass(frozen=True, slots=True)
class Text:
    """A UTF-8 string."""


@dataclass(frozen=True, slots=True)
class Octets:
    """A vector of unsigned octets, `bytes` in Python."""


@dataclass(frozen=True, slots=True)
class Table:
    """A nested table, by the name of its dataclass."""

    name: str


@dataclass(frozen=True, slots=True)
class Vector:
    """A vector of scalars, strings or tables, a tuple in Python."""

    element: Scalar | Text | Table


@dataclass(frozen=True, slots=True)
class Structs:
    """A vector of structs of equally wide numbers, a tuple of tuples in Python.

    `codes` has one struct format character per number.
    """

    codes: str


Kind = Scalar | Text | Octets | Table | Vector | Structs


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a table: Python name, id, kind, and the default that is never written."""

    name: str
    id: int
    kind: Kind
    default: int | float | bool | None = None


class Schema:
    """The tables of one schema file: encodes and decodes their dataclasses."""

    def __init__(
        self, layouts: Mapping[type, tuple[Field, ...]], *, bytes_max: int = limits.HEADER_BYTES_MAX
    ) -> None:
        self._layouts = {table.__name__: fields for table, fields in layouts.items()}
        self._types = {table.__name__: table for table in layouts}
        self._slot_counts = {
            table.__name__: max((field.id for field in fields), default=-1) + 1
            for table, fields in layouts.items()
        }
        self._structs = {
            field.kind.code: struct.Struct("<" + field.kind.code)
            for fields in layouts.values()
            for field in fields
            if isinstance(field.kind, Scalar)
        }
        self._bytes_max = bytes_max

    def encode(self, value: object) -> bytes:
        """Return the FlatBuffers encoding of a generated dataclass, as a root table.

        Raises HeaderError when the result would be larger than a header may be.
        """
        builder = flatbuffers.Builder(256)
        builder.Finish(self._write_table(builder, value))
        encoded = bytes(builder.Output())
        if len(encoded) > self._bytes_max:
            raise HeaderError(
                f"{type(value).__name__} encodes to {len(encoded)} octets, more than the"
                f" {self._bytes_max} that a header may have; split the request"
            )
        return encoded

    def decode(self, table: type[T], data: bytes | bytearray | memoryview) -> T:
        """Verify `data` as a root table of type `table` and return it as a value.

        Raises HeaderError when any part of it lies outside the data or breaks a limit.
        """
        reader = _Reader(self, bytes(data))
        try:
            return reader.read_table(table.__name__, reader.follow(0), 0)  # type: ignore[no-any-return]
        except (struct.error, IndexError, OverflowError, UnicodeDecodeError) as error:
            raise HeaderError(f"{table.__name__}: not a valid table: {error}") from error

    def _write_table(self, builder: flatbuffers.Builder, value: object) -> int:
        name = type(value).__name__
        prepared: list[tuple[Field, Any]] = []
        for field in self._layouts[name]:
            content = getattr(value, field.name)
            kind = field.kind
            if isinstance(kind, Scalar):
                if content != field.default:
                    prepared.append((field, content))
            elif isinstance(kind, Table):
                if content is not None:
                    prepared.append((field, self._write_table(builder, content)))
            elif isinstance(kind, Text):
                if content is not None:
                    prepared.append((field, builder.CreateString(content)))
            elif content:
                prepared.append((field, self._write_vector(builder, kind, content)))
        builder.StartObject(self._slot_counts[name])
        for field, content in prepared:
            if isinstance(field.kind, Scalar):
                _PREPEND[field.kind.code](builder, content)
                builder.Slot(field.id)
            else:
                builder.PrependUOffsetTRelativeSlot(field.id, content, 0)
        return int(builder.EndObject())

    def _write_vector(
        self, builder: flatbuffers.Builder, kind: Octets | Vector | Structs, content: Any
    ) -> int:
        if isinstance(kind, Octets):
            return int(builder.CreateByteVector(bytes(content)))
        if isinstance(kind, Structs):
            builder.StartVector(
                struct.calcsize("<" + kind.codes), len(content), struct.calcsize(kind.codes[0])
            )
            for item in reversed(content):
                for code, number in zip(reversed(kind.codes), reversed(item), strict=True):
                    _PREPEND[code](builder, number)
            return int(builder.EndVector())
        element = kind.element
        if isinstance(element, Scalar):
            size = struct.calcsize("<" + element.code)
            builder.StartVector(size, len(content), size)
            for item in reversed(content):
                _PREPEND[element.code](builder, item)
            return int(builder.EndVector())
        if isinstance(element, Table):
            offsets = [self._write_table(builder, item) for item in content]
        else:
            offsets = [builder.CreateString(item) for item in content]
        builder.StartVector(4, len(offsets), 4)
        for offset in reversed(offsets):
            builder.PrependUOffsetTRelative(offset)
        return int(builder.EndVector())


_PREPEND: Final[Mapping[str, Any]] = {
    "?": flatbuffers.Builder.PrependBool,
    "b": flatbuffers.Builder.PrependInt8,
    "B": flatbuffers.Builder.PrependUint8,
    "h": flatbuffers.Builder.PrependInt16,
    "H": flatbuffers.Builder.PrependUint16,
    "i": flatbuffers.Builder.PrependInt32,
    "I": flatbuffers.Builder.PrependUint32,
    "q": flatbuffers.Builder.PrependInt64,
}


class _Reader:
    """One verified reading of one buffer."""

    def __init__(self, schema: Schema, data: bytes) -> None:
        self._schema = schema
        self._data = data
        self._tables_max = min(limits.HEADER_TABLES_MAX, len(data) // _REFERENCE_BYTES)
        self._tables_left = self._tables_max
        self._octets_left = limits.HEADER_DECODED_BYTES_MAX

    def follow(self, position: int) -> int:
        """Follow the forward offset stored at `position`."""
        (offset,) = _U32.unpack_from(self._data, position)
        target = position + int(offset)
        if offset == 0 or target + 4 > len(self._data):
            raise HeaderError(f"offset at octet {position} points outside the header")
        return target

    def read_table(self, name: str, position: int, depth: int) -> Any:
        data = self._data
        self._tables_left -= 1
        if depth > limits.HEADER_DEPTH_MAX or self._tables_left < 0:
            raise HeaderError(
                f"{name}: tables nested deeper than {limits.HEADER_DEPTH_MAX} or more than"
                f" {self._tables_max} of them in {len(data)} octets"
            )
        vtable = position - _I32.unpack_from(data, position)[0]
        if vtable < 0 or vtable + 4 > len(data):
            raise HeaderError(f"{name}: vtable outside the header")
        (vtable_size,) = _U16.unpack_from(data, vtable)
        (table_size,) = _U16.unpack_from(data, vtable + 2)
        if vtable_size < 4 or vtable_size % 2 or vtable + vtable_size > len(data):
            raise HeaderError(f"{name}: vtable of impossible size {vtable_size}")
        if table_size < 4 or position + table_size > len(data):
            raise HeaderError(f"{name}: table of impossible size {table_size}")
        values: dict[str, Any] = {}
        for field in self._schema._layouts[name]:
            entry = 4 + 2 * field.id
            if entry >= vtable_size:
                continue
            (relative,) = _U16.unpack_from(data, vtable + entry)
            if relative == 0:
                continue
            kind = field.kind
            if isinstance(kind, Scalar):
                scalar = self._schema._structs[kind.code]
                if relative < 4 or relative + scalar.size > table_size:
                    raise HeaderError(f"{name}.{field.name}: outside its table")
                values[field.name] = scalar.unpack_from(data, position + relative)[0]
                continue
            if relative < 4 or relative + 4 > table_size:
                raise HeaderError(f"{name}.{field.name}: outside its table")
            target = self.follow(position + relative)
            if isinstance(kind, Table):
                values[field.name] = self.read_table(kind.name, target, depth + 1)
            elif isinstance(kind, Text):
                values[field.name] = self._read_text(target)
            elif isinstance(kind, Octets):
                start, count = self._read_count(target, 1)
                values[field.name] = data[start : start + count]
            elif isinstance(kind, Structs):
                values[field.name] = self._read_structs(kind, target)
            else:
                values[field.name] = self._read_vector(kind, target, depth)
        return self._schema._types[name](**values)

    def _read_count(self, position: int, element_bytes: int) -> tuple[int, int]:
        (count,) = _U32.unpack_from(self._data, position)
        start = position + 4
        if start + count * element_bytes > len(self._data):
            raise HeaderError(f"vector of {count} elements at octet {position} passes the end")
        self._octets_left -= 4 + count * element_bytes
        if self._octets_left < 0:
            raise HeaderError(
                "the header refers to the same strings or vectors so often that it would decode to"
                f" more than {limits.HEADER_DECODED_BYTES_MAX} octets"
            )
        return start, int(count)

    def _read_text(self, position: int) -> str:
        start, count = self._read_count(position, 1)
        if count > limits.STRING_BYTES_MAX:
            raise HeaderError(f"string of {count} octets, more than {limits.STRING_BYTES_MAX}")
        return self._data[start : start + count].decode("utf-8")

    def _read_structs(self, kind: Structs, position: int) -> tuple[tuple[Any, ...], ...]:
        layout = struct.Struct("<" + kind.codes)
        start, count = self._read_count(position, layout.size)
        return tuple(layout.iter_unpack(self._data[start : start + count * layout.size]))

    def _read_vector(self, kind: Vector, position: int, depth: int) -> tuple[Any, ...]:
        element = kind.element
        if isinstance(element, Scalar):
            size = struct.calcsize("<" + element.code)
            start, count = self._read_count(position, size)
            return struct.unpack_from(f"<{count}{element.code}", self._data, start)
        start, count = self._read_count(position, 4)
        positions = [self.follow(start + 4 * index) for index in range(count)]
        if isinstance(element, Table):
            return tuple(self.read_table(element.name, target, depth + 1) for target in positions)
        return tuple(self._read_text(target) for target in positions)
