"""One item of a fetch: its question, and its part of an answer (SPEC "FETCH"). Pure.

Read fetching.py first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from msgspec import structs

from sbp_core import limits
from sbp_core.client.operations.calls import Attempts, decode_answer
from sbp_core.client.operations.replicas import Turn
from sbp_core.client.types import FetchItem, FetchOutcome, RangeInfo, ReceivedBatches
from sbp_core.errors import ProtocolError, SbpError
from sbp_core.record_sizes import LARGEST
from sbp_core.records import decode_envelope
from sbp_core.wire.frame import Frame
from sbp_core.wire.headers import FetchInfo, FetchResponse, FetchResult, KeyBounds, StreamRange
from sbp_core.wire.status import maybe_error

_SELECTIONS_BYTES_MAX: Final = limits.HEADER_UNUSED_BYTES_MAX // 2
_TABLE_BYTES: Final = 160
"""Bytes of a projection, a filter or bounds beside its bits, keys and names, at most."""


@dataclass(frozen=True, slots=True)
class Question:
    """The part of an item that its answer is compared with."""

    stream_id: int
    offset: int
    bytes_max: int = LARGEST.frame_bytes


def read_answer(
    frame: Frame, questions: Mapping[int, Question]
) -> dict[int, ReceivedBatches | SbpError]:
    """Return the answers in a response frame, by request index. Raises SbpError if it is unusable.

    The payload has the batches of the results in the order of the header. `questions` are not
    answered yet.
    """
    response = decode_answer(frame, FetchResponse)
    payload = memoryview(frame.payload)
    answers: dict[int, ReceivedBatches | SbpError] = {}
    position = 0
    for result in response.fetch_responses:
        index = result.request_index
        question = questions.get(index)
        if question is None or index in answers:
            raise ProtocolError(
                f"a FETCH answer for request index {index}, which was not asked or is answered"
                " already"
            )
        error = maybe_error(result.status)
        if error is None:
            _check_stream(result, index, question)
            end, next_offset = _measure(result, payload, position, question)
            _check_extent(question, end - position, next_offset)
            answers[index] = ReceivedBatches(payload[position:end], next_offset)
            position = end
        else:
            position += max(result.batch_length, 0)
            error.throttle_time_ms = max(response.throttle_time_ms, 0)
            answers[index] = error
    return answers


def bounded_selections(infos: Iterable[FetchInfo]) -> Iterator[FetchInfo]:
    """Yield the items of a request, without projections and filters where these get too long.

    A server without these extensions refuses a header with more unknown bytes than known ones. An
    item without projections and filters gets all columns and batches.
    """
    left_bytes = _SELECTIONS_BYTES_MAX
    for info in infos:
        left_bytes -= sum(
            len(each.nodes) + len(each.buffers) + _TABLE_BYTES for each in info.projections
        )
        left_bytes -= sum(
            _TABLE_BYTES + sum(map(_bounds_bytes, each.bounds)) for each in info.filters
        )
        yield info if left_bytes >= 0 else structs.replace(info, projections=(), filters=())


def _bounds_bytes(bounds: KeyBounds) -> int:
    name = (bounds.column or "").encode()
    return len(name) + len(bounds.least) + len(bounds.most) + _TABLE_BYTES


def _check_stream(result: FetchResult, index: int, question: Question) -> None:
    if result.stream_id not in {question.stream_id, -1}:
        raise ProtocolError(
            f"request index {index} asked for stream {question.stream_id}, the answer is of stream"
            f" {result.stream_id}"
        )


def _check_extent(question: Question, length_bytes: int, next_offset: int) -> None:
    """Raise ProtocolError if an answer is much too long, or goes on at an impossible offset.

    A server may exceed `bytes_max` by a batch, or by several small ones.
    """
    if length_bytes > question.bytes_max + LARGEST.batch_bytes:
        raise ProtocolError(
            f"the FETCH answer for stream {question.stream_id} has {length_bytes} bytes, where"
            f" {question.bytes_max} were asked for, and a batch has {LARGEST.batch_bytes} at"
            " most"
        )
    if not max(question.offset, 0) <= next_offset <= limits.OFFSET_PLAUSIBLE_MAX:
        raise ProtocolError(
            f"the FETCH answer for stream {question.stream_id} from offset {question.offset} goes"
            f" on at offset {next_offset}; expected one behind that, and"
            f" {limits.OFFSET_PLAUSIBLE_MAX} at most"
        )


def _measure(
    result: FetchResult, payload: memoryview, position: int, question: Question
) -> tuple[int, int]:
    """Return where a result's batches end in the payload, and the offset after them.

    The batches are decoded if the server does not know the extension `next_offset`.
    """
    end = position + result.batch_length
    if not position <= end <= len(payload):
        raise ProtocolError(
            f"the FETCH answer for stream {question.stream_id} announces {result.batch_length}"
            f" bytes, its frame has {len(payload) - position} left"
        )
    if result.next_offset >= 0:
        return end, result.next_offset
    next_offset = question.offset
    while position < end:
        envelope = decode_envelope(payload[:end], position)
        position += envelope.length_bytes
        next_offset = envelope.base_offset + envelope.record_count
    return end, next_offset


@dataclass(slots=True)
class FetchTask:
    """An unanswered item: waiting until `due_ms`, or asked for in `piece` since `asked_ms`."""

    index: int
    item: FetchItem
    offset: int
    attempts: Attempts
    due_ms: float
    piece: RangeInfo | None = None
    asked_ms: float = 0
    asked_wait_ms: int = 0
    turn: Turn = field(default_factory=Turn)
    follow_count: int = 0
    was_out_of_range: bool = False

    @property
    def answer_bytes(self) -> int:
        """Bytes of the largest answer to the item: a batch more than it asks for."""
        return self.item.max_bytes + LARGEST.batch_bytes

    def info(self, request_index: int) -> FetchInfo:
        """Return the item's table in a FETCH request."""
        assert self.piece is not None
        return FetchInfo(
            stream_range=StreamRange(
                stream_id=self.item.stream_id,
                range_index=self.piece.range_index,
                start_offset=self.piece.start_offset,
                end_offset=-1 if self.piece.end_offset is None else self.piece.end_offset,
            ),
            request_index=request_index,
            fetch_offset=self.offset,
            batch_max_bytes=self.item.max_bytes,
            stream_id=self.item.stream_id,
            end_offset=-1 if self.item.end_offset is None else self.item.end_offset,
            projections=self.item.projections,
            filters=self.item.filters,
        )

    def question(self) -> Question:
        """Return the question that an answer is compared with."""
        return Question(self.item.stream_id, self.offset, self.item.max_bytes)

    def is_lacking(self, found: ReceivedBatches) -> bool:
        """Whether a replica of a sealed range lacks the records that it was asked for."""
        piece = self.piece
        if piece is None or piece.end_offset is None or not piece.is_replicated:
            return False
        return not found.payload and 0 <= found.next_offset <= self.offset < piece.end_offset

    def may_go_on(self, next_offset: int, now_ms: float) -> bool:
        """Whether an empty answer may mean the end of a sealed range, with more behind it."""
        is_wanted = self.item.end_offset is None or next_offset < self.item.end_offset
        has_waited = 0 < self.asked_wait_ms <= now_ms - self.asked_ms
        return is_wanted and not has_waited

    def outcome(self, batches: ReceivedBatches) -> FetchOutcome:
        """Return the answer of a task that found something."""
        return FetchOutcome(self.index, self.item.stream_id, batches, None)

    def empty(self, next_offset: int, error: SbpError | None = None) -> FetchOutcome:
        """Return the answer of a task that found nothing, or failed."""
        nothing = ReceivedBatches(memoryview(b""), next_offset)
        return FetchOutcome(self.index, self.item.stream_id, nothing, error)
