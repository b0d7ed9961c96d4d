"""Buffers with the layout of a buffer that was verified before: only their contents differ.

A peer sends headers of the same few shapes. The first one of a shape is traced: which of its bytes
are layout (offsets, vtables, counts, padding), and which are contents. Any other buffer of the same
length whose layout bytes are equal is valid too, and one struct format reads its contents. A
template is faster than code that follows the vtables of a small header. An excerpt is a template in
which all contents but a few must be equal, too, so that only those few are read. Many buffers that
stand in the rows of an array are compared and read at once, column by column.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from sbp_core import limits
from sbp_core.wire.flat.kinds import (
    REFERENCE_BYTES,
    Bytes,
    Kind,
    Scalar,
    Structs,
    Table,
    Text,
    Vector,
    code_bytes,
    picker,
)
from sbp_core.wire.flat.reader import ReadTable

Bytes2D = npt.NDArray[np.uint8]
"""Buffers of one length, one in each row."""

_NOT_ASCII: Final = 0x80
"""The bit that no byte of an ASCII text has."""
_U32: Final = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Template:
    """How to read buffers that are laid out in one way.

    They have `size_bytes`. Where `layout_mask` has ones, they are as in `layout`. All values stand
    in one list: first the contents at `leaves`, as `unpack` gives them, then the constants, then
    the result of each of the `steps`, which takes earlier values. The last value is the result.
    """

    size_bytes: int
    layout_mask: int
    layout: int
    leaves: tuple[_Leaf, ...]
    unpack: Callable[[bytes], tuple[Any, ...]]
    texts: tuple[int, ...]
    constants: tuple[Any, ...]
    steps: tuple[tuple[Callable[..., Any], Callable[[Sequence[Any]], Sequence[Any]]], ...]

    def maybe_read(self, data: bytes) -> Any:
        """Return what is read of `data`, None if that is laid out in another way.

        `data` is as long as the buffer that the template is made of. Raises UnicodeDecodeError.
        """
        if int.from_bytes(data, "little") & self.layout_mask != self.layout:
            return None
        values = list(self.unpack(data))
        for at in self.texts:
            values[at] = str(values[at], "utf-8")
        return self._assemble(values)

    def places(self) -> Any:
        """Return what an excerpt reads, with the slice of the buffer in place of its contents."""
        return self._assemble([leaf.place for leaf in self.leaves])

    def fitting_count(self, rows: Bytes2D) -> int:
        """Return how many of the first buffers are laid out in this way, each in a row.

        A buffer with a text that is not ASCII does not fit: only `maybe_read` decodes it.
        """
        mask, layout = (
            np.frombuffer(bytearray(number.to_bytes(self.size_bytes, "little")), np.uint8)
            for number in (self.layout_mask, self.layout)
        )
        for at in self.texts:
            mask[self.leaves[at].place] = _NOT_ASCII
        misfits = np.flatnonzero(((rows & mask) != layout).any(axis=1))
        return int(misfits[0]) if misfits.size else len(rows)

    def columns(self, rows: Bytes2D) -> Any:
        """Return what an excerpt reads of buffers that all fit, with a column for each content.

        A column of numbers has one dimension; of texts and other bytes, two.
        """
        return self._assemble([leaf.column(rows) for leaf in self.leaves])

    def _assemble(self, values: list[Any]) -> Any:
        values += self.constants
        for make, pick in self.steps:
            values.append(make(*pick(values)))
        return values[-1]


def maybe_template(tables: Mapping[str, ReadTable], name: str, data: bytes) -> Template | None:
    """Return the template of a buffer that was verified and whose root is the table `name`.

    None for one of which a part is used twice.
    """
    tracer = _Tracer(tables, data)
    try:
        tracer.trace_root(name)
        return tracer.template()
    except _NoTemplateError:
        return None


def maybe_excerpt(
    tables: Mapping[str, ReadTable], name: str, data: bytes, known: object, paths: Sequence[str]
) -> Template | None:
    """Return the template of buffers that equal a verified one but for the contents at `paths`.

    It reads to a tuple: what is `known` of all of them, and those contents, structs as bytes. A
    path is made of the names of fields and indexes of vectors. None for a buffer that lacks one of
    them, or of which a part is used twice.
    """
    tracer = _Tracer(tables, data)
    try:
        tracer.trace_root(name)
        return tracer.excerpt(known, paths)
    except _NoTemplateError:
        return None


class Templates:
    """The templates that were made last, by what buffers are of and how long they are."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._templates: dict[tuple[type, int], Template] = {}
        self._misses: dict[tuple[type, int], int] = {}
        self._changing = Lock()

    def __len__(self) -> int:
        return len(self._templates)

    def maybe_read(self, table: type, data: bytes) -> Any:
        """Return what is read of a buffer, None where no template fits.

        Raises UnicodeDecodeError.
        """
        template = self._templates.get((table, len(data)))
        return None if template is None else template.maybe_read(data)

    def maybe_find(self, table: type, size_bytes: int) -> Template | None:
        """Return the template of buffers of this size, which may be laid out in another way."""
        return self._templates.get((table, size_bytes))

    def consider(self, table: type, data: bytes, make: Callable[[], Template | None]) -> None:
        """Make a template of a buffer that matched none, for its 1st, 2nd, 4th, 8th ... miss.

        A peer that always sends new layouts does not cause work for each of them.
        """
        key = table, len(data)
        if len(data) > limits.TEMPLATE_BYTES_MAX:
            return
        misses = self._misses[key] = self._misses.get(key, 0) + 1
        if misses & (misses - 1):
            return
        template = make()
        if template is None:
            return
        with self._changing:
            while len(self._templates) >= self._count_max:
                del self._templates[next(iter(self._templates))]
            self._templates[key] = template


class _NoTemplateError(Exception):
    """The buffer cannot be a template."""


@dataclass(frozen=True, slots=True)
class _Leaf:
    """Contents at a position, as the struct code says."""

    position: int
    code: str

    @property
    def place(self) -> slice:
        """Where the contents are in the buffer."""
        return slice(self.position, self.position + struct.calcsize(f"<{self.code}"))

    def column(self, rows: Bytes2D) -> npt.NDArray[Any]:
        """Return the contents in the buffers of all rows."""
        found = np.ascontiguousarray(rows[:, self.place])
        return found if self.code.endswith("s") else found.view(f"<{self.code}")[:, 0]


@dataclass(frozen=True, slots=True)
class _Constant:
    number: int


@dataclass(frozen=True, slots=True)
class _Step:
    number: int


_Value = _Leaf | _Constant | _Step


class _Tracer:
    """Walks through a verified buffer, and records its layout and its contents."""

    def __init__(self, tables: Mapping[str, ReadTable], data: bytes) -> None:
        self._tables = tables
        self._data = data
        self._leaves: list[_Leaf] = []
        self._texts: list[_Leaf] = []
        self._constants: list[Any] = []
        self._steps: list[tuple[Callable[..., Any], Sequence[_Value]]] = []
        self._layout: set[int] = set()
        self.found: dict[str, _Leaf] = {}

    def trace_root(self, name: str) -> None:
        """Record everything from the root table on."""
        self._table(self._tables[name], self._target(0), "")

    def excerpt(self, known: object, paths: Sequence[str]) -> Template:
        """Return the template of what is at these paths. Raises _NoTemplateError."""
        self.template()  # which sees parts that are used twice
        if not self.found.keys() >= set(paths):
            raise _NoTemplateError
        self._leaves = [self.found[path] for path in paths]
        self._texts = [leaf for leaf in self._texts if leaf in self._leaves]
        self._constants, self._steps = [], []
        self._step(_tuple_of, [self._constant(known), *self._leaves])
        return self.template()

    def template(self) -> Template:
        """Return what the notes make. Raises _NoTemplateError."""
        leaves = sorted(self._leaves, key=lambda leaf: leaf.position)
        codes, end = "<", 0
        contents: set[int] = set()
        for leaf in leaves:
            taken = range(leaf.position, leaf.place.stop)
            if leaf.position < end or not self._layout.isdisjoint(taken):
                raise _NoTemplateError
            codes += f"{leaf.position - end}x{leaf.code}"
            end = leaf.place.stop
            contents.update(taken)
        mask = bytes(0 if at in contents else 0xFF for at in range(len(self._data)))
        layout_mask = int.from_bytes(mask, "little")
        places: dict[_Value, int] = {leaf: at for at, leaf in enumerate(leaves)}
        constants_at = len(leaves)
        steps_at = constants_at + len(self._constants)

        def index(value: _Value) -> int:
            if isinstance(value, _Leaf):
                return places[value]
            if isinstance(value, _Constant):
                return constants_at + value.number
            return steps_at + value.number

        return Template(
            len(self._data),
            layout_mask,
            int.from_bytes(self._data, "little") & layout_mask,
            tuple(leaves),
            struct.Struct(f"{codes}{len(self._data) - end}x").unpack,
            tuple(places[leaf] for leaf in self._texts),
            tuple(self._constants),
            tuple((make, picker([*map(index, values)])) for make, values in self._steps),
        )

    def _table(self, table: ReadTable, position: int, path: str) -> _Value:
        plan, vtable = table.plan_at(self._data, position)
        self._layout.update(range(position, position + REFERENCE_BYTES), vtable)
        values: dict[str, _Value] = {}
        for place, field in plan.fields:
            at = position + place
            where = f"{path}{field.name}"
            if isinstance(field.kind, Scalar):
                values[field.name] = self._leaf(at, field.kind.code, where)
            else:
                values[field.name] = self._reference(field.kind, self._target(at), where)
        return self._step(
            table.table,
            [
                values[name] if name in values else self._constant(default)
                for name, default in zip(table.names, table.defaults, strict=True)
            ],
        )

    def _reference(self, kind: Kind, position: int, path: str) -> _Value:
        match kind:
            case Table(name):
                return self._table(self._tables[name], position, f"{path}.")
            case Text():
                return self._text(position, path)
            case Bytes():
                return self._bytes(position, path)
            case Vector(Scalar(code)):
                count, size = self._count(position), code_bytes(code)
                start = position + REFERENCE_BYTES
                return self._tuple(
                    [self._leaf(start + at * size, code, f"{path}.{at}") for at in range(count)]
                )
            case Vector(Text()):
                targets = enumerate(self._targets(position))
                return self._tuple([self._text(target, f"{path}.{at}") for at, target in targets])
            case Vector(Table(name)):
                table = self._tables[name]
                targets = enumerate(self._targets(position))
                return self._tuple(
                    [self._table(table, target, f"{path}.{at}.") for at, target in targets]
                )
            case Structs(codes):
                layout = struct.Struct(f"<{codes}")
                data = self._bytes(position, path, layout.size)
                return self._step(lambda found: tuple(layout.iter_unpack(found)), [data])
        raise AssertionError(kind)

    def _text(self, position: int, path: str) -> _Leaf:
        leaf = self._bytes(position, path)
        self._texts.append(leaf)
        return leaf

    def _bytes(self, position: int, path: str, element_bytes: int = 1) -> _Leaf:
        byte_count = self._count(position) * element_bytes
        return self._leaf(position + REFERENCE_BYTES, f"{byte_count}s", path)

    def _leaf(self, position: int, code: str, path: str) -> _Leaf:
        leaf = self.found[path] = _Leaf(position, code)
        self._leaves.append(leaf)
        return leaf

    def _constant(self, content: Any) -> _Constant:
        self._constants.append(content)
        return _Constant(len(self._constants) - 1)

    def _step(self, make: Callable[..., Any], values: Sequence[_Value]) -> _Step:
        self._steps.append((make, values))
        return _Step(len(self._steps) - 1)

    def _tuple(self, values: Sequence[_Value]) -> _Value:
        return self._step(_tuple_of, values) if values else self._constant(())

    def _count(self, position: int) -> int:
        self._layout.update(range(position, position + REFERENCE_BYTES))
        return int(_U32.unpack_from(self._data, position)[0])

    def _target(self, position: int) -> int:
        return position + self._count(position)

    def _targets(self, position: int) -> list[int]:
        start = position + REFERENCE_BYTES
        return [self._target(start + REFERENCE_BYTES * at) for at in range(self._count(position))]


def _tuple_of(*values: Any) -> tuple[Any, ...]:
    return values
