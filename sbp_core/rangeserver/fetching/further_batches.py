"""What answers of places may have besides what was asked for: the large batches behind.

Places take little room in an answer, and a question for a few batches takes a server as much time
as one for many.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from sbp_core import limits
from sbp_core.errors import LogError, SbpError
from sbp_core.log.durable_log import Log
from sbp_core.log.segment_rows import Slot
from sbp_core.rangeserver.fetching.fetch_items import Answer, wanted_behind
from sbp_core.rangeserver.fetching.slot_reading import Wanted, find_slots, maybe_recent_slots
from sbp_core.rangeserver.hosting import RangeHost


class FurtherBatches:
    """Finds the batches behind those of answers, LOCAL_READ_PLACES_BYTES_MAX in all at most."""

    def __init__(self, host: RangeHost, log: Log, readers: ThreadPoolExecutor) -> None:
        self._host = host
        self._log = log
        self._readers = readers

    def maybe_added(self, answers: Sequence[Answer]) -> list[Answer]:
        """Return the answers with the batches behind, as far as no disk has to be asked."""
        return [
            answer.with_more(self._recent(self._maybe_wanted(answer, len(answers))))
            for answer in answers
        ]

    async def added(self, answers: Sequence[Answer]) -> list[Answer]:
        """Return the answers with the batches behind."""
        return [
            answer.with_more(await self._found(self._maybe_wanted(answer, len(answers))))
            for answer in answers
        ]

    def _maybe_wanted(self, answer: Answer, answer_count: int) -> Wanted | None:
        room_bytes = limits.LOCAL_READ_PLACES_BYTES_MAX // answer_count - answer.length_bytes
        if not answer.slots or room_bytes <= 0:
            return None
        try:
            hosted = self._host.table.range_at(answer.item.stream_id, answer.range_index)
        except SbpError:  # it was deleted meanwhile
            return None
        return wanted_behind(hosted, answer, room_bytes)

    def _recent(self, wanted: Wanted | None) -> tuple[Slot, ...]:
        if wanted is not None:
            with suppress(LogError):
                return maybe_recent_slots(self._log, wanted) or ()
        return ()

    async def _found(self, wanted: Wanted | None) -> tuple[Slot, ...]:
        if wanted is not None:
            with suppress(LogError):
                return await find_slots(self._log, wanted, self._readers)
        return ()
