"""The parts of stored batches that a reader wants: columns (cutting.py) and rows (skipping.py)."""

from __future__ import annotations

from typing import Final, NamedTuple

from sbp_core.records.cutting import Cut, maybe_cut
from sbp_core.records.skipping import BatchFilter, maybe_skipped
from sbp_core.wire._generated import Projection


class Selection(NamedTuple):
    """The columns that are wanted, and the bounds of the rows, as an item of FETCH has them."""

    projections: tuple[Projection, ...] = ()
    filters: tuple[BatchFilter, ...] = ()

    def maybe_cut(self, front: memoryview, size_bytes: int, base_offset: int) -> Cut | None:
        """Return what is left of the batch of `size_bytes` that begins with `front`.

        The result has this base offset. None: the batch is to be read whole. Raises
        RecordBatchError.
        """
        if self.filters:
            head = maybe_skipped(front, size_bytes, self.filters, base_offset)
            if head is not None:
                return Cut(head, ())
        if not self.projections:
            return None
        return maybe_cut(front, size_bytes, self.projections, base_offset)


NO_SELECTION: Final = Selection()
"""All columns of all rows."""
