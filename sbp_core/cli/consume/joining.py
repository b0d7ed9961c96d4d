"""Columns of text or bytes, joined row by row without a loop over the rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Part: TypeAlias = pa.StringArray | pa.BinaryArray | str | bytes
"""A column, or a constant that stands in every row."""

_NOTHING: Final = pa.scalar(b"")


def join(parts: Sequence[Part], row_count: int) -> memoryview:
    """Return the bytes of all rows, in each of which the parts follow one another.

    Columns have `row_count` rows and no nulls.
    """
    columns = [_binary(part) for part in parts]
    columns.append(pa.repeat(_NOTHING, row_count))  # if all parts are constants
    return content(pc.binary_join_element_wise(*columns, _NOTHING))


def join_text(parts: Sequence[pa.StringArray | str]) -> pa.StringArray:
    """Return a column of the parts of each row in a row; one of them is a column."""
    return pc.binary_join_element_wise(*parts, "")


def content(column: pa.StringArray | pa.BinaryArray) -> memoryview:
    """Return the bytes of a column's values, one behind the other."""
    _, ends, data = column.buffers()
    if not len(column) or data is None:
        return memoryview(b"")
    bounds = np.frombuffer(ends, np.int32, len(column) + 1, 4 * column.offset)
    return memoryview(data)[int(bounds[0]) : int(bounds[-1])]


def _binary(part: Part) -> pa.Array | pa.Scalar:
    if isinstance(part, str):
        return pa.scalar(part.encode())
    if isinstance(part, bytes):
        return pa.scalar(part)
    return part.cast(pa.binary())
