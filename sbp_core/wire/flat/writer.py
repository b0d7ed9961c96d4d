"""Values -> bytes, from front to back: a table first, what it refers to behind it.

The fields that a table has decide its layout, so each set of them gets a plan once: the vtable,
which the tables of one buffer share, and a single struct for all numbers. Offsets are filled in
when it is known where their targets are.

Everything begins at a multiple of 4 bytes. Numbers of 8 bytes are to be at a multiple of 8: what
holds them begins 4 bytes before one, for they follow its first 4 bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import compress
from operator import attrgetter, ne
from typing import Any, Final, NamedTuple

from msgspec import Struct

from sbp_core import limits
from sbp_core.errors import HeaderError
from sbp_core.wire.flat.kinds import (
    REFERENCE_BYTES,
    Field,
    Kind,
    Octets,
    Scalar,
    Structs,
    Table,
    Text,
    Vector,
    code_bytes,
    picker,
)

_U32: Final = struct.Struct("<I")
_put_u32: Final = _U32.pack_into
_WORD: Final = bytes(4)
_WIDE_BYTES: Final = 8
_PADDING: Final = (b"", bytes(3), bytes(2), bytes(1))
"""What fills the last word, by the bytes in it."""
_TERMINATION: Final = (_WORD, *_PADDING[1:])
"""The same behind a string: one zero byte at least."""
_MISFIT: Final = (struct.error, AttributeError, TypeError, ValueError)
"""What content of another kind than its field's runs into."""


class _Reference(NamedTuple):
    """A field that refers to something: its place in the table, and the method that writes it.

    `column` is where it is among the contents; `kind` is the WrittenTable of what has tables.
    """

    place: int
    column: int
    name: str
    kind: Any
    write: Callable[[Writer, Any, Any], int]


class _Plan(NamedTuple):
    """The layout of a table that has certain fields.

    `pack` takes the distance to the vtable and the `numbers`, which are picked from all contents.
    `is_wide`: some have 8 bytes.
    """

    vtable: bytes
    is_wide: bool
    pack: Callable[..., bytes]
    numbers: Callable[[Sequence[Any]], Sequence[Any]]
    references: tuple[_Reference, ...]


class WrittenTable:
    """What the writer knows of a table: its fields, numbers before others and the widest first.

    `contents` takes them from a value; `absent` is what they have when they are not written.
    """

    def __init__(
        self, table: type[Struct], layout: Sequence[Field], tables: Mapping[str, WrittenTable]
    ) -> None:
        self.table = table
        self._tables = tables
        self._fields = sorted(
            layout, key=lambda field: (not isinstance(field.kind, Scalar), -field.inline_bytes)
        )
        self.contents = _picked_attributes([field.name for field in self._fields])
        self.absent = tuple(_absent_content(field) for field in self._fields)
        self.plan = lru_cache(maxsize=limits.TABLE_PLANS_MAX)(self._make_plan)

    def _make_plan(self, is_present: tuple[bool, ...]) -> _Plan:
        fields = [*compress(self._fields, is_present)]
        columns = [*compress(range(len(self._fields)), is_present)]
        number_count = sum(isinstance(field.kind, Scalar) for field in fields)
        codes, end = "<i", 4
        places: dict[int, int] = {}
        for field in sorted(fields, key=lambda field: -field.inline_bytes):
            codes += field.kind.code if isinstance(field.kind, Scalar) else f"{REFERENCE_BYTES}x"
            places[field.id] = end
            end += field.inline_bytes
        slots = [places.get(slot, 0) for slot in range(max(places, default=-1) + 1)]
        vtable = struct.pack(f"<{2 + len(slots)}H", 4 + 2 * len(slots), end, *slots)
        return _Plan(
            vtable=vtable + _PADDING[len(vtable) % 4],
            is_wide=any(field.inline_bytes == _WIDE_BYTES for field in fields),
            pack=struct.Struct(f"{codes}{-end % 4}x").pack,
            numbers=picker(columns[:number_count]),
            references=tuple(
                self._reference(field, places[field.id], column)
                for field, column in zip(fields[number_count:], columns[number_count:], strict=True)
            ),
        )

    def _reference(self, field: Field, place: int, column: int) -> _Reference:
        kind = field.kind
        element = kind.element if isinstance(kind, Vector) else kind
        what = self._tables[element.name] if isinstance(element, Table) else kind
        return _Reference(place, column, field.name, what, _write_method(kind))

    def number_error(self, contents: Sequence[Any]) -> HeaderError:
        """Return the error for the number that cannot be written."""
        for field, content in zip(self._fields, contents, strict=True):
            if isinstance(field.kind, Scalar):
                try:
                    struct.pack(f"<{field.kind.code}", content)
                except struct.error as error:
                    name = f"{self.table.__name__}.{field.name}"
                    return HeaderError(f"{name} cannot be {content!r:.80}: {error}")
        raise AssertionError(f"{self.table.__name__}: all numbers can be written")


def _absent_content(field: Field) -> Any:
    """Return what a field has that is not written."""
    if isinstance(field.kind, Octets):
        return b""
    return () if isinstance(field.kind, Vector | Structs) else field.default


def _picked_attributes(names: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    """Return what takes these attributes of a value."""
    if len(names) > 1:
        return attrgetter(*names)
    getters = [attrgetter(name) for name in names]
    return lambda value: tuple(get(value) for get in getters)


class Writer:
    """One writing of one buffer. Its methods return where begins what they wrote."""

    def __init__(self, tables: Mapping[str, WrittenTable]) -> None:
        self._tables = tables
        self._vtables: dict[bytes, int] = {}
        self._out = bytearray()

    def write_root(self, value: object) -> bytes:
        """Return the buffer whose root is `value`.

        Raises HeaderError, which names the field, for content that does not fit its field.
        """
        self._out += _WORD
        _U32.pack_into(self._out, 0, self._write_table(self._tables[type(value).__name__], value))
        return bytes(self._out)

    def _write_table(self, table: WrittenTable, value: object) -> int:
        if type(value) is not table.table:
            raise TypeError(f"{value!r:.80} is no {table.table.__name__}")
        contents = table.contents(value)
        is_present = tuple(map(ne, contents, table.absent))
        vtable, is_wide, pack, numbers, references = table.plan(is_present)
        out = self._out
        vtable_at = self._vtables.get(vtable)
        if vtable_at is None:
            vtable_at = self._vtables[vtable] = len(out)
            out += vtable
        if is_wide:
            self._align_behind_word()
        position = len(out)
        try:
            out += pack(position - vtable_at, *numbers(contents))
        except struct.error:
            raise table.number_error(contents) from None
        for place, column, name, kind, write in references:
            try:
                target = write(self, kind, contents[column])
            except _MISFIT as error:
                raise HeaderError(f"{table.table.__name__}.{name}: {error}") from error
            _put_u32(out, position + place, target - (position + place))
        return position

    def _write_tables(self, table: WrittenTable, values: Sequence[object]) -> int:
        return self._write_targets(values, self._write_table, table)

    def _write_text(self, _: Text, text: str) -> int:
        return self._write_counted(text.encode("utf-8"), _TERMINATION)

    def _write_texts(self, _: Vector, texts: Sequence[str]) -> int:
        return self._write_targets(texts, self._write_text, _TEXT)

    def _write_octets(self, _: Octets, octets: bytes) -> int:
        return self._write_counted(bytes(memoryview(octets)), _PADDING)

    def _write_counted(self, octets: bytes, endings: Sequence[bytes]) -> int:
        position = len(self._out)
        self._out += _U32.pack(len(octets))
        self._out += octets
        self._out += endings[len(octets) % 4]
        return position

    def _write_numbers(self, kind: Vector, numbers: Sequence[int]) -> int:
        assert isinstance(kind.element, Scalar)
        code = kind.element.code
        octets = struct.pack(f"<{len(numbers)}{code}", *numbers)
        return self._write_elements(len(numbers), octets, code)

    def _write_structs(self, kind: Structs, items: Sequence[Sequence[int]]) -> int:
        layout = struct.Struct(f"<{kind.codes}")
        octets = b"".join([layout.pack(*item) for item in items])
        return self._write_elements(len(items), octets, kind.codes[0])

    def _write_elements(self, count: int, octets: bytes, code: str) -> int:
        if code_bytes(code) == _WIDE_BYTES:
            self._align_behind_word()
        position = len(self._out)
        self._out += _U32.pack(count)
        self._out += octets
        self._out += _PADDING[len(octets) % 4]
        return position

    def _write_targets(
        self, items: Sequence[Any], write: Callable[[Any, Any], int], kind: Any
    ) -> int:
        """Write a vector of offsets, and behind it their targets."""
        out = self._out
        position = place = len(out)
        out += _U32.pack(len(items))
        out += bytes(REFERENCE_BYTES * len(items))
        for item in items:
            place += REFERENCE_BYTES
            _put_u32(out, place, write(kind, item) - place)
        return position

    def _align_behind_word(self) -> None:
        """Move the end so that what comes a word later is at a multiple of 8."""
        if len(self._out) % _WIDE_BYTES == 0:
            self._out += _WORD


_TEXT: Final = Text()
_METHODS: Final[Mapping[type, Callable[[Writer, Any, Any], int]]] = {
    Table: Writer._write_table,
    Text: Writer._write_text,
    Octets: Writer._write_octets,
    Structs: Writer._write_structs,
}
_ELEMENT_METHODS: Final[Mapping[type, Callable[[Writer, Any, Any], int]]] = {
    Table: Writer._write_tables,
    Text: Writer._write_texts,
    Scalar: Writer._write_numbers,
}


def _write_method(kind: Kind) -> Callable[[Writer, Any, Any], int]:
    if isinstance(kind, Vector):
        return _ELEMENT_METHODS[type(kind.element)]
    return _METHODS[type(kind)]
