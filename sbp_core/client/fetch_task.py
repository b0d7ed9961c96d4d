"""One item of a fetch on its way: what it asks for, and what it is answered with. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from sbp_core import limits
from sbp_core.client.fetches.fetch_answer import Found, Question
from sbp_core.client.programs.calls import Attempts
from sbp_core.client.types import FetchItem, FetchOutcome, RangeInfo
from sbp_core.errors import SbpError
from sbp_core.wire.headers import FetchInfo, StreamRange


@dataclass(slots=True)
class FetchTask:
    """One item on its way: waiting until `due_ms`, or asked for in `piece` since `asked_ms`.

    `stepped` is by how many offsets it is asked for too early, see `may_step_back`. Once that found
    other batches, or nothing at all, it `is_beside`: no earlier offset is asked for.
    """

    index: int
    item: FetchItem
    offset: int
    attempts: Attempts
    due_ms: float
    piece: RangeInfo | None = None
    asked_ms: float = 0
    asked_wait_ms: int = 0
    replica_turn: int = 0
    hasty_count: int = 0
    follow_count: int = 0
    was_out_of_range: bool = False
    maybe_tail: int | None = None
    stepped: int = 0
    is_beside: bool = False

    @property
    def asked_offset(self) -> int:
        """The offset that the server is asked for."""
        if not self.stepped:
            return self.offset
        assert self.piece is not None
        return max(self.piece.start_offset, self.offset - self.stepped)

    @property
    def known_tail(self) -> int:
        """An offset up to which there are records, as far as the item and its range say."""
        end_offset = None if self.piece is None else self.piece.end_offset
        return max(self.item.end_offset or 0, end_offset or 0)

    @property
    def is_inside(self) -> bool:
        """Whether a batch may begin in the range before the offset that is asked for."""
        return self.piece is not None and self.asked_offset > self.piece.start_offset

    @property
    def may_step_back(self) -> bool:
        """Whether to ask for an earlier offset where a server has nothing.

        ElasticStream's find no offset within the last batch of a range, except its first one. Where
        that batch begins is not known, so the steps double until something is found.
        """
        has_more = self.maybe_tail is not None and self.maybe_tail > self.offset
        return has_more and self.is_inside and not self.is_beside

    @property
    def answer_bytes(self) -> int:
        """What the item may be answered with: a batch more than it asks for."""
        return self.item.max_bytes + limits.BATCH_BYTES_MAX

    def info(self, request_index: int) -> FetchInfo:
        """Return how the item stands in a FETCH request."""
        assert self.piece is not None
        return FetchInfo(
            stream_range=StreamRange(
                stream_id=self.item.stream_id,
                range_index=self.piece.range_index,
                start_offset=self.piece.start_offset,
                end_offset=-1 if self.piece.end_offset is None else self.piece.end_offset,
            ),
            request_index=request_index,
            fetch_offset=self.asked_offset,
            batch_max_bytes=self.item.max_bytes,
            stream_id=self.item.stream_id,
            end_offset=-1 if self.item.end_offset is None else self.item.end_offset,
        )

    def question(self) -> Question:
        """Return what an answer is compared with."""
        assert self.piece is not None
        return Question(
            self.item.stream_id, self.asked_offset, self.piece.range_index, self.item.max_bytes
        )

    def may_go_on(self, next_offset: int, now_ms: float) -> bool:
        """Whether an empty answer may mean the end of a sealed range, with more behind it."""
        is_wanted = self.item.end_offset is None or next_offset < self.item.end_offset
        has_waited = 0 < self.asked_wait_ms <= now_ms - self.asked_ms
        return is_wanted and not has_waited

    def outcome(self, found: Found) -> FetchOutcome:
        """Return the answer of a task that found something."""
        return FetchOutcome(self.index, self.item.stream_id, found.payload, found.next_offset, None)

    def empty(self, next_offset: int, error: SbpError | None = None) -> FetchOutcome:
        """Return the answer of a task that found nothing, or failed."""
        return FetchOutcome(self.index, self.item.stream_id, memoryview(b""), next_offset, error)
