"""Writers: who appends under an id, and numbers the batches, so that each is there once."""

from __future__ import annotations

import threading
import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from sbp_core import limits
from sbp_core.client.types import AppendItem
from sbp_core.errors import ConfigurationError
from sbp_core.wire.writer_id import is_writer_id


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
        self._next: dict[int, int] = {}
        self._in_doubt: dict[int, tuple[bytes, ...]] = {}
        self._at_work = threading.Lock()

    def begin(self, items: Sequence[AppendItem]) -> list[int]:
        """Return the sequences of batches to append; `end` comes next.

        Raises ConfigurationError if the writer is at work, or others are in doubt.
        """
        if not self._at_work.acquire(blocking=False):
            raise ConfigurationError(
                f"writer {self.writer_id} is at work: one append at a time, or another writer"
            )
        try:
            return self._number(items)
        except ConfigurationError:
            self._at_work.release()
            raise

    def doubted(self, items: Sequence[AppendItem]) -> set[int]:
        """Return the indexes of the `items` to append that an earlier append left in doubt."""
        counts: Counter[int] = Counter()
        found = set()
        for index, item in enumerate(items):
            if counts[item.stream_id] < len(self._in_doubt.get(item.stream_id, ())):
                found.add(index)
            counts[item.stream_id] += 1
        return found

    def end(
        self,
        items: Sequence[AppendItem],
        appended: Collection[int],
        uncertain: Collection[int],
    ) -> None:
        """Take in what became of `items`, by their indexes; all others were surely not appended."""
        by_stream: dict[int, list[int]] = {}
        for index, item in enumerate(items):
            by_stream.setdefault(item.stream_id, []).append(index)
        for stream_id, own in by_stream.items():
            done_count = _prefix_length(index in appended for index in own)
            left = own[done_count:]
            self._next[stream_id] = self._next.get(stream_id, 0) + done_count
            doubted = self._in_doubt.pop(stream_id, ())[done_count:]
            fresh = tuple(
                items[index].batch
                for index in left[: _prefix_length(index in uncertain for index in left)]
            )
            if doubted or fresh:
                self._in_doubt[stream_id] = max(doubted, fresh, key=len)
        self._at_work.release()

    def _number(self, items: Sequence[AppendItem]) -> list[int]:
        sequences = []
        counts: dict[int, int] = {}
        for item in items:
            count = counts.get(item.stream_id, 0)
            doubted = self._in_doubt.get(item.stream_id, ())
            if count < len(doubted) and doubted[count] != item.batch:
                raise ConfigurationError(
                    f"an earlier append of writer {self.writer_id} to stream {item.stream_id} is in"
                    " doubt: append the same batches again, or go on with another writer"
                )
            sequences.append(self._next.get(item.stream_id, 0) + count)
            counts[item.stream_id] = count + 1
        return sequences


def _prefix_length(flags: Iterable[bool]) -> int:
    """Return how many are true before the first that is not."""
    length = 0
    for flag in flags:
        if not flag:
            break
        length += 1
    return length
