"""Bytes -> values, verified as they are read.

Every offset, vtable, vector and string must lie inside the buffer; nesting, the number of tables,
the ways in which they are laid out and the decoded size are bounded, and all is copied into
immutable values. FlatBuffers' own Python accessors check nothing, so a hostile header read through
them yields garbage silently.

A vtable is checked once and becomes a plan: one struct format for everything that the table itself
holds, and the order in which the arguments of its Python struct come.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
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

_U16: Final = struct.Struct("<H")
_I32: Final = struct.Struct("<i")
_U32: Final = struct.Struct("<I")

_ALIGNMENT_BYTES: Final = 8
_REFERENCE_CODE: Final = "I"
_VTABLE_BYTES_MIN: Final = 4  # its own size, the size of the table
_TABLE_BYTES_MIN: Final = 4  # the distance to its vtable


class _ReadReference(NamedTuple):
    """A field that refers to something: its place in the table, and the method that reads it.

    `column` is where the offset is among what the struct of the plan gives.
    """

    column: int
    place: int
    kind: Any
    read: Callable[[Reader, Any, int, int], Any]


@dataclass(frozen=True, slots=True)
class _ReadingPlan:
    """How to read the tables of one vtable.

    `fields` are the fields that the table has, each with its place in the table, front to back.
    `unpack` gives what the table holds; `arrange` puts that, with the defaults of all fields after
    it, in the order of the struct.
    """

    table_bytes: int
    fields: tuple[tuple[int, Field], ...]
    unpack: Callable[[bytes, int], tuple[Any, ...]]
    references: tuple[_ReadReference, ...]
    arrange: Callable[[Sequence[Any]], Sequence[Any]]

    @property
    def used_bytes(self) -> int:
        """The bytes of a table at most: its known fields, each aligned, and its vtable."""
        inline_bytes = sum(_ALIGNMENT_BYTES + field.inline_bytes for _, field in self.fields)
        vtable_bytes = _VTABLE_BYTES_MIN + _U16.size * len(self.fields)
        return _TABLE_BYTES_MIN + inline_bytes + vtable_bytes + REFERENCE_BYTES


class ReadTable:
    """The fields of a table, the defaults of its struct, and the plans of its vtables."""

    def __init__(self, table: type[Struct], layout: Sequence[Field]) -> None:
        self.table = table
        self.name = table.__name__
        self._layout = layout
        self.names = table.__struct_fields__
        blank = table()
        self.defaults = tuple([getattr(blank, name) for name in self.names])
        slot_count = 1 + max((field.id for field in layout), default=-1)
        self.vtable_bytes_max = _VTABLE_BYTES_MIN + _U16.size * slot_count
        self.plan = lru_cache(maxsize=limits.TABLE_PLANS_MAX)(self._make_plan)

    def _make_plan(self, vtable: bytes) -> _ReadingPlan:
        """Return the plan of a vtable that is cut off behind the known fields.

        Raises HeaderError when a field is outside its table or overlaps another one.
        """
        _, table_bytes, *places = struct.unpack(f"<{len(vtable) // _U16.size}H", vtable)
        if table_bytes < _TABLE_BYTES_MIN:
            raise HeaderError(f"{self.name}: table of impossible size {table_bytes}")
        codes, end = "<", 0
        columns: dict[str, int] = {}
        references = []
        present = self._present(places)
        for place, field in present:
            if place < _TABLE_BYTES_MIN or place + field.inline_bytes > table_bytes:
                raise HeaderError(f"{self.name}.{field.name}: outside its table")
            if place < end:
                raise HeaderError(f"{self.name}.{field.name}: overlaps another field")
            column = columns[field.name] = len(columns)
            if isinstance(field.kind, Scalar):
                code = field.kind.code
            else:
                code = _REFERENCE_CODE
                references.append(
                    _ReadReference(column, place, field.kind, _read_method(field.kind))
                )
            codes += f"{place - end}x{code}"
            end = place + field.inline_bytes
        order = [columns.get(name, len(columns) + index) for index, name in enumerate(self.names)]
        return _ReadingPlan(
            table_bytes,
            tuple(present),
            struct.Struct(codes).unpack_from,
            tuple(references),
            picker(order),
        )

    def plan_at(self, data: bytes, position: int) -> tuple[_ReadingPlan, range]:
        """Return the plan of a table that was verified, and the bytes that its vtable takes."""
        start = position - _I32.unpack_from(data, position)[0]
        (vtable_bytes,) = _U16.unpack_from(data, start)
        known_bytes = min(vtable_bytes, self.vtable_bytes_max)
        return self.plan(data[start : start + known_bytes]), range(start, start + vtable_bytes)

    def _present(self, places: Sequence[int]) -> list[tuple[int, Field]]:
        """Return the fields that have a place in the table, from front to back."""
        present = [
            (places[field.id], field)
            for field in self._layout
            if field.id < len(places) and places[field.id]
        ]
        return sorted(present, key=itemgetter(0))


class Reader:
    """One verified reading of one buffer."""

    def __init__(
        self,
        tables: Mapping[str, ReadTable],
        data: bytes,
        depth_max: int,
        tables_max: int,
        layouts_max: int,
    ) -> None:
        self._tables = tables
        self._data = data
        self._depth_max = depth_max
        self._layouts_max = layouts_max
        self._size = len(data)
        self._plans: dict[tuple[str, bytes], _ReadingPlan] = {}
        # A table is referred to at least once, so an honest buffer has no more than these fit.
        self._tables_max = min(tables_max, len(data) // REFERENCE_BYTES)
        self._tables_left = self._tables_max
        self._bytes_left = limits.HEADER_DECODED_BYTES_MAX

    def read_root(self, name: str) -> Any:
        """Return the buffer's root, a table of this name. Raises HeaderError."""
        try:
            (offset,) = _U32.unpack_from(self._data)
            value = self._read_table(self._tables[name], self._follow(0, offset), 0)
        except struct.error as error:
            raise HeaderError(f"{name}: not a valid table: it is cut off") from error
        except UnicodeDecodeError as error:
            raise HeaderError(f"{name}: not a valid table: a text is not UTF-8") from error
        return value

    @property
    def decoded_bytes(self) -> int:
        """The bytes of memory that the values read so far count for."""
        return limits.HEADER_TABLE_DECODED_BYTES * self._table_count + self._vector_bytes

    @property
    def _table_count(self) -> int:
        return self._tables_max - self._tables_left

    @property
    def _vector_bytes(self) -> int:
        """Bytes of strings and vectors, HEADER_VECTOR_BYTES more for each."""
        return limits.HEADER_DECODED_BYTES_MAX - self._bytes_left

    def check_padding(self, name: str) -> None:
        """Raise HeaderError if most of the buffer is unused, once it is read.

        Each table counts as the largest layout that was met, with a vtable of its own: encoders of
        other languages do not share these, and align everything. Half of a buffer, and then
        HEADER_UNUSED_BYTES_MAX, may be what a newer peer knows and this reader does not.
        """
        if self._size <= limits.HEADER_UNUSED_BYTES_MAX:
            return
        table_bytes = max(plan.used_bytes for plan in self._plans.values())
        used_bytes = self._table_count * table_bytes + self._vector_bytes
        unused_bytes_max = used_bytes + limits.HEADER_UNUSED_BYTES_MAX
        if self._size - used_bytes > unused_bytes_max:
            raise HeaderError(
                f"{name}: a header of {self._size} bytes of which {used_bytes} are in use at most;"
                f" at most {unused_bytes_max} may be unused: send it without the padding"
            )

    def _follow(self, position: int, offset: int) -> int:
        """Follow the forward offset stored at `position`."""
        target = position + offset
        if offset == 0 or target + 4 > self._size:
            raise HeaderError(f"offset at byte {position} points outside the header")
        return target

    def _read_table(self, table: ReadTable, position: int, depth: int) -> Any:
        self._tables_left -= 1
        if depth > self._depth_max or self._tables_left < 0:
            raise HeaderError(
                f"{table.name}: tables nested deeper than {self._depth_max} or more than"
                f" {self._tables_max} of them in {self._size} bytes"
            )
        plan = self._read_vtable(table, position - _I32.unpack_from(self._data, position)[0])
        if position + plan.table_bytes > self._size:
            raise HeaderError(f"{table.name}: table of impossible size {plan.table_bytes}")
        row = [*plan.unpack(self._data, position), *table.defaults]
        for column, place, kind, read in plan.references:
            row[column] = read(self, kind, self._follow(position + place, row[column]), depth)
        return table.table(*plan.arrange(row))

    def _read_vtable(self, table: ReadTable, position: int) -> _ReadingPlan:
        if position < 0 or position + _VTABLE_BYTES_MIN > self._size:
            raise HeaderError(f"{table.name}: vtable outside the header")
        (vtable_bytes,) = _U16.unpack_from(self._data, position)
        if (
            vtable_bytes < _VTABLE_BYTES_MIN
            or vtable_bytes % 2
            or position + vtable_bytes > self._size
        ):
            raise HeaderError(f"{table.name}: vtable of impossible size {vtable_bytes}")
        known_bytes = min(vtable_bytes, table.vtable_bytes_max)
        key = table.name, self._data[position : position + known_bytes]
        plan = self._plans.get(key)
        if plan is None:
            if len(self._plans) == self._layouts_max:
                raise HeaderError(
                    f"{table.name}: the tables of the header are laid out in more than"
                    f" {self._layouts_max} ways"
                )
            plan = self._plans[key] = table.plan(key[1])
        return plan

    def _read_child(self, kind: Table, position: int, depth: int) -> Any:
        return self._read_table(self._tables[kind.name], position, depth + 1)

    def _read_tables(self, kind: Vector, position: int, depth: int) -> tuple[Any, ...]:
        assert isinstance(kind.element, Table)
        table = self._tables[kind.element.name]
        targets = self._read_targets(position)
        return tuple([self._read_table(table, target, depth + 1) for target in targets])

    def _read_text(self, _: Text, position: int, __: int) -> str:
        start, count = self._read_count(position, 1)
        if count > limits.STRING_BYTES_MAX:
            raise HeaderError(f"string of {count} bytes, more than {limits.STRING_BYTES_MAX}")
        return self._data[start : start + count].decode("utf-8")

    def _read_texts(self, _: Vector, position: int, depth: int) -> tuple[str, ...]:
        targets = self._read_targets(position)
        return tuple([self._read_text(_TEXT, target, depth) for target in targets])

    def _read_bytes(self, _: Bytes, position: int, __: int) -> bytes:
        start, count = self._read_count(position, 1)
        return self._data[start : start + count]

    def _read_numbers(self, kind: Vector, position: int, _: int) -> tuple[Any, ...]:
        assert isinstance(kind.element, Scalar)
        code = kind.element.code
        start, count = self._read_count(position, code_bytes(code))
        return struct.unpack_from(f"<{count}{code}", self._data, start)

    def _read_structs(self, kind: Structs, position: int, _: int) -> tuple[tuple[Any, ...], ...]:
        layout = struct.Struct(f"<{kind.codes}")
        start, count = self._read_count(position, layout.size)
        return tuple(layout.iter_unpack(self._data[start : start + count * layout.size]))

    def _read_targets(self, position: int) -> Iterator[int]:
        """Follow the offsets of a vector, one after the other."""
        start, count = self._read_count(position, REFERENCE_BYTES)
        offsets = struct.unpack_from(f"<{count}I", self._data, start)
        places = range(start, start + REFERENCE_BYTES * count, REFERENCE_BYTES)
        return map(self._follow, places, offsets)

    def _read_count(self, position: int, element_bytes: int) -> tuple[int, int]:
        """Return (where the elements of a vector begin, how many there are)."""
        (count,) = _U32.unpack_from(self._data, position)
        start = position + 4
        if start + count * element_bytes > self._size:
            raise HeaderError(f"vector of {count} elements at byte {position} passes the end")
        self._bytes_left -= limits.HEADER_VECTOR_BYTES + count * element_bytes
        if self._bytes_left < 0:
            raise HeaderError(
                "the header refers to too many strings and vectors, or too often to the same:"
                f" it would decode to more than {limits.HEADER_DECODED_BYTES_MAX} bytes"
            )
        return start, int(count)


_TEXT: Final = Text()
_METHODS: Final[Mapping[type, Callable[[Reader, Any, int, int], Any]]] = {
    Table: Reader._read_child,
    Text: Reader._read_text,
    Bytes: Reader._read_bytes,
    Structs: Reader._read_structs,
}
_ELEMENT_METHODS: Final[Mapping[type, Callable[[Reader, Any, int, int], Any]]] = {
    Table: Reader._read_tables,
    Text: Reader._read_texts,
    Scalar: Reader._read_numbers,
}


def _read_method(kind: Kind) -> Callable[[Reader, Any, int, int], Any]:
    if isinstance(kind, Vector):
        return _ELEMENT_METHODS[type(kind.element)]
    return _METHODS[type(kind)]
