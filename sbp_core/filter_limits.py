"""The limits of the statistics of batches, and of the filters and projections of readers.

A batch whose statistics break them has none; a FETCH whose filters or projections do is refused.
"""

from __future__ import annotations

from typing import Final

from sbp_core import limits

STATISTICS_LENGTH_MAX: Final = 4 * limits.KIB
"""Characters of the statistics of a batch: about 100 columns of numbers."""
KEY_BYTES_MAX: Final = 32
"""Bytes of a key in statistics and in filters; longer ones are shortened to it."""
SKIPPED_BATCH_BYTES_MIN: Final = 4 * limits.KIB
"""Smaller batches are always sent: looking at their statistics takes as much time."""
FILTERS_PER_ITEM_MAX: Final = 16
"""Filters of an item of FETCH: one for each version of the schema that its reader knows."""
BOUNDS_PER_FILTER_MAX: Final = 64
"""Columns that a filter has bounds of."""
PROJECTION_BYTES_MAX: Final = 8 * limits.KIB
"""Bytes of the bits of a projection, for nodes and buffers together."""

assert STATISTICS_LENGTH_MAX <= limits.BATCH_METADATA_BYTES_MAX // 4
assert KEY_BYTES_MAX < 2**8, "their lengths are single bytes"
assert 4 * limits.SCHEMA_FIELDS_MAX < 8 * PROJECTION_BYTES_MAX, (
    "a column has one node and three buffers at most"
)
