"""FlatBuffers tables <-> frozen structs, driven by the layouts that the schema generates.

`kinds` are what layouts are made of. `writer` writes; `reader` verifies while it reads; `template`
recognises what was verified before. `Schema` below puts them together; start there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar

from msgspec import Struct

from sbp_core import limits
from sbp_core.errors import HeaderError
from sbp_core.wire.flat.kinds import (
    Bytes,
    Field,
    Kind,
    Scalar,
    Structs,
    Table,
    Text,
    Vector,
    fields_of,
)
from sbp_core.wire.flat.reader import Reader, ReadTable
from sbp_core.wire.flat.template import Bytes2D, Template, Templates, maybe_excerpt, maybe_template
from sbp_core.wire.flat.writer import Writer, WriteValue, WrittenTable

__all__ = [
    "Bytes",
    "Bytes2D",
    "Field",
    "Kind",
    "Scalar",
    "Schema",
    "Structs",
    "Table",
    "Template",
    "Text",
    "Vector",
    "fields_of",
    "repr_without",
]

T = TypeVar("T")


class Schema:
    """The tables of one schema file: encodes and decodes their structs."""

    def __init__(
        self,
        layouts: Mapping[type[Struct], tuple[Field, ...]],
        writers: Mapping[type[Struct], WriteValue] = MappingProxyType({}),
        *,
        bytes_max: int = limits.HEADER_BYTES_MAX,
        depth_max: int = limits.HEADER_DEPTH_MAX,
        tables_max: int = limits.HEADER_TABLES_MAX,
        layouts_max: int = limits.HEADER_LAYOUTS_MAX,
        templates_max: int = limits.TEMPLATES_MAX,
        is_whole: bool = True,
    ) -> None:
        """Prepare the tables of `layouts`; `writers` are the generated ones of hot tables.

        `is_whole`: honest peers write hardly anything but these fields, so a buffer that is mostly
        unused is refused. False where the layouts leave out fields that others write.
        """
        self._written: dict[str, WrittenTable] = {}
        for table, layout in layouts.items():
            self._written[table.__name__] = WrittenTable(
                table, layout, self._written, writers.get(table)
            )
        self._read = {table.__name__: ReadTable(table, layouts[table]) for table in layouts}
        self._bytes_max = bytes_max
        self._depth_max = depth_max
        self._tables_max = tables_max
        self._layouts_max = layouts_max
        self._is_whole = is_whole
        self._templates = Templates(templates_max)
        self._excerpts = Templates(templates_max)

    def encode(self, value: object) -> bytes:
        """Return the FlatBuffers encoding of a generated struct, as a root table.

        Raises HeaderError for content that its field cannot hold, and when the result would be
        larger than a header may be.
        """
        encoded = Writer(self._written).write_root(value)
        if len(encoded) > self._bytes_max:
            raise HeaderError(
                f"{type(value).__name__} encodes to {len(encoded)} bytes, more than the"
                f" {self._bytes_max} that a header may have; split the request"
            )
        return encoded

    def decode(self, table: type[T], data: bytes | bytearray | memoryview) -> T:
        """Verify `data` as a root table of type `table` and return it as a value.

        Raises HeaderError when any part of it lies outside the data or breaks a limit.
        """
        return self.decode_measured(table, data)[0]

    def decode_measured(
        self, table: type[T], data: bytes | bytearray | memoryview
    ) -> tuple[T, int]:
        """Return what `decode` does, and what that counts for in memory, in bytes."""
        encoded = bytes(data)
        name = table.__name__
        small_bytes = limits.HEADER_IN_FLIGHT_FACTOR * len(encoded)
        with contextlib.suppress(UnicodeDecodeError):  # the reader says what is wrong
            known: T | None = self._templates.maybe_read(table, encoded)
            if known is not None:
                return known, small_bytes
        reader = Reader(self._read, encoded, self._depth_max, self._tables_max, self._layouts_max)
        value: T = reader.read_root(name)
        if self._is_whole:
            reader.check_padding(name)
        self._templates.consider(table, encoded, partial(maybe_template, self._read, name, encoded))
        is_small = len(encoded) <= limits.TEMPLATE_BYTES_MAX
        return value, small_bytes if is_small else reader.decoded_bytes

    def maybe_recognise(self, table: type, data: bytes) -> tuple[Any, ...] | None:
        """Return `known`, and the contents at `paths`, of a buffer like a remembered one.

        None if it differs from each remembered buffer in more than that.
        """
        try:
            found: tuple[Any, ...] | None = self._excerpts.maybe_read(table, data)
        except UnicodeDecodeError:
            return None
        return found

    def maybe_excerpt(self, table: type, size_bytes: int) -> Template | None:
        """Return the template by which many buffers of this size may be recognised at once."""
        return self._excerpts.maybe_find(table, size_bytes)

    def remember(self, table: type, data: bytes, known: object, paths: Sequence[str]) -> None:
        """Remember what is `known` about all buffers that equal `data` except at `paths`.

        `data` was decoded, and not recognised. A path is made of the names of fields and indexes of
        vectors, with dots. Structs are contents as bytes.
        """
        make = partial(maybe_excerpt, self._read, table.__name__, data, known, paths)
        self._excerpts.consider(table, data, make)


def repr_without(table: Struct, secret_fields: Collection[str]) -> str:
    """Return the `repr` of a table, with `***` in place of fields that are set and secret."""
    shown = ", ".join(
        f"{name}={'***' if name in secret_fields and value else repr(value)}"
        for name in table.__struct_fields__
        for value in (getattr(table, name),)
    )
    return f"{type(table).__name__}({shown})"
