"""How many octets each row of a batch takes in Arrow's form, for all rows at once."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Ends = npt.NDArray[np.int64]
"""The octets before each of n rows, and after the last one: n + 1 numbers that never fall."""

_OFFSET_BYTES: Final = 4


def record_sizes(rows: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """Return how many octets each row takes in a record batch."""
    return np.diff(row_ends(rows))


def row_ends(rows: pa.RecordBatch) -> Ends:
    """Return the octets before each row and after the last one, from any number on."""
    ends = _evenly(rows.num_rows, _validity_bytes(rows.schema.types))
    for column in rows.columns:
        ends += _ends(column)
    return ends


def _ends(array: pa.Array) -> Ends:
    kind = array.type
    count = len(array)
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return _evenly(count, _OFFSET_BYTES) + _value_offsets(array)
    if pa.types.is_map(kind) or pa.types.is_list(kind):
        return _evenly(count, _OFFSET_BYTES) + _ends_of_values(array)
    if pa.types.is_struct(kind):
        ends = np.zeros(count + 1, dtype=np.int64)
        for index in range(kind.num_fields):
            ends += _ends(array.field(index))
        return ends
    return _evenly(count, -(-kind.bit_width // 8))


def _ends_of_values(array: pa.Array) -> Ends:
    """Return the octets of what is in lists or maps."""
    offsets = _value_offsets(array)
    first, last = int(offsets[0]), int(offsets[-1])
    values = array.values.slice(first, last - first)
    ends = _evenly(len(values), _validity_bytes([values.type])) + _ends(values)
    return ends[offsets - first]


def _validity_bytes(kinds: list[pa.DataType]) -> int:
    """Return what a row takes of the bits which of its values are null, rounded up."""
    return -(-sum(map(_value_count, kinds)) // 8)


def _value_count(kind: pa.DataType) -> int:
    if pa.types.is_struct(kind):
        return 1 + sum(_value_count(each.type) for each in kind)
    return 1


def _evenly(count: int, size_bytes: int) -> Ends:
    return np.arange(count + 1, dtype=np.int64) * size_bytes


def _value_offsets(array: pa.Array) -> Ends:
    """Return the n + 1 offsets of an array with 32-bit offsets; an empty one may have no buffer."""
    if len(array) == 0:
        return np.zeros(1, dtype=np.int64)
    count = array.offset + len(array) + 1
    offsets = np.frombuffer(array.buffers()[1], dtype=np.int32, count=count)
    return offsets[array.offset :].astype(np.int64)
