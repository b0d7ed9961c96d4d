"""DESCRIBE_TXNS at a range server: what is staged here and was not decided yet."""

from __future__ import annotations

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
