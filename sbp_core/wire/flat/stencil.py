"""Values that are written like one before: in the same places, with other contents.

What a buffer looks like depends on the shape of its value alone: which fields its tables have, how
many tables there are, how long the texts. Where the contents of a shape stand is found out once;
those of another value of the same shape are put there by a single struct.

Values that are large or seldom have none: those with vectors of anything but tables, or tables in
tables in tables.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from operator import attrgetter, ne
from typing import Any, Final

from msgspec import Struct

from sbp_core import limits
from sbp_core.wire.flat.kinds import Field, Octets, Scalar, Table, Text, Vector
from sbp_core.wire.flat.template import Leaf, picker
from sbp_core.wire.flat.writer import MISFIT, absent_content, picked_attributes

FindLeaves = Callable[[str, bytes], Mapping[str, Leaf]]
"""Finds the contents of a buffer whose root is a table of that name, by their paths."""


@dataclass(frozen=True, slots=True)
class Stencil:
    """How to write values of one shape: `layout` is what they have in common.

    `pick` brings contents into the order in which they stand in the buffer.
    """

    layout: int
    length: int
    pack: Callable[..., bytes]
    pick: Callable[[Sequence[Any]], tuple[Any, ...]]

    def fill(self, contents: Sequence[Any]) -> bytes:
        """Return the buffer with these contents. Raises struct.error for one that does not fit."""
        packed = int.from_bytes(self.pack(*self.pick(contents)), "little")
        return (packed | self.layout).to_bytes(self.length, "little")


def new_stencil(encoded: bytes, leaves: Sequence[Leaf]) -> Stencil:
    """Return the stencil of a buffer that has its contents at `leaves`."""
    order = sorted(range(len(leaves)), key=lambda at: leaves[at].position)
    codes, end = "<", 0
    layout = bytearray(encoded)
    for leaf in (leaves[at] for at in order):
        size = struct.calcsize(f"<{leaf.code}")
        codes += f"{leaf.position - end}x{leaf.code}"
        end = leaf.position + size
        layout[leaf.position : end] = bytes(size)
    codes += f"{len(encoded) - end}x"
    return Stencil(
        int.from_bytes(layout, "little"), len(encoded), struct.Struct(codes).pack, picker(order)
    )


class Stencils:
    """The stencils of the shapes that are written again and again."""

    def __init__(
        self, layouts: Mapping[type[Struct], tuple[Field, ...]], find_leaves: FindLeaves
    ) -> None:
        self._find_leaves = find_leaves
        self._outlines = {table: _Outline(table, layout) for table, layout in layouts.items()}
        by_name = {table.__name__: outline for table, outline in self._outlines.items()}
        for outline in by_name.values():
            outline.link(by_name)
        self._known: dict[Hashable, Stencil] = {}
        self._seen_once: dict[Hashable, None] = {}

    def __len__(self) -> int:
        return len(self._known)

    def write(self, value: Any, write_anew: Callable[[Any], bytes]) -> bytes:
        """Return the buffer of a value, as `write_anew` does; it also says what does not fit."""
        parts: list[Hashable] = []
        contents: list[Any] = []
        try:
            self._outlines[type(value)].look(value, parts, contents)
            shape = tuple(parts)
            stencil = self._known.get(shape)
            if stencil is not None:
                return stencil.fill(contents)
        except (_NoShapeError, KeyError, *MISFIT):
            return write_anew(value)
        encoded = write_anew(value)
        if len(encoded) <= limits.TEMPLATE_BYTES_MAX:
            self._consider(shape, value, encoded)
        return encoded

    def _consider(self, shape: Hashable, value: Any, encoded: bytes) -> None:
        """Make the stencil of a shape when it is seen for the second time."""
        if shape not in self._seen_once:
            _put(self._seen_once, shape, None)
            return
        leaves = self._find_leaves(type(value).__name__, encoded)
        paths = self._outlines[type(value)].paths(value)
        _put(self._known, shape, new_stencil(encoded, [leaves[path] for path in paths]))


def _put(known: dict[Hashable, Any], shape: Hashable, what: object) -> None:
    if len(known) >= limits.TEMPLATES_MAX:
        known.clear()
    known[shape] = what


class _NoShapeError(Exception):
    """The value is not one of those that have a shape."""


@dataclass(frozen=True, slots=True, eq=False)
class _View:
    """What is to be seen of a table and of the tables in it, when these are there, or are not.

    `get` takes numbers first, then what the `encoders` are for, then all that values with a shape
    do not have, for each of which there is an `absent`; vectors of tables are last.
    """

    paths: tuple[str, ...]
    get: Callable[[object], tuple[Any, ...]]
    absent: tuple[Any, ...]
    number_count: int
    encoders: tuple[Callable[[Any], bytes], ...]

    def texts(self, found: Sequence[Any], is_present: Sequence[bool]) -> list[bytes]:
        """Return those that are there. Raises _NoShapeError if more is there."""
        texts_end = self.number_count + len(self.encoders)
        if True in is_present[texts_end:]:
            raise _NoShapeError
        texts = slice(self.number_count, texts_end)
        there = compress(zip(self.encoders, found[texts], strict=True), is_present[texts])
        return [encode(text) for encode, text in there]


class _Outline:
    """Looks at the values of one table.

    Of several tables in it all have to be there; one may be missing.
    """

    def __init__(self, table: type[Struct], layout: Sequence[Field]) -> None:
        self._table = table
        self.layout = layout
        self._vectors: list[tuple[str, int, _Outline]] = []
        self._find_tables: Callable[[object], Any] = attrgetter("__class__")
        self._with_tables = self._without_tables = _NO_VIEW

    def link(self, outlines: Mapping[str, _Outline]) -> None:
        """Look at the tables in it as well; `outlines` are by the names of their tables."""
        tables, fields, vectors = {}, {}, {}
        for field in self.layout:
            match field.kind:
                case Table(name):
                    tables[field.name] = outlines[name]
                case Vector(Table(name)):
                    vectors[field.name] = outlines[name]
                case _:
                    fields[field.name] = field
        if tables:
            self._find_tables = attrgetter(*tables)
        self._without_tables = _new_view(fields, vectors)
        for name, outline in tables.items():
            fields |= {f"{name}.{field.name}": field for field in outline.layout}
        self._with_tables = _new_view(fields, vectors)
        self._vectors = [
            (name, at - len(vectors), vectors[name]) for at, name in enumerate(vectors)
        ]

    def look(self, value: object, parts: list[Hashable], contents: list[Any]) -> None:
        """Add to the parts of a shape, and to the contents. Raises _NoShapeError.

        For content of another kind than its field's it may also raise what is in MISFIT.
        """
        if type(value) is not self._table:
            raise _NoShapeError
        view = self._view(value)
        found = view.get(value)
        is_present = tuple(map(ne, found, view.absent))
        parts += view, is_present
        contents += compress(found[: view.number_count], is_present)
        if True in is_present[view.number_count :]:
            texts = view.texts(found, is_present)
            parts += map(len, texts)
            contents += texts
        for _, at, outline in self._vectors:
            items = found[at]
            # Any other empty sequence than the default of the field is written, as an empty vector.
            if len(items) > limits.STENCIL_TABLES_MAX or (not items and items != ()):
                raise _NoShapeError
            parts.append(len(items))
            for item in items:
                outline.look(item, parts, contents)

    def paths(self, value: object, prefix: str = "") -> Iterator[str]:
        """Yield the paths of the contents, in their order."""
        view = self._view(value)
        found = view.get(value)
        for path in compress(view.paths, map(ne, found, view.absent)):
            yield f"{prefix}{path}"
        for name, at, outline in self._vectors:
            for number, item in enumerate(found[at]):
                yield from outline.paths(item, f"{prefix}{name}.{number}.")

    def _view(self, value: object) -> _View:
        is_there = self._find_tables(value) is not None
        return self._with_tables if is_there else self._without_tables


def _new_view(fields: Mapping[str, Field], vectors: Iterable[str]) -> _View:
    numbers = [path for path, field in fields.items() if isinstance(field.kind, Scalar)]
    texts = [path for path, field in fields.items() if isinstance(field.kind, Text | Octets)]
    paths = (*numbers, *texts, *(fields.keys() - {*numbers, *texts}))
    return _View(
        paths,
        picked_attributes([*paths, *vectors]),
        tuple(absent_content(fields[path]) for path in paths),
        len(numbers),
        tuple(_ENCODERS[type(fields[path].kind)] for path in texts),
    )


def _octets(content: Any) -> bytes:
    return bytes(memoryview(content))


_ENCODERS: Final[Mapping[type, Callable[[Any], bytes]]] = {Text: str.encode, Octets: _octets}
_NO_VIEW: Final = _new_view({}, ())
