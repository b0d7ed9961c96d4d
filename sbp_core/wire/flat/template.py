"""Buffers that are laid out like one that was verified already: only their contents differ.

A peer sends the same few headers again and again. Which octets of such a buffer are its layout
(offsets, vtables, counts, padding) and which are contents is found out once. Another one of the
same length whose layout octets are equal is valid as well, and a single struct takes its contents.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final

from sbp_core.wire.flat.kinds import (
    REFERENCE_BYTES,
    Kind,
    Octets,
    Scalar,
    Structs,
    Table,
    Text,
    Vector,
    code_bytes,
)
from sbp_core.wire.flat.reader import ReadTable

_U32: Final = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Template:
    """How to read buffers that are laid out in one way.

    Where `layout_mask` has ones, they are as in `layout`. All values stand in one list: first the
    contents as `unpack` gives them, then the constants, then what each of the `steps` makes of
    those before it. The last one is the root.
    """

    layout_mask: int
    layout: int
    unpack: Callable[[bytes], tuple[Any, ...]]
    texts: tuple[int, ...]
    constants: tuple[Any, ...]
    steps: tuple[tuple[Callable[..., Any], Callable[[Sequence[Any]], tuple[Any, ...]]], ...]

    def maybe_read(self, data: bytes) -> Any:
        """Return the root table of `data`, None if that is laid out in another way.

        `data` is as long as the buffer that the template is made of. Raises UnicodeDecodeError.
        """
        if int.from_bytes(data, "little") & self.layout_mask != self.layout:
            return None
        values = [*self.unpack(data), *self.constants]
        for at in self.texts:
            values[at] = str(values[at], "utf-8")
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


class _NoTemplateError(Exception):
    """The buffer cannot be a template."""


@dataclass(frozen=True, slots=True)
class _Leaf:
    """Contents at a position, as the struct code says."""

    position: int
    code: str


@dataclass(frozen=True, slots=True)
class _Constant:
    number: int


@dataclass(frozen=True, slots=True)
class _Step:
    number: int


_Value = _Leaf | _Constant | _Step


class _Tracer:
    """Walks through a verified buffer, and notes what it meets."""

    def __init__(self, tables: Mapping[str, ReadTable], data: bytes) -> None:
        self._tables = tables
        self._data = data
        self._leaves: list[_Leaf] = []
        self._texts: list[_Leaf] = []
        self._constants: list[Any] = []
        self._steps: list[tuple[Callable[..., Any], Sequence[_Value]]] = []
        self._layout: set[int] = set()

    def trace_root(self, name: str) -> None:
        """Note everything."""
        self._table(self._tables[name], self._target(0))

    def template(self) -> Template:
        """Return what the notes make. Raises _NoTemplateError."""
        leaves = sorted(self._leaves, key=lambda leaf: leaf.position)
        codes, end = "<", 0
        contents: set[int] = set()
        for leaf in leaves:
            size = struct.calcsize(f"<{leaf.code}")
            if leaf.position < end or not self._layout.isdisjoint(
                range(leaf.position, leaf.position + size)
            ):
                raise _NoTemplateError
            codes += f"{leaf.position - end}x{leaf.code}"
            end = leaf.position + size
            contents.update(range(leaf.position, end))
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
            layout_mask,
            int.from_bytes(self._data, "little") & layout_mask,
            struct.Struct(f"{codes}{len(self._data) - end}x").unpack,
            tuple(places[leaf] for leaf in self._texts),
            tuple(self._constants),
            tuple((make, _picker([*map(index, values)])) for make, values in self._steps),
        )

    def _table(self, table: ReadTable, position: int) -> _Value:
        plan, vtable = table.plan_at(self._data, position)
        self._layout.update(range(position, position + REFERENCE_BYTES), vtable)
        values: dict[str, _Value] = {}
        for place, field in plan.fields:
            at = position + place
            if isinstance(field.kind, Scalar):
                values[field.name] = self._leaf(at, field.kind.code)
            else:
                values[field.name] = self._reference(field.kind, self._target(at))
        return self._step(
            table.table,
            [
                values[name] if name in values else self._constant(default)
                for name, default in zip(table.names, table.defaults, strict=True)
            ],
        )

    def _reference(self, kind: Kind, position: int) -> _Value:
        match kind:
            case Table(name):
                return self._table(self._tables[name], position)
            case Text():
                return self._text(position)
            case Octets():
                return self._leaf(position + REFERENCE_BYTES, f"{self._count(position)}s")
            case Vector(Scalar(code)):
                count, size = self._count(position), code_bytes(code)
                start = position + REFERENCE_BYTES
                leaves = [self._leaf(start + at * size, code) for at in range(count)]
                return self._tuple(leaves)
            case Vector(Text()):
                return self._tuple([self._text(target) for target in self._targets(position)])
            case Vector(Table(name)):
                table = self._tables[name]
                targets = self._targets(position)
                return self._tuple([self._table(table, target) for target in targets])
            case Structs(codes):
                layout = struct.Struct(f"<{codes}")
                octets_count = self._count(position) * layout.size
                octets = self._leaf(position + REFERENCE_BYTES, f"{octets_count}s")
                return self._step(lambda found: tuple(layout.iter_unpack(found)), [octets])
        raise AssertionError(kind)

    def _text(self, position: int) -> _Leaf:
        leaf = self._leaf(position + REFERENCE_BYTES, f"{self._count(position)}s")
        self._texts.append(leaf)
        return leaf

    def _leaf(self, position: int, code: str) -> _Leaf:
        leaf = _Leaf(position, code)
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


def _picker(indexes: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    if len(indexes) > 1:
        return itemgetter(*indexes)
    return lambda values: tuple(values[at] for at in indexes)
