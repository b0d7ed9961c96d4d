"""What an append says of its batches beside their streams, and to which ranges they go."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final, NamedTuple

from sbp_core import limits
from sbp_core.client.router import Router
from sbp_core.client.types import AppendItem, RangeInfo
from sbp_core.errors import RangeSealedError, SbpError, StatusCode
from sbp_core.session.negotiation import FeatureName


class Marks(NamedTuple):
    """Whose batch one is, and which of theirs."""

    writer_id: str | None = None
    sequence: int = -1
    txn_id: str | None = None


UNMARKED: Final = Marks()


class Numbering:
    """That of plain appends: no batch has a number, each goes to the open range of its stream.

    `feature` is what servers must have agreed to. Of a stream `stream_batches_max` batches may be
    on their way at a time.
    """

    feature: FeatureName | None = None
    stream_batches_max = sys.maxsize

    def __init__(self, items: Sequence[AppendItem]) -> None:
        self._items = items

    def range_for(self, index: int, router: Router) -> RangeInfo:
        """Return the range that a batch goes to. Raises SbpError if there is none at the moment."""
        stream_id = self._items[index].stream_id
        piece = router.maybe_open_range(stream_id)
        if piece is None:
            raise RangeSealedError(
                StatusCode.RANGE_ALREADY_SEALED,
                f"stream {stream_id} has no open range at the moment",
            )
        return piece

    def marks(self, index: int, piece: RangeInfo) -> Marks:
        """Return what is said of a batch that is sent to a range now."""
        return UNMARKED

    def on_appended(self, index: int) -> None:
        """Take note that a server has a batch."""

    def on_refused(self, index: int, error: SbpError) -> None:
        """Take note that a server refused a batch, this time."""


class WriterNumbering(Numbering):
    """Batches have the `sequences` that their writer gave them."""

    feature = FeatureName.IDEMPOTENT_APPEND
    stream_batches_max = limits.WRITER_BATCHES_KEPT

    def __init__(
        self, items: Sequence[AppendItem], writer_id: str, sequences: Sequence[int]
    ) -> None:
        super().__init__(items)
        self._writer_id = writer_id
        self._sequences = sequences

    def marks(self, index: int, piece: RangeInfo) -> Marks:
        """Return the writer's id and number."""
        return Marks(self._writer_id, self._sequences[index])
