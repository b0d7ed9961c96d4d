"""Values -> bytes, from front to back: a table first, then the contents that it refers to.

The fields that a table has decide where they stand in it, so each set of fields gets a plan once:
the vtable, which the tables of one buffer share, and a single struct for all numbers. Offsets are
filled in when it is known where their targets are. For the tables of APPEND and FETCH,
schemas/generate.py does the same beforehand: the generated functions write the usual sets of fields
in a straight line, and leave every other value, and every error, to `WrittenTable.write_any`.

Everything begins at a multiple of 4 bytes. Numbers of 8 bytes must be at a multiple of 8: the table
that holds them begins 4 bytes before one, for they follow its first 4 bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from itertools import compress
from operator import attrgetter, ne
from typing import Any, Final, NamedTuple

from msgspec import Struct

from sbp_core import limits
from sbp_core.errors import HeaderError
from sbp_core.wire.flat.kinds import (
    REFERENCE_BYTES,
    Bytes,
    Field,
    Kind,
    Scalar,
    Structs,
    Table,
    Text,
    Vector,
    code_bytes,
    picker,
)

_U32: Final = struct.Struct("<I")
put_u32: Final = _U32.pack_into
_WORD: Final = bytes(4)
_WIDE_BYTES: Final = 8
_PADDING: Final = (b"", bytes(3), bytes(2), bytes(1))
"""The bytes that fill the last word, by how many bytes are in it."""
_TERMINATION: Final = (_WORD, *_PADDING[1:])
"""The same behind a string: one zero byte at least."""
MISFIT: Final = (struct.error, AttributeError, TypeError, ValueError)
"""The errors that content of another kind than its field's causes."""

WriteValue = Callable[["Writer", Any], int]
"""Appends a value to the buffer; returns the position where it begins."""


class _WrittenReference(NamedTuple):
    """A field that refers to something: its place in the table, and the function that writes it.

    `column` is its index among the contents.
    """

    place: int
    column: int
    name: str
    write: WriteValue


class FieldPlacement(NamedTuple):
    """Where the fields of a table stand: a vtable, and the struct format of the table itself.

    `codes` begins with the distance to the vtable; references are padding, to be filled in later.
    `is_wide`: some numbers have 8 bytes. `places` are by field name.
    """

    vtable: bytes
    codes: str
    is_wide: bool
    places: Mapping[str, int]


def in_order(fields: Sequence[Field]) -> list[Field]:
    """Return the fields of a table as they are written: numbers first, the widest of them first."""
    return sorted(
        fields, key=lambda field: (not isinstance(field.kind, Scalar), -field.inline_bytes)
    )


def place_fields(fields: Sequence[Field]) -> FieldPlacement:
    """Return where these fields stand in a table that has them and no others."""
    codes, end = "<i", 4
    places: dict[str, int] = {}
    for field in sorted(fields, key=lambda field: -field.inline_bytes):
        codes += field.kind.code if isinstance(field.kind, Scalar) else f"{REFERENCE_BYTES}x"
        places[field.name] = end
        end += field.inline_bytes
    by_id = {field.id: places[field.name] for field in fields}
    slots = [by_id.get(slot, 0) for slot in range(max(by_id, default=-1) + 1)]
    vtable = struct.pack(f"<{2 + len(slots)}H", 4 + 2 * len(slots), end, *slots)
    return FieldPlacement(
        vtable + _PADDING[len(vtable) % 4],
        f"{codes}{-end % 4}x" if end % 4 else codes,
        any(field.inline_bytes == _WIDE_BYTES for field in fields),
        places,
    )


class _WritingPlan(NamedTuple):
    """How to write a table that has certain fields.

    `pack` takes the distance to the vtable and the `numbers`, which are picked from all contents.
    """

    vtable: bytes
    is_wide: bool
    pack: Callable[..., bytes]
    numbers: Callable[[Sequence[Any]], Sequence[Any]]
    references: tuple[_WrittenReference, ...]


class WrittenTable:
    """The fields of a table, and how it is written: `write` is generated for the hot tables.

    `contents` takes the fields from a value, in the order in which they are written; `absent` is
    what they are when they are not written.
    """

    def __init__(
        self,
        table: type[Struct],
        layout: Sequence[Field],
        tables: Mapping[str, WrittenTable],
        write: WriteValue | None,
    ) -> None:
        self._table = table
        self._tables = tables
        self._fields = in_order(layout)
        names = [field.name for field in self._fields]
        self._contents = attrgetter(*names) if len(names) > 1 else _one_attribute(*names)
        self._absent = tuple(_absent_content(field) for field in self._fields)
        self.write = write or self.write_any
        self.plan = lru_cache(maxsize=limits.TABLE_PLANS_MAX)(self._make_plan)

    def write_any(self, writer: Writer, value: object) -> int:
        """Write a value with any fields.

        Raises HeaderError, which names the field, for content that does not fit its field, and
        TypeError for a value of another table.
        """
        if type(value) is not self._table:
            raise TypeError(f"{value!r:.80} is no {self._table.__name__}")
        contents = self._contents(value)
        is_present = tuple(map(ne, contents, self._absent))
        vtable, is_wide, pack, numbers, references = self.plan(is_present)
        out = writer.out
        position = writer.begin(vtable, is_wide)
        try:
            out += pack(writer.distance, *numbers(contents))
        except struct.error:
            raise self._number_error(contents) from None
        for place, column, name, write in references:
            try:
                target = write(writer, contents[column])
            except MISFIT as error:
                raise HeaderError(f"{self._table.__name__}.{name}: {error}") from error
            put_u32(out, position + place, target - (position + place))
        return position

    def _make_plan(self, is_present: tuple[bool, ...]) -> _WritingPlan:
        fields = [*compress(self._fields, is_present)]
        columns = [*compress(range(len(self._fields)), is_present)]
        number_count = sum(isinstance(field.kind, Scalar) for field in fields)
        placed = place_fields(fields)
        return _WritingPlan(
            placed.vtable,
            placed.is_wide,
            struct.Struct(placed.codes).pack,
            picker(columns[:number_count]),
            tuple(
                _WrittenReference(
                    placed.places[field.name], column, field.name, self._writer(field.kind)
                )
                for field, column in zip(fields[number_count:], columns[number_count:], strict=True)
            ),
        )

    def _writer(self, kind: Kind) -> WriteValue:
        """Return the function that writes what a field of this kind refers to."""
        match kind:
            case Table(name):
                return self._tables[name].write
            case Text():
                return Writer.write_text
            case Bytes():
                return Writer.write_bytes
            case Structs(codes):
                return partial(Writer.write_structs, codes=codes)
            case Vector(Scalar(code)):
                return partial(Writer.write_numbers, code=code)
            case Vector(element):
                return partial(Writer.write_vector, write=self._writer(element))
        raise AssertionError(kind)

    def _number_error(self, contents: Sequence[Any]) -> HeaderError:
        """Return the error for the number that cannot be written."""
        for field, content in zip(self._fields, contents, strict=True):
            if isinstance(field.kind, Scalar):
                try:
                    struct.pack(f"<{field.kind.code}", content)
                except struct.error:
                    name = f"{self._table.__name__}.{field.name}"
                    return HeaderError(
                        f"{name} cannot be {content!r:.80}: it does not fit the type"
                    )
        raise AssertionError(f"{self._table.__name__}: all numbers can be written")


def _absent_content(field: Field) -> Any:
    """Return the content of a field that is not written."""
    if isinstance(field.kind, Bytes):
        return b""
    return () if isinstance(field.kind, Vector | Structs) else field.default


def _one_attribute(*names: str) -> Callable[[Any], tuple[Any, ...]]:
    """Return `attrgetter` for one name, or none: it gives a tuple, too."""
    return lambda value: tuple([getattr(value, name) for name in names])


class Writer:
    """One buffer that is being written. The `write` methods return where their value begins."""

    __slots__ = ("_vtables", "distance", "out", "tables")

    def __init__(self, tables: Mapping[str, WrittenTable]) -> None:
        self.tables = tables
        self._vtables: dict[bytes, int] = {}
        self.out = bytearray()
        self.distance = 0

    def write_root(self, value: object) -> bytes:
        """Return the buffer whose root is `value`.

        Raises HeaderError, which names the field, for content that does not fit its field.
        """
        out = self.out
        out += _WORD
        put_u32(out, 0, self.tables[type(value).__name__].write(self, value))
        return bytes(out)

    def begin(self, vtable: bytes, is_wide: bool) -> int:  # noqa: FBT001 - the hottest call
        """Return where the next table begins; its vtable is `distance` bytes before it."""
        out = self.out
        at = len(out)
        vtable_at = self._vtables.setdefault(vtable, at)
        if vtable_at == at:
            out += vtable
            at += len(vtable)
        if is_wide and at % _WIDE_BYTES == 0:
            out += _WORD
            at += len(_WORD)
        self.distance = at - vtable_at
        return at

    def write_text(self, text: str) -> int:
        """Write a string."""
        return self._write_counted(text.encode("utf-8"), _TERMINATION)

    def write_bytes(self, data: bytes) -> int:
        """Write a vector of bytes."""
        return self._write_counted(bytes(memoryview(data)), _PADDING)

    def _write_counted(self, data: bytes, endings: Sequence[bytes]) -> int:
        position = len(self.out)
        self.out += _U32.pack(len(data))
        self.out += data
        self.out += endings[len(data) % 4]
        return position

    def write_numbers(self, numbers: Sequence[int], code: str) -> int:
        """Write a vector of numbers."""
        data = struct.pack(f"<{len(numbers)}{code}", *numbers)
        return self._write_elements(len(numbers), data, code)

    def write_structs(self, items: Sequence[Sequence[int]], codes: str) -> int:
        """Write a vector of structs."""
        layout = struct.Struct(f"<{codes}")
        data = b"".join([layout.pack(*item) for item in items])
        return self._write_elements(len(items), data, codes[0])

    def _write_elements(self, count: int, data: bytes, code: str) -> int:
        if code_bytes(code) == _WIDE_BYTES and len(self.out) % _WIDE_BYTES == 0:
            self.out += _WORD
        position = len(self.out)
        self.out += _U32.pack(count)
        self.out += data
        self.out += _PADDING[len(data) % 4]
        return position

    def write_vector(self, items: Sequence[Any], write: WriteValue) -> int:
        """Write a vector of offsets, and behind it their targets."""
        out = self.out
        position = place = len(out)
        out += _U32.pack(len(items))
        out += bytes(REFERENCE_BYTES * len(items))
        for item in items:
            place += REFERENCE_BYTES
            put_u32(out, place, write(self, item) - place)
        return position
