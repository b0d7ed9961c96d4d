"""What is staged here and not decided yet: listed (DESCRIBE_TXNS), and dropped when it is dead.

Only the placement driver knows what will never be published. It is asked about what has been staged
for a while: first whether its batch was decided, if the id tells one; after the timeout it is asked
to give it up.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

from sbp_core import limits
from sbp_core.client.programs.range_placement import chunks
from sbp_core.log.states.staged_states import StagedStates, Staging
from sbp_core.server.answers import respond_all
from sbp_core.server.dispatch import ServerCall
from sbp_core.wire.headers import (
    DescribeTxnsRequest,
    DescribeTxnsResponse,
    TxnDescription,
    TxnPart,
)
from sbp_core.wire.status import SUCCESS
from sbp_core.wire.txn_id import maybe_batch_of

_STATE = "staged"


class OpenTxnsHandler:
    """Serves DESCRIBE_TXNS."""

    def __init__(self, staged: StagedStates) -> None:
        self._staged = staged

    async def __call__(self, call: ServerCall) -> None:
        """Answer one entry for what is staged under an id in a range: of a producer, or all."""
        producer = call.decode(DescribeTxnsRequest).producer
        found = map(_description, self._staged.stagings())
        await respond_all(
            call,
            [each for each in found if producer is None or each.producer == producer],
            lambda part: DescribeTxnsResponse(txns=part, status=SUCCESS),
        )


def _description(staging: Staging) -> TxnDescription:
    producer, batch_number = maybe_batch_of(staging.txn_id) or (None, -1)
    record_count = staging.record_count
    part = TxnPart(
        staging.txn_id,
        staging.stream_id,
        record_count,
        staging.range_index,
        staging.batch_count,
    )
    return TxnDescription(
        producer=producer,
        batch_number=batch_number,
        parts=(part,),
        state=_STATE,
        record_count=record_count,
        staged_at_ms=staging.staged_at_ms,
    )


_LOG: Final = logging.getLogger(__name__)

_ONLY_IF_DECIDED: Final = -1
"""As the record count of a part: it is not to be given up, unless it is dead already."""


class TxnSource(Protocol):
    """Who says which transactions will never be published."""

    async def find_dead(self, parts: Sequence[TxnPart]) -> list[TxnPart]:
        """Return those of what is staged that are given up, now or before."""


Drop = Callable[[int, int, Sequence[str]], Awaitable[int]]
"""Drops what is staged in a range of a stream under some ids; tells how many records that were."""


class StagedSweep:
    """Looks through what is staged on this server, whenever it is told to."""

    def __init__(
        self, staged: StagedStates, source: TxnSource, drop: Drop, timeout_ms: int
    ) -> None:
        self._staged = staged
        self._source = source
        self._drop = drop
        self._timeout_ms = timeout_ms

    async def sweep(self, now_ms: int) -> None:
        """Ask about what is old, and drop what the placement driver says is dead.

        Raises SbpError when it cannot be asked, or the log cannot be written.
        """
        questions = (self._maybe_question(each, now_ms) for each in self._staged.stagings())
        asked = [part for part in questions if part is not None]
        if not asked:
            return
        by_range: dict[tuple[int, int], list[str]] = defaultdict(list)
        for part in await self._source.find_dead(asked):
            by_range[part.stream_id, part.range_index].append(part.txn_id or "")
        drops = [
            self._drop_some(*key, chunk)
            for key, txn_ids in by_range.items()
            for chunk in chunks(txn_ids)
        ]
        outcomes = await asyncio.gather(*drops, return_exceptions=True)
        for outcome in outcomes:
            if outcome is not None:
                raise outcome

    async def _drop_some(self, stream_id: int, range_index: int, txn_ids: Sequence[str]) -> None:
        record_count = await self._drop(stream_id, range_index, txn_ids)
        if record_count:
            _LOG.info(
                "%d records that were staged in range %d of stream %d are dropped: %s",
                record_count,
                range_index,
                stream_id,
                ", ".join(txn_ids),
            )

    def _maybe_question(self, staging: Staging, now_ms: int) -> TxnPart | None:
        """Return what to ask; None as long as it is new.

        What was staged in the future, by a clock that was set back, may have any age.
        """
        age_ms = now_ms - staging.staged_at_ms
        is_worth_asking = age_ms >= limits.STAGED_ASK_MS or age_ms < 0
        if age_ms >= self._timeout_ms:
            record_count = staging.record_count
        elif maybe_batch_of(staging.txn_id) and is_worth_asking:
            record_count = _ONLY_IF_DECIDED
        else:
            return None
        return TxnPart(staging.txn_id, staging.stream_id, record_count, staging.range_index)
