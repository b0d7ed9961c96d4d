"""What a task makes of record batches: the seam between reading offsets and reading columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

import pyarrow as pa

from sbp_core import limits
from sbp_core.records import Envelope
from sbp_spark.reading.planning import StreamSpan
from sbp_spark.retyping import retyped


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
    """Whether so much is passed on to Spark and not joined with what follows."""
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
