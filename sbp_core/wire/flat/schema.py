"""The tables of one schema file, and the codec of their dataclasses."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TypeVar

from sbp_core import limits
from sbp_core.errors import HeaderError
from sbp_core.wire.flat.kinds import Field
from sbp_core.wire.flat.reader import Reader, ReadTable
from sbp_core.wire.flat.template import Template, maybe_template
from sbp_core.wire.flat.writer import Writer, WrittenTable

T = TypeVar("T")


class Schema:
    """The tables of one schema file: encodes and decodes their dataclasses."""

    def __init__(
        self,
        layouts: Mapping[type, tuple[Field, ...]],
        *,
        bytes_max: int = limits.HEADER_BYTES_MAX,
        depth_max: int = limits.HEADER_DEPTH_MAX,
    ) -> None:
        self._written = {table.__name__: WrittenTable(table, layouts[table]) for table in layouts}
        self._read = {table.__name__: ReadTable(table, layouts[table]) for table in layouts}
        self._bytes_max = bytes_max
        self._depth_max = depth_max
        self._templates: dict[tuple[type, int], Template] = {}
        self._misses: dict[tuple[type, int], int] = {}

    def encode(self, value: object) -> bytes:
        """Return the FlatBuffers encoding of a generated dataclass, as a root table.

        Raises HeaderError for content that its field cannot hold, and when the result would be
        larger than a header may be.
        """
        encoded = Writer(self._written).write_root(value)
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
        octets = bytes(data)
        key = (table, len(octets))
        template = self._templates.get(key)
        if template is not None:
            with contextlib.suppress(UnicodeDecodeError):  # the reader says what is wrong
                value: T | None = template.maybe_read(octets)
                if value is not None:
                    return value
        value = Reader(self._read, octets, self._depth_max).read_root(table.__name__)
        if len(octets) <= limits.TEMPLATE_BYTES_MAX:
            self._consider(key, octets)
        return value

    def _consider(self, key: tuple[type, int], octets: bytes) -> None:
        """Make a template of a buffer for which none was of use, the less often the more of these.

        So who sends ever new layouts cannot have work done for each.
        """
        misses = self._misses[key] = self._misses.get(key, 0) + 1
        if misses & (misses - 1):
            return
        template = maybe_template(self._read, key[0].__name__, octets)
        if template is not None:
            while len(self._templates) >= limits.TEMPLATES_MAX:
                self._templates.pop(next(iter(self._templates)), None)
            self._templates[key] = template
