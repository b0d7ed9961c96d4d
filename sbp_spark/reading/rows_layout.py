"""Records as rows: key, value, headers and timestamp, and where each record was."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa

from sbp_core.records import ROWS_SCHEMA, Envelope, decode_batch
from sbp_spark.reading.layout import Piece, joined
from sbp_spark.reading.place_columns import place_column
from sbp_spark.reading.planning import StreamSpan

_ROWS_INDEX: Final = {name: index for index, name in enumerate(ROWS_SCHEMA.names)}


class RowsLayout:
    """Makes rows with the columns of `schema`; no other column is made."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema

    def decode(
        self, envelope: Envelope, span: StreamSpan, start_offset: int, count: int
    ) -> Iterator[Piece]:
        """Yield rows of a batch, in one piece. Raises RecordBatchError."""
        rows = decode_batch(envelope)
        size_bytes = rows.get_total_buffer_size() * count // envelope.record_count
        rows = rows.slice(start_offset - envelope.base_offset, count)
        yield Piece(span, start_offset, rows, size_bytes)

    def join(self, pieces: Sequence[Piece]) -> pa.RecordBatch:
        """Return the rows of some pieces."""
        columns = [
            joined(_ROWS_INDEX[name], pieces) if name in _ROWS_INDEX else place_column(name, pieces)
            for name in self._schema.names
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)
