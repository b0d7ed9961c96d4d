"""What an append says of its batches beside their streams, and to which ranges they go."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from sbp_core.client.programs.router import Router
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
    on their way at a time; unless the numbers keep them in order (`is_ordered`), in one frame.
    """

    feature: FeatureName | None = None
    is_ordered = False
    stream_batches_max = sys.maxsize

    def add(self, items: Sequence[AppendItem]) -> Collection[int]:
        """Take the next batches; return the indexes of those that may be appended already.

        Raises SbpError for ones that it cannot take: then it takes none.
        """
        return ()

    def range_for(self, index: int, stream_id: int, router: Router) -> RangeInfo:
        """Return the range that a batch goes to. Raises SbpError if there is none at the moment."""
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

    def end(self, in_doubt: Collection[int], *, is_complete: bool) -> None:
        """Take note that the append is over: `is_complete` if all batches are appended."""
