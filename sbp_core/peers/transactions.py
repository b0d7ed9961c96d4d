"""Calls of a placement driver to range servers, about the transactions that it has decided.

Each of these is one call to one server, or a few. They are not retried here; all may be repeated by
a caller that keeps track of the results. They need no placement, so any client will do:

    async with AsyncClient(endpoint) as client:
        ended = await end_txns(client, server, [TxnEnd(7, 0, ("a.5.x", "a.5.y"), record_count=20)])
        await copy_staged(client, old_server, part, new_server, new_range_index)

Raises UnsupportedError where a server does not know transactions; nothing is sent then.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass

from sbp_core import limits
from sbp_core.client.operations.append_state import AppendFrame
from sbp_core.client.operations.calls import decode_answer, unanswered
from sbp_core.client.operations.fetch_answer import Question, read_answer
from sbp_core.client.operations.numbering import Marks
from sbp_core.client.operations.open_calls import Call
from sbp_core.client.operations.range_placement import cut_by_weight
from sbp_core.client.types import RangeInfo, ReceivedBatches, TxnPart
from sbp_core.errors import NotFoundError, ProtocolError, SbpError, TxnIncompleteError
from sbp_core.peers.links import Caller
from sbp_core.records import split_envelopes
from sbp_core.session.negotiation import FeatureName
from sbp_core.wire.headers import (
    AppendResponse,
    EndTxnInfo,
    EndTxnRequest,
    EndTxnResponse,
    FetchInfo,
    FetchRequest,
    StreamRange,
)
from sbp_core.wire.opcodes import Opcode
from sbp_core.wire.status import check_status, maybe_error
from sbp_core.wire.txn_id import copy_of
from sbp_core.wording import counted


@dataclass(frozen=True, slots=True)
class TxnEnd:
    """The end of transactions in a range: publish what they staged there, in this order.

    `record_count` is how many records that has to be, negative for any number. If not
    `is_commit`, it is dropped; `range_index` -1 means in all ranges of the stream then.
    """

    stream_id: int
    range_index: int
    txn_ids: tuple[str, ...]
    is_commit: bool = True
    record_count: int = -1


@dataclass(frozen=True, slots=True)
class Ended:
    """The records that became readable, from `base_offset` on (-1 if none did)."""

    base_offset: int
    record_count: int


async def end_txns(
    client: Caller,
    endpoint: str,
    ends: Sequence[TxnEnd],
    *,
    timeout_ms: int = limits.REQUEST_TIMEOUT_MS,
) -> list[Ended | SbpError]:
    """End transactions at a range server (SPEC "END_TXN"); return the result of each of `ends`.

    Those of one frame share a sync. Errors of one: TxnIncompleteError if other records are staged,
    RangeSealedError if the range takes none any more, TxnEndedError if they were dropped,
    InvalidRequestError if they were published in another order, NotFoundError if the stream was
    deleted. Raises SbpError when the server does not answer.
    """
    outcomes: list[Ended | SbpError] = []
    parts = cut_by_weight(ends, lambda end: 1 + len(end.txn_ids), limits.STREAMS_PER_CALL)
    for part in parts:
        outcomes += await _end_frame(client, endpoint, part, timeout_ms)
    return outcomes


async def staged_batches(
    client: Caller, endpoint: str, part: TxnPart, *, timeout_ms: int = limits.REQUEST_TIMEOUT_MS
) -> AsyncIterator[list[bytes]]:
    """Yield the batches that are staged in a range, in order, a frame's worth at a time.

    SPEC "FETCH", with `txn_id`. Raises NotFoundError if nothing is staged there,
    RangeNotFoundError if the server does not have the range.
    """
    sequence = 0
    while True:
        found = await _read_staged(client, endpoint, part, sequence, timeout_ms)
        batches = [bytes(each) for each in _split(found.payload)]
        if not batches:
            return
        yield batches
        if found.next_offset <= sequence:
            raise ProtocolError(
                f"{endpoint} goes on at batch {found.next_offset} of what is staged in transaction"
                f" {part.txn_id}, behind batch {sequence}"
            )
        sequence = found.next_offset


async def stage(
    client: Caller,
    endpoint: str,
    where: TxnPart,
    first_sequence: int,
    batches: Sequence[bytes],
    *,
    timeout_ms: int = limits.REQUEST_TIMEOUT_MS,
) -> None:
    """Stage batches under the id and in the range of `where`, which has to be open.

    Raises RangeSealedError, TxnEndedError, WriterGapError unless `first_sequence` batches or more
    are staged there, and what APPEND raises else: the first ones may be staged then.
    """
    for frame in _frames(endpoint, where, batches):
        own = [batches[index] for index in frame.indexes]
        marks = [Marks(None, first_sequence + index, where.txn_id) for index in frame.indexes]
        call = frame.call(own, marks, FeatureName.TRANSACTIONS, timeout_ms)
        answers = [decode_answer(each, AppendResponse) for each in await client.exchange(call)]
        results = [result for answer in answers for result in answer.append_responses]
        for result in sorted(results, key=lambda each: each.request_index):
            check_status(result.status)
        if len(results) < len(own):
            raise unanswered(f"the batches of transaction {where.txn_id}")


async def copy_staged(
    client: Caller,
    endpoint: str,
    part: TxnPart,
    to_endpoint: str,
    to_range_index: int,
    *,
    is_replica: bool = False,
    timeout_ms: int = limits.REQUEST_TIMEOUT_MS,
) -> None:
    """Stage what is staged in a range again in another one, under the id of a copy.

    Batches that are there already are harmless. If nothing is staged, nothing is copied: END_TXN
    will report whether that matters. Raises as `stage` does. If it `is_replica`, another one may
    have the right batches: TxnIncompleteError is raised, and nothing copied, if other records are
    staged than the part has.
    """
    if is_replica:
        try:
            await _check_count(client, endpoint, part, timeout_ms)
        except NotFoundError:
            return
    copy = TxnPart(
        copy_of(part.txn_id, part.range_index), part.stream_id, to_range_index, part.record_count
    )
    sequence = 0
    try:
        async for batches in staged_batches(client, endpoint, part, timeout_ms=timeout_ms):
            await stage(client, to_endpoint, copy, sequence, batches, timeout_ms=timeout_ms)
            sequence += len(batches)
    except NotFoundError:
        if sequence:
            raise


async def _check_count(client: Caller, endpoint: str, part: TxnPart, timeout_ms: int) -> None:
    record_count = 0
    async for batches in staged_batches(client, endpoint, part, timeout_ms=timeout_ms):
        record_count += sum(
            envelope.record_count for each in batches for envelope in split_envelopes(each)
        )
    if record_count != part.record_count:
        raise TxnIncompleteError.of(
            f"transaction {part.txn_id} has {counted(record_count, 'record')} staged at {endpoint},"
            f" and {part.record_count} to be copied"
        )


def _frames(endpoint: str, where: TxnPart, batches: Sequence[bytes]) -> Iterator[AppendFrame]:
    piece = RangeInfo(where.stream_id, where.range_index, 0, None, 0, (endpoint,))
    frame = AppendFrame(endpoint)
    for index, batch in enumerate(batches):
        if not frame.takes(batch):
            yield frame
            frame = AppendFrame(endpoint)
        frame.add(index, batch, piece)
    if frame.indexes:
        yield frame


async def _end_frame(
    client: Caller, endpoint: str, ends: Sequence[TxnEnd], timeout_ms: int
) -> list[Ended | SbpError]:
    infos = tuple(
        EndTxnInfo(end.stream_id, at, end.txn_ids, end.is_commit, end.range_index, end.record_count)
        for at, end in enumerate(ends)
    )
    request = EndTxnRequest(timeout_ms, infos)
    call = Call(endpoint, Opcode.END_TXN, request, timeout_ms, feature=FeatureName.TRANSACTIONS)
    outcomes: list[Ended | SbpError] = [
        unanswered(f"the transactions in stream {end.stream_id}") for end in ends
    ]
    for frame in await client.exchange(call):
        for result in decode_answer(frame, EndTxnResponse).end_responses:
            if 0 <= result.request_index < len(ends):
                failure = maybe_error(result.status)
                ended = Ended(result.base_offset, result.record_count)
                outcomes[result.request_index] = failure or ended
    return outcomes


async def _read_staged(
    client: Caller, endpoint: str, part: TxnPart, sequence: int, timeout_ms: int
) -> ReceivedBatches:
    info = FetchInfo(
        stream_range=StreamRange(stream_id=part.stream_id, range_index=part.range_index),
        fetch_offset=sequence,
        batch_max_bytes=limits.BATCH_BYTES_MAX,
        stream_id=part.stream_id,
        txn_id=part.txn_id,
    )
    request = FetchRequest(fetch_requests=(info,), timeout_ms=timeout_ms)
    call = Call(endpoint, Opcode.FETCH, request, timeout_ms, feature=FeatureName.TRANSACTIONS)
    for frame in await client.exchange(call):
        answer = read_answer(frame, {0: Question(part.stream_id, sequence)}).get(0)
        if isinstance(answer, SbpError):
            raise answer
        if isinstance(answer, ReceivedBatches):
            return answer
    raise unanswered(f"what is staged for {part.txn_id}")


def _split(payload: memoryview) -> Iterator[memoryview]:
    position = 0
    for envelope in split_envelopes(payload):
        yield payload[position : position + envelope.length_bytes]
        position += envelope.length_bytes
