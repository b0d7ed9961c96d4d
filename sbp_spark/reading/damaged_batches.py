"""Record batches that cannot be decoded: failOnDataLoss decides, for exactly their offsets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sbp_core.errors import DamagedBatchError
from sbp_core.records import Envelope
from sbp_spark.reading.data_loss import DamagedRecordsError, Loss, log_damage
from sbp_spark.reading.layout import Layout, Piece
from sbp_spark.reading.planning import StreamSpan


@dataclass(frozen=True, slots=True)
class StoredRun:
    """Batches of a span that follow on one another, and what is wanted of them.

    The records at offsets [start_offset, end_offset); of each batch there is one at least.
    """

    envelopes: Sequence[Envelope]
    span: StreamSpan
    start_offset: int
    end_offset: int

    def between(self, start_offset: int, end_offset: int) -> StoredRun:
        """Return the batches that have records at these offsets."""
        start, end = max(start_offset, self.start_offset), min(end_offset, self.end_offset)
        inside = [
            each for each in self.envelopes if each.end_offset > start and each.base_offset < end
        ]
        return StoredRun(inside if start < end else (), self.span, start, end)


def decode_run(layout: Layout, run: StoredRun, *, is_loss_fatal: bool) -> Iterator[Piece]:
    """Yield what `layout` makes of a run, in the order of its offsets.

    A batch that cannot be decoded raises DamagedRecordsError; or it is logged, and what is before
    and behind it is yielded. Raises SbpError.
    """
    waiting = [run]  # the next one last
    while waiting:
        part = waiting.pop()
        if not part.envelopes:
            continue
        position = part.start_offset
        try:
            for piece in layout.decode(part.envelopes, part.span, position, part.end_offset):
                position = piece.start_offset + piece.count
                yield piece
        except DamagedBatchError as error:
            damage = _damage_of(part, position, error)
            if is_loss_fatal:
                raise damage from error
            (loss,) = damage.losses
            assert loss.end_offset is not None
            # Batches before it may not be decoded yet: small ones wait for more to join them.
            waiting.append(part.between(loss.end_offset, part.end_offset))
            waiting.append(part.between(position, loss.start_offset))
            log_damage(damage)


def _damage_of(run: StoredRun, position: int, error: DamagedBatchError) -> DamagedRecordsError:
    """Return which of the wanted offsets from `position` on a damaged batch has."""
    span = run.span
    start_offset = max(error.start_offset, position)
    end_offset = min(error.end_offset, run.end_offset)
    loss = Loss(span.stream_id, start_offset, end_offset)
    return DamagedRecordsError(loss, {span.stream_id: span.stream_name}, error.cause)
