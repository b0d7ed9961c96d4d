"""Staged batches whose entries are damaged: where they were is known, but not in whose transaction.

The next intact batch of that transaction tells how many are missing in front of it. All of those
are lost, so if no more are lost there than are missing, they are the ones.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sbp_core.log.entry import Location


@dataclass(frozen=True, slots=True)
class StagedBatch:
    """A batch that was staged in a range: where it was written first, its records, and when."""

    range_index: int
    born_at: Location
    record_count: int
    time_ms: int


class LostBatches:
    """The lost batches of one stream of which it is not known whose they are, as they were read."""

    def __init__(self) -> None:
        self._lost: list[StagedBatch] = []

    def add(self, batch: StagedBatch) -> None:
        """Take note of one."""
        self._lost.append(batch)

    def take(self, range_index: int, position: int, count: int) -> list[StagedBatch]:
        """Return the batches of a range that were written from `position` on; they are claimed.

        None is, unless there are `count` of them.
        """
        found = [
            each
            for each in self._lost
            if each.range_index == range_index and each.born_at.position >= position
        ]
        if len(found) != count:
            return []
        self.forget({each.born_at.position for each in found})
        return found

    def forget(self, positions: Collection[int]) -> None:
        """Forget those that were written at `positions`: whose they were is known."""
        if self._lost:
            self._lost = [each for each in self._lost if each.born_at.position not in positions]
