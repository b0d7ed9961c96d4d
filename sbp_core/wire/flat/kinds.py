"""The parts of a layout: fields, and the kinds of content that they have."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from msgspec import Struct

REFERENCE_BYTES = 4
"""A table holds a string, a vector or another table as an offset of this size."""


@dataclass(frozen=True, slots=True)
class Scalar:
    """A number or bool held in the table itself: `code` is its struct format character."""

    code: str


@dataclass(frozen=True, slots=True)
class Text:
    """A UTF-8 string."""


@dataclass(frozen=True, slots=True)
class Bytes:
    """A vector of unsigned bytes, `bytes` in Python."""


@dataclass(frozen=True, slots=True)
class Table:
    """A nested table, by the name of its struct."""

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


Kind = Scalar | Text | Bytes | Table | Vector | Structs

BOOL, I8, I16, I32, I64 = map(Scalar, "?bhiq")
TEXT, BYTES = Text(), Bytes()


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a table: Python name, id, kind, and the default that is never written."""

    name: str
    id: int
    kind: Kind
    default: int | float | bool | None = None

    @property
    def inline_bytes(self) -> int:
        """The bytes of the field in the table itself, which is also their alignment."""
        return code_bytes(self.kind.code) if isinstance(self.kind, Scalar) else REFERENCE_BYTES


def fields_of(table: type[Struct], kinds: Sequence[Kind]) -> tuple[Field, ...]:
    """Return the layout of a table whose struct has its fields by their ids, from 0 on."""
    blank = table()
    return tuple(
        Field(name, id_, kind, getattr(blank, name) if isinstance(kind, Scalar) else None)
        for id_, (name, kind) in enumerate(zip(table.__struct_fields__, kinds, strict=True))
    )


def code_bytes(code: str) -> int:
    """Return the bytes of a number with this struct format character."""
    return struct.calcsize(f"<{code}")


def picker(indexes: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """Return a function that gives the values at these indexes of a sequence, as a sequence."""
    if len(indexes) > 1:
        return itemgetter(*indexes)
    return itemgetter(slice(indexes[0], indexes[0] + 1) if indexes else slice(0))
