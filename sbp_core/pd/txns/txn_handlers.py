"""COMMIT_TXN and DESCRIBE_TXNS: deciding transactions, and describing the decisions.

SPEC "COMMIT_TXN", "DESCRIBE_TXNS". The rules are in decisions.py; publishing.py makes committed
batches visible while the call waits.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from itertools import islice
from typing import Final

from msgspec.structs import replace

from sbp_core import limits
from sbp_core.client.operations.range_placement import cut_by_weight
from sbp_core.errors import (
    NotFoundError,
    StatusCode,
    StatusError,
    StorageError,
    TransportError,
    invalid,
)
from sbp_core.pd.metadata.store import MetadataStore, StoreThread
from sbp_core.pd.txns.decisions import (
    AbortedTxn,
    Manifest,
    Part,
    TxnRecord,
    Verdict,
    check_manifest,
    check_owner,
)
from sbp_core.pd.txns.ending import RangeServers
from sbp_core.pd.txns.publishing import STOPPING, UNANSWERED, Progress, Publisher, Reason
from sbp_core.server.answers import in_frames, in_parts
from sbp_core.server.dispatch import Answer, ServerCall
from sbp_core.server.runtime import Clock
from sbp_core.wire.headers import (
    CommitTxnRequest,
    CommitTxnResponse,
    DescribeTxnsRequest,
    DescribeTxnsResponse,
    StagedParts,
    TxnDescription,
    TxnPart,
)
from sbp_core.wire.status import SUCCESS, shown
from sbp_core.wire.txn_id import is_producer, is_txn_id, maybe_batch_of

_UNKNOWN: Final = -1
"""Stands for a number that is not known, or does not exist."""

_NAMED_STREAMS_MAX: Final = 10
"""Streams that a message names."""

_WAIT_SHARE: Final = 0.75
"""Share of the caller's timeout to wait for publication; the rest is for the answer."""

_FORGOTTEN: Final = Progress(is_published=True, given_up=())
"""The progress of a decision that is forgotten, which happens once it is published."""


class TxnHandlers:
    """Serves COMMIT_TXN and DESCRIBE_TXNS."""

    def __init__(
        self,
        store: StoreThread,
        publisher: Publisher,
        servers: RangeServers,
        clock: Clock,
        batch_number_leap_max: int,
    ) -> None:
        self._store = store
        self._publisher = publisher
        self._servers = servers
        self._clock = clock
        self._leap_max = batch_number_leap_max

    async def commit(self, call: ServerCall) -> Answer:
        """SPEC "COMMIT_TXN": commit a batch, give up its lost records, or abort transactions."""
        request = call.decode(CommitTxnRequest)
        if request.staged and not request.commit:
            raise invalid("`staged` is for commits: give up transactions by `parts`")
        if request.give_up:
            return await self._give_up(call, request)
        parts = tuple(
            Part(
                each.txn_id or "",
                each.stream_id,
                each.range_index,
                each.record_count,
                each.batch_count,
            )
            for each in request.parts
        )
        if not request.commit:
            return await self._abort(call, parts)
        return await self._commit(call, request, (*parts, *_staged_parts(request.staged)))

    async def _commit(
        self, call: ServerCall, request: CommitTxnRequest, parts: tuple[Part, ...]
    ) -> Answer:
        """Decide a batch, and wait for it to be published."""
        manifest = Manifest(
            request.producer or "",
            request.batch_number,
            parts,
            request.record_count,
            request.digest,
            _subject_of(call),
        )
        check_manifest(manifest)
        decision = await self._publisher.commit(manifest, self._clock.wall_ms(), self._leap_max)
        txn = decision.txn
        progress = _FORGOTTEN
        if txn is not None:
            progress = await self._publisher.open_decisions.wait(txn, _wait_ms(request))
        return _decision_answer(txn, progress, is_replay=decision.is_replay)

    async def _give_up(self, call: ServerCall, request: CommitTxnRequest) -> Answer:
        """Give up the lost records of a decided batch, so that later batches are published."""
        producer, batch_number = request.producer or "", request.batch_number
        if request.commit or request.parts or not is_producer(producer):
            raise invalid("to give up lost records of a batch, set producer and batch_number only")
        batch = f"batch {batch_number} of {producer}"
        subject = call.restricted_subject
        await self._store.run(lambda store: check_owner(store.transactions, producer, subject))
        txn = await self._decided(producer, batch_number, batch)
        message = None
        if txn is not None and txn.parts:
            reasons = await self._publisher.give_up(txn, _wait_ms(request))
            txn = await self._decided(producer, batch_number, batch)
            if txn is not None and txn.parts and not txn.given_up:
                raise refusal(batch, reasons)
            message = explain(reasons) or None
        progress = Progress(not txn.parts, txn.given_up) if txn else _FORGOTTEN
        return _decision_answer(txn, progress, is_replay=True, message=message)

    async def _decided(self, producer: str, batch_number: int, batch: str) -> TxnRecord | None:
        """Return the decision, None if it is forgotten. Raises NotFoundError without a decision."""
        decision = await self._store.run(
            lambda store: store.transactions.maybe_decided(producer, batch_number)
        )
        if decision is None:
            raise NotFoundError.of(f"{batch} was never committed")
        return decision.txn

    async def _abort(self, call: ServerCall, parts: tuple[Part, ...]) -> Answer:
        """Abort transactions, so that no client can commit them; drop their staged batches."""
        for part in parts:
            if not is_txn_id(part.txn_id):
                raise invalid(
                    f"{shown(part.txn_id)} is not the id of a transaction: use A-Z a-z 0-9 . _ - ~"
                )
        subject = call.restricted_subject
        verdicts = await self._store.run(
            lambda store: store.transactions.abort(parts, self._clock.wall_ms(), subject)
        )
        dead = [
            part
            for part, verdict in zip(parts, verdicts, strict=True)
            if verdict is not Verdict.KEPT
        ]
        self._servers.drop(part for part in dead if part.record_count >= 0)
        return in_frames(
            [_part_table(part) for part in dead],
            lambda some: CommitTxnResponse(status=SUCCESS, parts=some),
        )

    async def describe(self, call: ServerCall) -> Answer:
        """Describe the decisions of a producer, or of all, and the aborted transactions."""
        request = call.decode(DescribeTxnsRequest)
        if request.producer is not None and not is_producer(request.producer):
            raise invalid(f"{shown(request.producer)} cannot name a producer")
        producer, subject = request.producer, call.restricted_subject
        if producer is not None and subject is not None:
            await self._store.run(lambda store: check_owner(store.transactions, producer, subject))
        return in_parts(
            self._descriptions(producer),
            lambda some: DescribeTxnsResponse(status=SUCCESS, txns=some),
        )

    async def _descriptions(
        self, producer: str | None
    ) -> AsyncIterator[tuple[TxnDescription, ...]]:
        number = -1
        while txns := await self._store.run(_txns_after, number, producer):
            stuck = self._publisher.stuck_numbers()
            described = [
                piece
                for txn in txns
                for piece in _pieces(_description(txn, is_stuck=txn.txn_number in stuck))
            ]
            for some in cut_by_weight(described, lambda each: 1 + len(each.parts) + len(each.lost)):
                yield tuple(some)
            number = txns[-1].txn_number
        txn_id = ""
        while aborted := await self._store.run(_aborted_after, txn_id, producer):
            yield tuple(map(_aborted_description, aborted))
            txn_id = aborted[-1].txn_id


def _staged_parts(staged: Iterable[StagedParts]) -> Iterator[Part]:
    """Yield parts that are named column by column. Raises InvalidRequestError."""
    count = 0
    for each in staged:
        columns = (each.stream_ids, each.range_indexes, each.record_counts, each.batch_counts)
        count += len(each.stream_ids)
        if len(set(map(len, columns))) > 1 or count > limits.TXN_PARTS_MAX:
            raise invalid(
                f"a decision names at most {limits.TXN_PARTS_MAX} parts, in columns of one length"
            )
        for numbers in zip(*columns, strict=True):
            yield Part(each.txn_id or "", *numbers)


def _subject_of(call: ServerCall) -> str | None:
    """Return whose batch a request commits; None if that is not to be checked."""
    identity = call.peer.standing.identity
    return None if identity is None or identity.is_server else identity.subject


def _decision_answer(
    txn: TxnRecord | None, progress: Progress, *, is_replay: bool, message: str | None = None
) -> Answer:
    """Return the answer with a decision, and how far it is published."""
    return in_frames(
        [_part_table(part) for part in progress.given_up],
        lambda some: CommitTxnResponse(
            status=replace(SUCCESS, message=message),
            is_replay=is_replay,
            is_published=progress.is_published,
            record_count=_UNKNOWN if txn is None else txn.record_count,
            digest=b"" if txn is None else txn.digest,
            parts=some,
        ),
    )


def explain(reasons: Mapping[int, Reason]) -> str:
    """Return why publications are not given up, by stream, with a remedy."""
    some = [
        f"stream {stream_id}: {reason}{_remedy(reason)}"
        for stream_id, reason in islice(reasons.items(), _NAMED_STREAMS_MAX)
    ]
    left_out_count = len(reasons) - _NAMED_STREAMS_MAX
    if left_out_count > 0:
        some.append(f"and {left_out_count} more streams")
    return "; ".join(some)


def refusal(batch: str, reasons: Mapping[int, Reason]) -> StatusError:
    """Return the error for a batch of which nothing is given up."""
    message = (
        f"{batch} waits, and is not given up: only what a range server reports as incomplete is."
        f" {explain(reasons)}"
    )
    for unsettled in (STOPPING, UNANSWERED):
        if unsettled in reasons.values():
            return type(unsettled).of(message)
    return invalid(message)


def _remedy(reason: Reason) -> str:
    match reason:
        case TransportError():
            return " (it is published when that server is reachable again)"
        case StorageError(code=StatusCode.RS_DATA_CORRUPTED):
            return " (stop the server that has it, run `sbp log repair`, then give up what is lost)"
    return ""


def _wait_ms(request: CommitTxnRequest) -> float:
    wait_ms = _WAIT_SHARE * (request.timeout_ms or limits.REQUEST_TIMEOUT_MS)
    return min(wait_ms, limits.REQUEST_TIMEOUT_MS)


def _txns_after(store: MetadataStore, number: int, producer: str | None) -> list[TxnRecord]:
    return store.transactions.txns_after(number, limits.TXNS_PER_FRAME, producer)


def _aborted_after(store: MetadataStore, txn_id: str, producer: str | None) -> list[AbortedTxn]:
    return store.transactions.aborted_after(txn_id, limits.RESULTS_PER_FRAME, producer)


def _description(txn: TxnRecord, *, is_stuck: bool) -> TxnDescription:
    if txn.parts:
        state = "stuck" if is_stuck else "publishing"
    else:
        state = "lost" if txn.given_up else "published"
    return TxnDescription(
        producer=txn.producer,
        batch_number=txn.batch_number,
        parts=tuple(map(_part_table, txn.parts)),
        lost=tuple(map(_part_table, txn.given_up)),
        state=state,
        record_count=txn.record_count,
        digest=txn.digest,
        decided_at_ms=txn.decided_at_ms,
    )


def _pieces(described: TxnDescription) -> Iterator[TxnDescription]:
    """Yield a description in pieces that fit into a header, by its parts."""
    size = limits.STREAMS_PER_CALL
    for at in range(0, max(len(described.parts), len(described.lost), 1), size):
        end = at + size
        yield replace(described, parts=described.parts[at:end], lost=described.lost[at:end])


def _aborted_description(txn: AbortedTxn) -> TxnDescription:
    producer, batch_number = maybe_batch_of(txn.txn_id) or (None, _UNKNOWN)
    return TxnDescription(
        producer=producer,
        batch_number=batch_number,
        parts=(TxnPart(txn_id=txn.txn_id),),
        state="aborted",
        record_count=_UNKNOWN,
        decided_at_ms=txn.aborted_at_ms,
    )


def _part_table(part: Part) -> TxnPart:
    return TxnPart(
        part.txn_id, part.stream_id, part.record_count, part.range_index, part.batch_count
    )
