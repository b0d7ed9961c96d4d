"""The layout of a query with the option `where`: only rows that match a condition."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from sbp_core import filter_limits
from sbp_core.client import SchemaVersion
from sbp_core.records import BatchFilter, batch_filter, map_columns
from sbp_spark.filtering.matching import matching
from sbp_spark.filtering.resolving import RowFilter
from sbp_spark.filtering.value_bounds import bounds_of
from sbp_spark.reading.layout import Layout, Piece
from sbp_spark.reading.schema_versions import SchemaVersions


class FilteredLayout:
    """Keeps the rows of another layout that match a filter.

    The other layout makes the columns that the filter needs; the rows then keep the columns of
    `schema`. Without `versions`, which plain streams do not have, no batch is skipped.
    """

    def __init__(
        self,
        layout: Layout,
        row_filter: RowFilter,
        schema: pa.Schema,
        versions: SchemaVersions | None,
    ) -> None:
        self.decode = layout.decode
        self.projections = layout.projections
        self._layout = layout
        self._row_filter = row_filter
        self._schema = schema
        self._versions = versions
        self._known: dict[str, BatchFilter | None] = {}

    def filters(self, stream_id: int) -> tuple[BatchFilter, ...]:
        """Return one for each of the newest versions in which a column is bounded.

        Batches of versions that are not known yet come whole. Raises SbpError.
        """
        if self._versions is None:
            return ()
        newest = list(self._versions.find(stream_id))[-filter_limits.FILTERS_PER_ITEM_MAX :]
        found = map(self._maybe_filter, newest)
        return tuple(each for each in found if each is not None)

    def _maybe_filter(self, version: SchemaVersion) -> BatchFilter | None:
        fingerprint = version.schema.fingerprint
        if fingerprint not in self._known:
            bounds = bounds_of(self._row_filter, version.schema.arrow)
            self._known[fingerprint] = batch_filter(fingerprint, bounds) if bounds else None
        return self._known[fingerprint]

    def join(self, pieces: Sequence[Piece]) -> pa.RecordBatch:
        """Return the records of some pieces that are wanted, which may be none."""
        rows = matching(self._row_filter.condition, self._layout.join(pieces))
        return map_columns(rows, self._schema)
