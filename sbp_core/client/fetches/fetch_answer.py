"""What a FETCH answer says of each item (SPEC "FETCH"), whichever dialect it is in. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sbp_core import limits
from sbp_core.client.fetches.places import PlacedBatches
from sbp_core.client.programs.calls import answered_items, decode_answer
from sbp_core.errors import ProtocolError, SbpError, StatusCode
from sbp_core.records import decode_envelope
from sbp_core.wire.frame import Frame
from sbp_core.wire.headers import FetchResponse, FetchResult
from sbp_core.wire.status import maybe_error


@dataclass(frozen=True, slots=True)
class Question:
    """What an item asked for; the range matters where places of batches may be the answer."""

    stream_id: int
    offset: int
    range_index: int = -1
    bytes_max: int = limits.FRAME_BYTES_MAX


@dataclass(frozen=True, slots=True)
class Found:
    """Whole batches, perhaps none, and where the next fetch goes on.

    `is_hasty`: none were there, or had room, when the server answered; it need not have waited.
    `is_silent`: nor did it say where to go on. With `placed` they are not in the payload, but to be
    read there.
    """

    payload: memoryview
    next_offset: int
    is_hasty: bool = False
    is_silent: bool = False
    placed: PlacedBatches | None = None

    def since(self, offset: int) -> Found:
        """Return this without the batches that end before an offset."""
        position, payload = 0, self.payload
        while position < len(payload):
            envelope = decode_envelope(payload, position)
            if envelope.base_offset + envelope.record_count > offset:
                break
            position += envelope.length_bytes
        return replace(self, payload=payload[position:])


def read_answer(
    frame: Frame, questions: Mapping[int, Question], *, maybe_places_of: str | None = None
) -> dict[int, Found | SbpError]:
    """Return what one response frame says, by request index. Raises SbpError if it is unusable.

    The payload holds the batches of the results in the order of the header. `questions` are those
    that are not answered yet. Places of batches are taken from the server at `maybe_places_of`.
    """
    response = decode_answer(frame, FetchResponse)
    payload = memoryview(frame.payload)
    answers: dict[int, Found | SbpError] = {}
    position = 0
    for index, result in answered_items(response, response.fetch_responses, questions):
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
            placed = None
            if result.places:
                placed = _placed(response, result, question, maybe_places_of)
            answers[index] = Found(payload[position:end], next_offset, placed=placed)
            position = end
            continue
        position += max(result.batch_length, 0)
        if error.code == StatusCode.NO_NEW_RECORD:
            is_silent = result.next_offset < 0
            known = question.offset if is_silent else result.next_offset
            answers[index] = Found(payload[:0], known, is_hasty=True, is_silent=is_silent)
        else:
            error.throttle_time_ms = max(response.throttle_time_ms, 0)
            answers[index] = error
    return answers


def _check_stream(result: FetchResult, index: int, question: Question) -> None:
    if result.stream_id not in {question.stream_id, -1}:
        raise ProtocolError(
            f"request index {index} asked for stream {question.stream_id}, the answer is of stream"
            f" {result.stream_id}"
        )


def _check_extent(question: Question, length_bytes: int, next_offset: int) -> None:
    """Raise ProtocolError if an answer is far longer than asked for, or goes where none can go.

    A server may add a batch to what there is room for, or more than one where they are small.
    """
    if length_bytes > question.bytes_max + limits.BATCH_BYTES_MAX:
        raise ProtocolError(
            f"the FETCH answer for stream {question.stream_id} has {length_bytes} bytes, where"
            f" {question.bytes_max} were asked for, and a batch has {limits.BATCH_BYTES_MAX} at"
            " most"
        )
    if not max(question.offset, 0) <= next_offset <= limits.OFFSET_PLAUSIBLE_MAX:
        raise ProtocolError(
            f"the FETCH answer for stream {question.stream_id} from offset {question.offset} goes"
            f" on at offset {next_offset}; expected one behind that, and"
            f" {limits.OFFSET_PLAUSIBLE_MAX} at most"
        )


def _placed(
    response: FetchResponse, result: FetchResult, question: Question, maybe_endpoint: str | None
) -> PlacedBatches:
    if maybe_endpoint is None:
        raise ProtocolError(f"places of batches of stream {question.stream_id}, unasked")
    if response.log_directory is None or response.log_instance is None or result.batch_length:
        raise ProtocolError(
            f"the FETCH answer for stream {question.stream_id} has places of batches without the"
            " log that they are in, or beside batches"
        )
    return PlacedBatches(
        maybe_endpoint,
        response.log_directory,
        response.log_instance,
        question.stream_id,
        question.range_index,
        result.places,
    )


def _measure(
    result: FetchResult, payload: memoryview, position: int, question: Question
) -> tuple[int, int]:
    """Return where a result's batches end in the payload, and the offset after them.

    Servers that do not say so say how many batches there are: they are walked.
    """
    if result.batch_length >= 0 and result.next_offset >= 0:
        end = position + result.batch_length
        if end > len(payload):
            raise ProtocolError(
                f"the FETCH answer for stream {question.stream_id} announces {result.batch_length}"
                f" octets, its frame has {len(payload) - position} left"
            )
        return end, result.next_offset
    next_offset = question.offset
    for _ in range(result.batch_count):
        envelope = decode_envelope(payload, position)
        position += envelope.length_bytes
        next_offset = envelope.base_offset + envelope.record_count
    return position, next_offset
