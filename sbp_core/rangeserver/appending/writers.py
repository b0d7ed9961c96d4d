"""Appends of writers who number their batches: the next one is appended, a repeat is answered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sbp_core import limits
from sbp_core.errors import (
    InvalidRequestError,
    StatusCode,
    ThrottledError,
    WriterGapError,
    WriterRepeatError,
    WriterUnknownError,
)
from sbp_core.log.states.writer_states import NumberedBatch, WriterStates
from sbp_core.rangeserver.appending.append_items import InFlight, PendingAppend
from sbp_core.records import are_same, digest_batch
from sbp_core.wire.status import shown
from sbp_core.wire.txn_id import is_writer_id

_SEQUENCE_MAX: Final = 2**63 - 2


@dataclass(frozen=True, slots=True)
class BatchNumber:
    """What a writer calls a batch of a stream."""

    stream_id: int
    writer_id: str
    sequence: int

    def __str__(self) -> str:
        return f"batch {self.sequence} of writer {self.writer_id} in stream {self.stream_id}"

    @property
    def writer(self) -> tuple[int, str]:
        """The writer in the stream."""
        return self.stream_id, self.writer_id


def check_number(number: BatchNumber) -> None:
    """Raise InvalidRequestError unless a batch can be called so."""
    if not is_writer_id(number.writer_id):
        raise _invalid(
            f"{shown(number.writer_id)} cannot name a writer: use 1 to"
            f" {limits.WRITER_ID_LENGTH_MAX} of A-Z a-z 0-9 . _ -"
        )
    if not 0 <= number.sequence <= _SEQUENCE_MAX:
        raise _invalid(
            f"writer {number.writer_id} names no sequence, or {number.sequence}; its first batch"
            " of a stream has sequence 0, each next one 1 more"
        )


class Writers:
    """The writers of all streams, with what was taken from them and is not written yet."""

    def __init__(self, known: WriterStates, in_flight: InFlight) -> None:
        self._known = known
        self._in_flight = in_flight

    def maybe_repeat(
        self, number: BatchNumber, record_count: int, batch: memoryview
    ) -> PendingAppend | NumberedBatch | None:
        """Return where a batch is, or will be, that was taken before; None for one that was not.

        Raises WriterRepeatError for one of which the place is not known any more, and
        InvalidRequestError if the one before was another batch: to acknowledge this one would be
        to lose it. Batches of old logs have no digest, and are told apart by their counts only.
        """
        if number.sequence > self._last_sequence(number):
            return None
        found: PendingAppend | NumberedBatch | None
        found = self._in_flight.of(number.writer).get(number.sequence)
        if found is None:
            state = self._known.maybe_writer(*number.writer)
            found = None if state is None else state.maybe_batch(number.sequence)
        if found is None:
            raise WriterRepeatError(
                StatusCode.WRITER_REPEAT,
                f"a {number} was appended before; only of the last {limits.WRITER_BATCHES_KEPT} it"
                " is known where, and what was in them",
            )
        if found.record_count != record_count:
            raise _invalid(
                f"{number} had {found.record_count} records, this one has {record_count}: two"
                " writers must not have the same id"
            )
        if not _is_repeat(found, batch):
            raise _invalid(
                f"{number} was appended before with other content, so this one was not stored: a"
                " retry must send the same bytes, and two writers must not have the same id. See"
                " what is in the stream, and go on as a new writer"
            )
        return found

    def check_next(self, number: BatchNumber) -> None:
        """Raise unless a batch, no repeat, is the next one, and may wait for the disk with others.

        WriterGapError, WriterUnknownError, ThrottledError if too many are waiting.
        """
        last = self._last_sequence(number)
        if number.sequence == last + 1:
            if len(self._in_flight.of(number.writer)) < limits.WRITER_BATCHES_KEPT:
                return
            raise ThrottledError(
                StatusCode.TOO_MANY_REQUESTS,
                f"{number} was not appended: {limits.WRITER_BATCHES_KEPT} batches of its writer"
                " wait for the disk already; try again later",
            )
        if last < 0:
            raise WriterUnknownError(
                StatusCode.WRITER_UNKNOWN,
                f"{number} is no first batch, and the writer is not known: a stream remembers the"
                f" {limits.WRITERS_PER_STREAM_MAX} writers that appended last. See what is in the"
                " stream, and go on as a new writer",
            )
        raise WriterGapError(
            StatusCode.WRITER_GAP,
            f"{number} was not appended: batch {last + 1} comes next",
            WriterGapError.encode_expected(last + 1),
        )

    def begin(
        self, number: BatchNumber, base_offset: int, record_count: int, batch: memoryview
    ) -> PendingAppend:
        """Take note of a batch that is appended; its entry is submitted next."""
        return self._in_flight.begin(
            number.writer, number.sequence, base_offset, record_count, batch
        )

    def _last_sequence(self, number: BatchNumber) -> int:
        """Return the last sequence that was taken from the writer, -1 if none is known."""
        last = self._in_flight.maybe_last(number.writer)
        if last is not None:
            return last
        state = self._known.maybe_writer(*number.writer)
        return -1 if state is None else state.last_sequence


def _is_repeat(found: PendingAppend | NumberedBatch, batch: memoryview) -> bool:
    """Whether a batch is the same as one before, if that is known."""
    if isinstance(found, PendingAppend):
        return are_same(found.batch, batch)
    return not found.digest or found.digest == digest_batch(batch)


def _invalid(message: str) -> InvalidRequestError:
    return InvalidRequestError(StatusCode.INVALID_REQUEST, message)
