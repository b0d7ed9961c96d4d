"""The tables of one schema file, and the codec of their dataclasses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from sbp_core import limits
from sbp_core.errors import HeaderError
from sbp_core.wire.flat.kinds import Field
from sbp_core.wire.flat.reader import Reader, ReadTable
from sbp_core.wire.flat.writer import Writer, WrittenTable

T = TypeVar("T")


class Schema:
    """The tables of one schema file: encodes and decodes their dataclasses."""

    def __init__(
        self, layouts: Mapping[type, tuple[Field, ...]], *, bytes_max: int = limits.HEADER_BYTES_MAX
    ) -> None:
        self._written = {table.__name__: WrittenTable(table, layouts[table]) for table in layouts}
        self._read = {table.__name__: ReadTable(table, layouts[table]) for table in layouts}
        self._bytes_max = bytes_max

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
        return Reader(self._read, bytes(data)).read_root(table.__name__)  # type: ignore[no-any-return]
