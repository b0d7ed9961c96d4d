"""Records as rows: key, value, headers and timestamp, and where each record was."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa

from sbp_core.records import ROWS_SCHEMA, Envelope, decode_batches
from sbp_spark.reading.layout import JOINED_BYTES, ROWS_PER_BATCH, Piece, joined
from sbp_spark.reading.place_columns import place_column
from sbp_spark.reading.planning import StreamSpan

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
