"""Statistics of a record batch: extremes of its columns, for readers that want some rows only.

Servers know no schemas. So the least and the greatest value of a column are order keys
(order_keys.py), which are compared byte by byte, and so are the bounds that a reader asks for:

    | bytes | field                                                                    |
    |-------|--------------------------------------------------------------------------|
    | 1     | version, 1                                                               |
    | 4     | CRC-32C of what follows                                                  |
    | ...   | columns: flags u8 | length u16, name | keys: length u8, bytes            |

The flags say whether a column has nulls and whether it has other values, and which of the two keys
follow. Numbers are big-endian. The property `statistics` of an envelope has this in base64. The
checksum is its own, because a batch may be skipped without having been read as a whole.

A column is named by its path: `a.b` is the field `b` of the structs in column `a`. A column whose
own name has a dot has no statistics.
"""

from __future__ import annotations

import binascii
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from sbp_core import filter_limits
from sbp_core.records.order_keys import has_order, maybe_upper_prefix, order_key
from sbp_core.records.stream_schema import maybe_logical_type
from sbp_core.wire.checksum import crc32c

_VERSION: Final = 1
_FRONT: Final = struct.Struct(">BI")  # version, checksum
_COLUMN: Final = struct.Struct(">BH")  # flags, length of the name
_HAS_NULL: Final = 1
_HAS_VALUE: Final = 2
_HAS_LEAST: Final = 4
_HAS_MOST: Final = 8
_DOT: Final = "."


@dataclass(frozen=True, slots=True)
class ColumnBounds:
    """The demand of a reader on a column of each row: a value in [least, most], or null.

    The bounds are order keys of the column's type, None for no bound; null is wanted if
    `takes_null`. If `least` is above `most`, no value is wanted.
    """

    column: str
    least: bytes | None
    most: bytes | None
    takes_null: bool


class _Column(NamedTuple):
    """The statistics of one column; a key is None if nothing is known of it."""

    flags: int
    least: bytes | None
    most: bytes | None

    def may_match(self, bounds: ColumnBounds) -> bool:
        """Whether a row may be within the bounds."""
        if self.flags & _HAS_NULL and bounds.takes_null:
            return True
        if not self.flags & _HAS_VALUE:
            return False
        if self.most is not None and bounds.least is not None and self.most < bounds.least:
            return False
        return self.least is None or bounds.most is None or self.least <= bounds.most


def maybe_statistics_type(schema: pa.Schema, column: str) -> pa.DataType | None:
    """Return the type of a column that may have statistics, which is that of its order keys.

    `column` is a path. None if there is no such column, or if its values have no order that keys
    have: it is nested, or has a logical type, such as a string with a collation.
    """
    fields = {field.name: field for field in schema}
    first, *others = column.split(_DOT)
    found = fields.get(first)
    for name in others:
        if found is None or not pa.types.is_struct(found.type):
            return None
        found = {field.name: field for field in found.type}.get(name)
    if found is None or maybe_logical_type(found) is not None or not has_order(found.type):
        return None
    return found.type


def encode_statistics(batch: pa.RecordBatch, columns: Sequence[str]) -> str | None:
    """Return the statistics of the named columns, as text; None if there are none of any.

    Columns that cannot have any are left out, and those beyond
    STATISTICS_LENGTH_MAX.
    """
    size_max = filter_limits.STATISTICS_LENGTH_MAX // 4 * 3 - _FRONT.size
    content = b""
    for name in columns:
        encoded = _maybe_encoded(batch, name)
        if encoded is not None and len(content) + len(encoded) <= size_max:
            content += encoded
    if not content:
        return None
    data = _FRONT.pack(_VERSION, crc32c([content])) + content
    return binascii.b2a_base64(data, newline=False).decode()


def may_match(statistics: str, bounds: Sequence[ColumnBounds]) -> bool:
    """Whether a row of the batch may be within all bounds; True if the statistics are unreadable.

    False is a proof that none is.
    """
    try:
        columns = _decode(statistics)
    except (ValueError, struct.error, IndexError):
        return True
    for each in bounds:
        found = columns.get(each.column)
        if found is not None and not found.may_match(each):
            return False
    return True


def _maybe_encoded(batch: pa.RecordBatch, name: str) -> bytes | None:
    kind = maybe_statistics_type(batch.schema, name)
    if kind is None:
        return None
    first, *others = name.split(_DOT)
    array = batch.column(first)
    if others:
        array = pc.struct_field(array, others)
    flags = _HAS_NULL if array.null_count else 0
    least = most = None
    if array.null_count < len(array):
        flags |= _HAS_VALUE
        least, most = _extremes(array, kind)
    keys = b""
    for flag, key in ((_HAS_LEAST, least), (_HAS_MOST, most)):
        if key is not None:
            flags |= flag
            keys += bytes((len(key),)) + key
    text = name.encode()
    return _COLUMN.pack(flags, len(text)) + text + keys


def _extremes(array: pa.Array, kind: pa.DataType) -> tuple[bytes, bytes | None]:
    """Return the keys of the least and greatest value, shortened so that the values are between."""
    if pa.types.is_duration(kind):
        array = array.view(pa.int64())  # Arrow has no extremes of these
    found = pc.min_max(array)
    least, most = (order_key(found[which], array.type) for which in ("min", "max"))
    assert least is not None
    assert most is not None
    if pa.types.is_floating(kind) and pc.any(pc.is_nan(array)).as_py():
        return least, None  # Arrow passes over NaN, which is the largest for readers
    size_max = filter_limits.KEY_BYTES_MAX
    return least[:size_max], maybe_upper_prefix(most, size_max)


def _decode(text: str) -> dict[str, _Column]:
    """Return the statistics by column. Raises ValueError, IndexError or struct.error."""
    if len(text) > filter_limits.STATISTICS_LENGTH_MAX:
        raise ValueError("statistics that are too long")
    data = binascii.a2b_base64(text, strict_mode=True)
    version, checksum = _FRONT.unpack_from(data)
    if version != _VERSION or checksum != crc32c([data[_FRONT.size :]]):
        raise ValueError("statistics of another version, or damaged ones")
    columns: dict[str, _Column] = {}
    at = _FRONT.size
    while at < len(data):
        flags, length = _COLUMN.unpack_from(data, at)
        start = at + _COLUMN.size
        at = start + length
        name = data[start:at].decode()
        keys: list[bytes | None] = []
        for flag in (_HAS_LEAST, _HAS_MOST):
            if not flags & flag:
                keys.append(None)
                continue
            start = at + 1
            at = start + data[at]
            keys.append(data[start:at])
        columns[name] = _Column(flags, *keys)
    if at != len(data):
        raise ValueError("statistics that are cut off")
    return columns
