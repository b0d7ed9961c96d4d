"""The layout of a query that wants some rows: those for which a condition is true."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from sbp_core.records import map_columns
from sbp_spark.filtering.checking import RowFilter
from sbp_spark.filtering.masks import matching
from sbp_spark.reading.layout import Layout, Piece


class FilteredLayout:
    """Makes what another layout does, of the rows of a filter only.

    The other one makes the columns of the filter; of those, the ones of `schema` are left.
    """

    def __init__(self, layout: Layout, row_filter: RowFilter, schema: pa.Schema) -> None:
        self.decode = layout.decode
        self.projections = layout.projections
        self._layout = layout
        self._condition = row_filter.condition
        self._schema = schema

    def join(self, pieces: Sequence[Piece]) -> pa.RecordBatch:
        """Return the records of some pieces that are wanted, which may be none."""
        return map_columns(matching(self._condition, self._layout.join(pieces)), self._schema)
