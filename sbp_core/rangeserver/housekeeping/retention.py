"""How long records are kept: pure policy over what the log knows of batches."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sbp_core.log.segment_rows import Slot


@dataclass(frozen=True, slots=True)
class Retention:
    """How long the records of a stream are kept, and how many octets of them; 0 is no limit."""

    period_ms: int = 0
    size_bytes: int = 0
    created_at_ms: int = -1
    """When the stream was created, by which it is told from another one of the same id."""

    @property
    def is_for_ever(self) -> bool:
        """Whether nothing ever goes."""
        return not self.period_ms and not self.size_bytes


@dataclass(frozen=True, slots=True)
class Held:
    """What a server holds of a stream: records up to `next_offset`, and their octets."""

    start_offset: int
    next_offset: int
    size_bytes: int


def expired_below(held: Held, batches: Iterable[Slot], retention: Retention, now_ms: int) -> int:
    """Return the offset below which the records of a stream may go.

    `batches` are all that the server holds, oldest first; no more of them are looked at than may
    go. A batch goes when its time is over, or while all that are left exceed the size; what is
    newer than a batch that stays, stays. The newest batch never goes for its size.
    """
    offset, left_bytes = held.start_offset, held.size_bytes
    for batch in batches:
        is_too_old = retention.period_ms and batch.time_ms + retention.period_ms < now_ms
        is_too_much = (
            retention.size_bytes
            and left_bytes > retention.size_bytes
            and batch.end_offset < held.next_offset
        )
        if not (is_too_old or is_too_much):
            break
        offset = max(offset, batch.end_offset)
        left_bytes -= batch.location.length
    return min(offset, held.next_offset)
