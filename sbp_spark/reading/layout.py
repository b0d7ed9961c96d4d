"""Decoding record batches into Arrow: the interface `Layout`, and the layout of plain records.

Plain records become rows: key, value, headers, timestamp, and where each record was.
`columns_layout` has the layout of typed streams.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from operator import attrgetter
from typing import Final, Protocol

import numpy as np
import pyarrow as pa

from sbp_core import limits
from sbp_core.records import ROWS_SCHEMA, Envelope, decode_batches, offsets_array
from sbp_spark.logical_types import retyped
from sbp_spark.reading.planning import StreamSpan


class Form(Enum):
    """How a query sees records; decided once, when it starts."""

    ROWS = "rows"
    COLUMNS = "columns"
    COLUMNS_WITH_METADATA = "columns with metadata"

    @property
    def is_typed(self) -> bool:
        """Whether the columns are those of the streams' schemas."""
        return self is not Form.ROWS


@dataclass(frozen=True, slots=True)
class Piece:
    """Records of a span whose offsets begin at `start_offset`; they take about `size_bytes`."""

    span: StreamSpan
    start_offset: int
    rows: pa.RecordBatch
    size_bytes: int

    @property
    def count(self) -> int:
        """How many records these are."""
        return int(self.rows.num_rows)


ROWS_PER_BATCH: Final = 10_000
BYTES_PER_BATCH: Final = limits.BATCH_TARGET_BYTES * 3 // 4
"""Less than what a full record batch decodes to, so that those are passed on as they are."""
JOINED_BYTES: Final = BYTES_PER_BATCH * 9 // 8
"""Small batches take a little less together than each by itself, and are to be enough together."""


def is_enough(row_count: int, size_bytes: int) -> bool:
    """Whether rows of this size are passed on to Spark, not joined with those that follow."""
    return row_count >= ROWS_PER_BATCH or size_bytes >= BYTES_PER_BATCH


class Layout(Protocol):
    """Makes of record batches the columns that Spark demands of all of them."""

    def decode(
        self, envelopes: Sequence[Envelope], span: StreamSpan, start_offset: int, end_offset: int
    ) -> Iterator[Piece]:
        """Yield what `join` needs of the records of some batches from one offset up to another.

        The batches follow on one another, and there is a record of each to yield; they are
        validated as a whole. Pieces are made as they are drawn, none much larger than a batch is
        when it is decoded. Raises DamagedBatchError for a batch that cannot be decoded, maybe
        before pieces of earlier ones; and SbpError for what is to be read in another way.
        """
        ...

    def join(self, pieces: Sequence[Piece]) -> pa.RecordBatch:
        """Return the records of some pieces, in their order, as Spark demands them."""
        ...


class RenamedLayout:
    """Makes what another layout does, with the columns named as in `schema`."""

    def __init__(self, layout: Layout, schema: pa.Schema) -> None:
        self._layout = layout
        self._schema = schema

    def decode(
        self, envelopes: Sequence[Envelope], span: StreamSpan, start_offset: int, end_offset: int
    ) -> Iterator[Piece]:
        """Yield what `join` needs. Raises SbpError."""
        return self._layout.decode(envelopes, span, start_offset, end_offset)

    def join(self, pieces: Sequence[Piece]) -> pa.RecordBatch:
        """Return the records of some pieces."""
        made = zip(self._layout.join(pieces).columns, self._schema, strict=True)
        columns = [retyped(array, field.type) for array, field in made]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def joined(index: int, pieces: Sequence[Piece]) -> pa.Array:
    """Return the column at `index` of the rows of all pieces; of a single one without a copy."""
    parts = [piece.rows.column(index) for piece in pieces]
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)


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


_ROWS_INDEX: Final = {name: index for index, name in enumerate(ROWS_SCHEMA.names)}


class RowsLayout:
    """Makes rows with the columns of `schema`; no other column is made.

    Keys and values may be strings there. Like Spark's cast of binary to string, that looks at no
    byte: what is not UTF-8 stays as it is.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema

    def decode(
        self, envelopes: Sequence[Envelope], span: StreamSpan, start_offset: int, end_offset: int
    ) -> Iterator[Piece]:
        """Yield rows of some batches, the small ones in one piece. Raises RecordBatchError."""
        offset = envelopes[0].base_offset
        for rows in decode_batches(
            envelopes, rows_enough=ROWS_PER_BATCH, bytes_enough=JOINED_BYTES
        ):
            begin, end = max(offset, start_offset), min(offset + rows.num_rows, end_offset)
            size_bytes = rows.get_total_buffer_size() * (end - begin) // rows.num_rows
            yield Piece(span, begin, rows.slice(begin - offset, end - begin), size_bytes)
            offset += rows.num_rows

    def join(self, pieces: Sequence[Piece]) -> pa.RecordBatch:
        """Return the rows of some pieces."""
        columns = [
            _as_type(joined(_ROWS_INDEX[field.name], pieces), field.type)
            if field.name in _ROWS_INDEX
            else place_column(field.name, pieces)
            for field in self._schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def _as_type(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the column itself, or binary as a string of the same bytes."""
    return column if column.type == kind else column.view(kind)
