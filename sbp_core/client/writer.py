"""Writers: who appends under an id, and numbers the batches, so that each is there once."""

from __future__ import annotations

import threading
import uuid
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

from sbp_core import limits
from sbp_core.client.appends.numbering import Marks, Numbering
from sbp_core.client.types import AppendItem, RangeInfo
from sbp_core.errors import ConfigurationError
from sbp_core.session.negotiation import FeatureName
from sbp_core.wire.txn_id import is_writer_id


class Writer:
    """Numbers the batches of one who appends, for each stream from 0 (SPEC "APPEND", extension).

    Servers append each number once, however often it comes. So an append of unknown outcome is
    tried again without harm. One that was given up stays in doubt: the next append to the stream
    has to begin with the same batches.

    A writer is for one append at a time, with any client, and ends with the process: an id is not
    to be used again. Raises ConfigurationError for one that is not 1 to WRITER_ID_LENGTH_MAX
    letters, digits, `.`, `_` and `-`.
    """

    def __init__(self, writer_id: str | None = None) -> None:
        self.writer_id: Final = uuid.uuid4().hex if writer_id is None else writer_id
        if not is_writer_id(self.writer_id):
            raise ConfigurationError(
                f"{self.writer_id!a} cannot name a writer: expected 1 to"
                f" {limits.WRITER_ID_LENGTH_MAX} letters, digits, '.', '_' or '-'"
            )
        self._streams: dict[int, _Stream] = {}
        self._at_work = threading.Lock()

    def begin(self) -> Numbering:
        """Return how an append numbers its batches; `end` of that comes next.

        Raises ConfigurationError if the writer is at work.
        """
        if not self._at_work.acquire(blocking=False):
            raise ConfigurationError(
                f"writer {self.writer_id} is at work: one append at a time, or another writer"
            )
        return _WriterNumbering(self.writer_id, self._streams, self._at_work)


@dataclass(slots=True)
class _Stream:
    """Batches of a stream that are not known to be appended; `first` is the number of the first.

    But for those that are `done`: a server has them, though nothing was heard of earlier ones. An
    append begins with those that the one before it left, numbers below `doubted_end`; the next one
    it is given has the number `next`.
    """

    first: int = 0
    batches: list[bytes] = field(default_factory=list)
    done: set[int] = field(default_factory=set)
    next: int = 0
    doubted_end: int = 0

    def begin(self) -> None:
        self.next = self.first
        self.doubted_end = self.first + len(self.batches)

    def is_doubted(self, sequence: int) -> bool:
        return sequence < self.doubted_end

    def give(self, batch: bytes) -> int:
        sequence = self.next
        self.next += 1
        if not self.is_doubted(sequence):
            self.batches.append(batch)
        return sequence

    def on_appended(self, sequence: int) -> None:
        self.done.add(sequence)
        while self.first in self.done:
            self.done.remove(self.first)
            del self.batches[0]
            self.first += 1

    def end(self, doubted: Collection[int]) -> None:
        """Keep what may be there; the numbers of what follows are free again."""
        end = self.first
        while end in doubted or end in self.done or self.is_doubted(end):
            end += 1
        del self.batches[end - self.first :]
        self.done.clear()


class _WriterNumbering(Numbering):
    """One append: batches have the numbers that come next in their streams.

    Those that an earlier append left in doubt come first, and are compared.
    """

    feature = FeatureName.IDEMPOTENT_APPEND
    is_ordered = True
    stream_batches_max = limits.WRITER_BATCHES_KEPT

    def __init__(
        self, writer_id: str, streams: dict[int, _Stream], at_work: threading.Lock
    ) -> None:
        self._writer_id = writer_id
        self._all_streams = streams
        self._at_work = at_work
        self._count = 0
        self._streams: dict[int, _Stream] = {}
        """Those that this append is for."""
        self._numbers: dict[int, tuple[_Stream, int]] = {}
        """Of batches that are not appended yet."""

    def add(self, items: Sequence[AppendItem]) -> Collection[int]:
        """Give batches their numbers; return those that an earlier append left in doubt.

        Raises ConfigurationError if others are in doubt.
        """
        self._check_doubted(items)
        doubted = []
        for index, item in enumerate(items, self._count):
            stream = self._streams[item.stream_id]
            sequence = stream.give(item.batch)
            self._numbers[index] = stream, sequence
            if stream.is_doubted(sequence):
                doubted.append(index)
        self._count += len(items)
        return doubted

    def marks(self, index: int, piece: RangeInfo) -> Marks:
        """Return the writer's id and number."""
        return Marks(self._writer_id, self._numbers[index][1])

    def on_appended(self, index: int) -> None:
        """Go on in the stream."""
        stream, sequence = self._numbers.pop(index)
        stream.on_appended(sequence)

    def end(self, in_doubt: Collection[int], *, is_complete: bool) -> None:
        """Leave in doubt what is; all else was surely not appended."""
        doubted: dict[int, set[int]] = {}
        for index in in_doubt:
            stream, sequence = self._numbers[index]
            doubted.setdefault(id(stream), set()).add(sequence)
        for stream in self._streams.values():
            stream.end(doubted.get(id(stream), set()))
        self._at_work.release()

    def _check_doubted(self, items: Sequence[AppendItem]) -> None:
        counts: Counter[int] = Counter()
        for item in items:
            if item.stream_id not in self._streams:
                stream = self._all_streams.setdefault(item.stream_id, _Stream())
                self._streams[item.stream_id] = stream
                stream.begin()
            stream = self._streams[item.stream_id]
            sequence = stream.next + counts[item.stream_id]
            counts[item.stream_id] += 1
            if stream.is_doubted(sequence) and (
                stream.batches[sequence - stream.first] != item.batch
            ):
                raise ConfigurationError(
                    f"an earlier append of writer {self._writer_id} to stream {item.stream_id} is"
                    " in doubt: append the same batches again, or go on with another writer"
                )
