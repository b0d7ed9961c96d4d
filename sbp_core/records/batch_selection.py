"""The parts of stored batches that a reader wants: columns (cutting.py) and rows (skipping.py)."""

from __future__ import annotations

from typing import Final, NamedTuple

from sbp_core.records.cutting import Cut, maybe_cut
from sbp_core.records.envelope import read_head
from sbp_core.records.skipping import BatchFilter, maybe_skipped
from sbp_core.wire._generated import Projection


class BatchExtent(NamedTuple):
    """The records and bytes of a stored batch, as a checked index or entry header has them."""

    base_offset: int
    record_count: int
    size_bytes: int

    def is_of(self, front: memoryview) -> bool:
        """Whether the batch that begins with `front` says the same. Raises RecordBatchError."""
        meta, _, body_start = read_head(front, 0)
        body_bytes = str(self.size_bytes - body_start)
        return meta.record_count == self.record_count and meta.body_bytes in {None, body_bytes}


class Selection(NamedTuple):
    """The columns that are wanted, and the bounds of the rows, as an item of FETCH has them."""

    projections: tuple[Projection, ...] = ()
    filters: tuple[BatchFilter, ...] = ()

    def maybe_cut(self, front: memoryview, extent: BatchExtent) -> Cut | None:
        """Return what is left of the batch of this extent that begins with `front`.

        Return None if the batch is to be read whole, also if `front`, which no checksum covers,
        contradicts `extent`: a reader of the whole batch finds the damage. Raises RecordBatchError.
        """
        found = self._maybe_cut(front, extent)
        return found if found is None or extent.is_of(front) else None

    def _maybe_cut(self, front: memoryview, extent: BatchExtent) -> Cut | None:
        base_offset, _, size_bytes = extent
        if self.filters:
            head = maybe_skipped(front, size_bytes, self.filters, base_offset)
            if head is not None:
                return Cut(head, ())
        if not self.projections:
            return None
        return maybe_cut(front, size_bytes, self.projections, base_offset)


NO_SELECTION: Final = Selection()
"""All columns of all rows."""
