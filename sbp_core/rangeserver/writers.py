"""Appends of writers who number their batches: the next one is appended, a repeat is answered.

What the log says of a writer runs behind: its batches that wait for the disk are kept here. So a
repeat of one of these is answered when the original is, and never before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
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
from sbp_core.log.writer_states import NumberedBatch, WriterStates
from sbp_core.wire.status import shown
from sbp_core.wire.writer_id import is_writer_id

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


@dataclass(slots=True, eq=False)
class NumberedAppend:
    """A batch of a writer that waits for the disk; `written` ends with its time in ms."""

    number: BatchNumber
    base_offset: int
    record_count: int
    written: asyncio.Future[int] | None = None

    def placed(self) -> NumberedBatch:
        """Return where it is, once it is written. Raises LogWriteError if it is not."""
        assert self.written is not None
        return NumberedBatch(self.base_offset, self.record_count, self.written.result())


class Writers:
    """The writers of all streams, with what was taken from them and is not written yet."""

    def __init__(self, known: WriterStates) -> None:
        self._known = known
        self._in_flight: dict[tuple[int, str], dict[int, NumberedAppend]] = {}
        """Of each writer in a stream its batches by sequence, in that order."""

    def maybe_repeat(
        self, number: BatchNumber, record_count: int
    ) -> NumberedAppend | NumberedBatch | None:
        """Return where a batch is, or will be, that was taken before; None for one that was not.

        Raises WriterRepeatError for one of which the place is not known any more, and
        InvalidRequestError if the one before was another batch.
        """
        if number.sequence > self._last_sequence(number):
            return None
        in_flight = self._in_flight.get(number.writer, {})
        found: NumberedAppend | NumberedBatch | None = in_flight.get(number.sequence)
        if found is None:
            state = self._known.maybe_writer(*number.writer)
            found = None if state is None else state.maybe_batch(number.sequence)
        if found is None:
            raise WriterRepeatError(
                StatusCode.WRITER_REPEAT,
                f"{number} was appended before; only of the last {limits.WRITER_BATCHES_KEPT} it is"
                " known where",
            )
        if found.record_count != record_count:
            raise _invalid(
                f"{number} had {found.record_count} records, this one has {record_count}: two"
                " writers must not have the same id"
            )
        return found

    def check_next(self, number: BatchNumber) -> None:
        """Raise unless a batch, no repeat, is the next one, and may wait for the disk with others.

        WriterGapError, WriterUnknownError, ThrottledError if too many are waiting.
        """
        last = self._last_sequence(number)
        if number.sequence == last + 1:
            if len(self._in_flight.get(number.writer, ())) < limits.WRITER_BATCHES_KEPT:
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

    def begin(self, number: BatchNumber, base_offset: int, record_count: int) -> NumberedAppend:
        """Take note of a batch that is appended; `follow` comes next."""
        append = NumberedAppend(number, base_offset, record_count)
        self._in_flight.setdefault(number.writer, {})[number.sequence] = append
        return append

    def follow(self, appends: Iterable[NumberedAppend], written: asyncio.Future[int]) -> None:
        """Let the batches that were begun wait for `written`, which nobody must cancel.

        Those that wait for something else already, and second mentions, are left as they are.
        """
        begun = []
        for append in appends:
            if append.written is None:
                append.written = written
                begun.append(append)
        written.add_done_callback(partial(self._on_written, begun))

    def _on_written(self, begun: Iterable[NumberedAppend], written: asyncio.Future[int]) -> None:
        """Forget what the log knows by now; after a failure nothing it knows can be relied on."""
        if written.exception() is not None:
            return
        for append in begun:
            in_flight = self._in_flight[append.number.writer]
            del in_flight[append.number.sequence]
            if not in_flight:
                del self._in_flight[append.number.writer]

    def _last_sequence(self, number: BatchNumber) -> int:
        """Return the last sequence that was taken from the writer, -1 if none is known."""
        in_flight = self._in_flight.get(number.writer)
        if in_flight:
            return next(reversed(in_flight))
        state = self._known.maybe_writer(*number.writer)
        return -1 if state is None else state.last_sequence


def _invalid(message: str) -> InvalidRequestError:
    return InvalidRequestError(StatusCode.INVALID_REQUEST, message)
