"""The batches that go to one server in one APPEND frame."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from sbp_core import limits
from sbp_core.client.appends.numbering import Marks
from sbp_core.client.programs.program import Call
from sbp_core.client.types import RangeInfo
from sbp_core.session.negotiation import FeatureName
from sbp_core.wire.headers import AppendInfo, AppendRequest, StreamRange
from sbp_core.wire.opcodes import Opcode

_ITEM_HEADER_BYTES: Final = 320
"""What an AppendInfo takes in a header, rounded up."""
_ITEMS_MAX: Final = limits.HEADER_BYTES_MAX // _ITEM_HEADER_BYTES - 1


@dataclass(slots=True)
class AppendFrame:
    """Items, by their indexes in an append, each with the range that it goes to."""

    endpoint: str
    indexes: list[int] = field(default_factory=list)
    pieces: list[RangeInfo] = field(default_factory=list)
    frame_bytes: int = limits.FRAME_BYTES_MIN + _ITEM_HEADER_BYTES

    def takes(self, batch: bytes) -> bool:
        """Whether one more batch fits."""
        frame_bytes = self.frame_bytes + len(batch) + _ITEM_HEADER_BYTES
        return frame_bytes <= limits.FRAME_BYTES_MAX and len(self.indexes) < _ITEMS_MAX

    def add(self, index: int, batch: bytes, piece: RangeInfo) -> None:
        """Put an item in."""
        self.indexes.append(index)
        self.pieces.append(piece)
        self.frame_bytes += len(batch) + _ITEM_HEADER_BYTES

    def call(
        self,
        batches: Sequence[bytes],
        marks: Sequence[Marks],
        feature: FeatureName | None,
        timeout_ms: int,
    ) -> Call:
        """Return the call that sends it, with the items' batches and marks (SPEC "APPEND")."""
        infos = map(_info, range(len(batches)), self.pieces, batches, marks)
        header = AppendRequest(timeout_ms=timeout_ms, append_requests=tuple(infos))
        return Call(
            self.endpoint, Opcode.APPEND, header, timeout_ms, tuple(batches), feature=feature
        )


def _info(request_index: int, piece: RangeInfo, batch: bytes, marks: Marks) -> AppendInfo:
    return AppendInfo(
        stream_range=StreamRange(
            stream_id=piece.stream_id,
            range_index=piece.range_index,
            start_offset=piece.start_offset,
            end_offset=-1,
        ),
        request_index=request_index,
        batch_length=len(batch),
        stream_id=piece.stream_id,
        writer_id=marks.writer_id,
        sequence=marks.sequence,
        txn_id=marks.txn_id,
    )
