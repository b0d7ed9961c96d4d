"""How many octets each row of a batch takes in Arrow's form, for all rows at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Ends = npt.NDArray[np.int64]
"""The octets before each of n rows, and after the last one: n + 1 numbers that never fall."""

_VALIDITY_BITS: Final = 1
_OFFSET_BITS: Final = 32
_STRINGS: Final = (pa.string().id, pa.binary().id)
_LISTS: Final = (pa.list_(pa.int8()).id, pa.map_(pa.int8(), pa.int8()).id)
_STRUCT: Final = pa.struct([]).id


def record_sizes(rows: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """Return how many octets each row takes in a record batch."""
    return np.diff(row_ends(rows))


def row_ends(rows: pa.RecordBatch) -> Ends:
    """Return the octets before each row and after the last one, from any number on."""
    return _ends(rows.columns, rows.num_rows)


def _ends(columns: Sequence[pa.Array], count: int) -> Ends:
    uneven: list[npt.NDArray[Any]] = []
    bits = sum(_measure(column, uneven) for column in columns)
    ends = np.arange(count + 1, dtype=np.int64) * -(-bits // 8)
    for each in uneven:
        ends += each
    return ends


def _measure(array: pa.Array, uneven: list[npt.NDArray[Any]]) -> int:
    """Return the bits that every row has; add the ends of what rows have more or less of."""
    kind = array.type
    if kind.id in _STRINGS:
        uneven.append(_value_offsets(array))
        return _VALIDITY_BITS + _OFFSET_BITS
    if kind.id in _LISTS:
        offsets = _value_offsets(array)
        first, last = int(offsets[0]), int(offsets[-1])
        if first < last:
            values = array.values.slice(first, last - first)
            uneven.append(_ends([values], len(values))[offsets - first])
        return _VALIDITY_BITS + _OFFSET_BITS
    if kind.id == _STRUCT:
        fields = map(array.field, range(kind.num_fields))
        return _VALIDITY_BITS + sum(_measure(field, uneven) for field in fields)
    return _VALIDITY_BITS + max(8, int(kind.bit_width))


def _value_offsets(array: pa.Array) -> npt.NDArray[np.int32]:
    """Return the n + 1 offsets of an array with 32-bit offsets; an empty one may have no buffer."""
    count = len(array)
    if count == 0:
        return np.zeros(1, dtype=np.int32)
    offsets = np.frombuffer(array.buffers()[1], dtype=np.int32, count=array.offset + count + 1)
    return offsets[array.offset :]
