"""Columns that say where records were, which no record batch contains."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Final

import numpy as np
import pyarrow as pa

from sbp_core.records import offsets_array
from sbp_spark.reading.layout import Piece
from sbp_spark.reading.planning import StreamSpan

_SPAN_COLUMNS: Final[Mapping[str, tuple[pa.DataType, Callable[[StreamSpan], str | int]]]] = {
    "stream": (pa.string(), attrgetter("stream_name")),
    "stream_id": (pa.int64(), attrgetter("stream_id")),
    "range_index": (pa.int32(), attrgetter("range_index")),
}


def place_column(name: str, pieces: Sequence[Piece]) -> pa.Array:
    """Return the column stream, stream_id, range_index or offset of the records of all pieces."""
    return _offset_column(pieces) if name == "offset" else _span_column(name, pieces)


def _offset_column(pieces: Sequence[Piece]) -> pa.Array:
    if len(pieces) == 1:
        return offsets_array(pieces[0].start_offset, pieces[0].count)
    counts = np.array([piece.count for piece in pieces])
    starts = np.array([piece.start_offset for piece in pieces], dtype=np.int64)
    rows_before = np.cumsum(counts) - counts
    offsets = np.arange(counts.sum(), dtype=np.int64) + np.repeat(starts - rows_before, counts)
    return pa.array(offsets)


def _span_column(name: str, pieces: Sequence[Piece]) -> pa.Array:
    """Return a column that is the same in every row of a span."""
    kind, read = _SPAN_COLUMNS[name]
    counts = [piece.count for piece in pieces]
    values = [read(piece.span) for piece in pieces]
    if len(set(values)) == 1:
        row_count = sum(counts)
        rounded_count = 1 << (row_count - 1).bit_length()
        return _repeated(values[0], kind, rounded_count).slice(0, row_count)
    return pa.array(values, kind).take(pa.array(np.repeat(np.arange(len(pieces)), counts)))


@lru_cache(maxsize=256)
def _repeated(value: str | int, kind: pa.DataType, row_count: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), row_count)
