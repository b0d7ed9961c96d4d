"""Records as rows: key, value, headers and timestamp, and where each record was."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from sbp_core.records import ROWS_SCHEMA, Envelope, decode_batch
from sbp_spark.reading.layout import Layout, Piece, joined
from sbp_spark.reading.place_columns import place_column
from sbp_spark.reading.planning import StreamSpan

_ROWS_INDEX: Final = {name: index for index, name in enumerate(ROWS_SCHEMA.names)}


class RowsLayout(Layout):
    """Makes rows with the columns of `schema`; no other column is made."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema

    def decode(self, envelope: Envelope, span: StreamSpan) -> pa.RecordBatch:
        """Return the rows of a batch. Raises RecordBatchError."""
        return decode_batch(envelope)

    def join(self, pieces: Sequence[Piece]) -> pa.RecordBatch:
        """Return the rows of some pieces."""
        columns = [
            joined(_ROWS_INDEX[name], pieces) if name in _ROWS_INDEX else place_column(name, pieces)
            for name in self._schema.names
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)
