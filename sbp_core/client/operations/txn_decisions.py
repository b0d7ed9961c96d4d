"""Operations that decide transactions, and report their states."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from sbp_core import limits
from sbp_core.client.operations.calls import Context, ask, decode_reply, unanswered
from sbp_core.client.operations.metadata import list_streams
from sbp_core.client.operations.open_calls import Call, gather
from sbp_core.client.operations.range_placement import chunks, locate, revalidate
from sbp_core.client.types import TxnDecision, TxnInfo, TxnLoss, TxnPart
from sbp_core.errors import ConfigurationError, SbpError, StatusCode, UnsupportedError
from sbp_core.session.negotiation import FeatureName
from sbp_core.wire import headers
from sbp_core.wire.headers import (
    CommitTxnRequest,
    CommitTxnResponse,
    DescribeTxnsRequest,
    DescribeTxnsResponse,
    TxnDescription,
)
from sbp_core.wire.opcodes import Opcode
from sbp_core.wire.status import with_message
from sbp_core.wire.txn_id import is_producer

_UNKNOWN = -1
"""Stands for a number that is unknown or absent."""


async def commit_txn(
    context: Context,
    producer: str,
    batch_number: int,
    parts: Sequence[TxnPart],
    *,
    record_count: int,
    digest: bytes,
    timeout_ms: int | None = None,
) -> TxnDecision:
    """Commit `parts`, with `record_count` records together, as a batch of a producer.

    The first decision about a batch is final; a repeat returns it. Waits until all records are
    visible, or for most of `timeout_ms`; committed records become visible in any case. Raises
    ConfigurationError for arguments that no placement driver accepts, NotFoundError for a stream
    that does not exist, TxnAbortedError if one of the transactions was given up. Nothing is decided
    after an error.
    """
    # SPEC "COMMIT_TXN"
    if timeout_ms is not None:
        context = replace(context, timeout_ms=timeout_ms)
    _check_batch(producer, batch_number)
    if not limits.TXN_DIGEST_BYTES_MIN <= len(digest) <= limits.TXN_DIGEST_BYTES_MAX:
        raise ConfigurationError(
            f"a digest has {limits.TXN_DIGEST_BYTES_MIN} to {limits.TXN_DIGEST_BYTES_MAX} bytes,"
            f" got {len(digest)}"
        )
    has_many = len(parts) > limits.STREAMS_PER_REQUEST_MAX
    header = CommitTxnRequest(
        timeout_ms=context.timeout_ms,
        producer=producer,
        batch_number=batch_number,
        parts=() if has_many else tuple(map(_part_table, parts)),
        staged=tuple(_columns(parts)) if has_many else (),
        record_count=record_count,
        digest=digest,
        commit=True,
    )
    answers = await ask(
        context,
        Opcode.COMMIT_TXN,
        header,
        CommitTxnResponse,
        feature=FeatureName.PART_COLUMNS if has_many else None,
    )
    last = answers[-1]
    return TxnDecision(
        last.is_replay,
        last.is_published,
        _maybe(last.record_count),
        last.digest,
        tuple(_part(each) for answer in answers for each in answer.parts),
    )


async def abort_txns(context: Context, parts: Sequence[TxnPart]) -> list[TxnPart]:
    """Drop staged parts that are not committed; return the parts that are dropped."""
    # SPEC "COMMIT_TXN"
    dead: list[TxnPart] = []
    for chunk in chunks(parts):
        header = CommitTxnRequest(
            timeout_ms=context.timeout_ms, parts=tuple(map(_part_table, chunk))
        )
        answers = await ask(context, Opcode.COMMIT_TXN, header, CommitTxnResponse)
        dead += [_part(each) for answer in answers for each in answer.parts]
    return dead


async def give_up_txn(context: Context, producer: str, batch_number: int) -> TxnLoss:
    """Give up the parts of a decided batch that range servers lost, so that later batches follow.

    The call may be repeated. Raises NotFoundError if the batch is not decided, InvalidRequestError
    if all of it can still be published, RequestTimeoutError if a range server does not report its
    parts in time.
    """
    # SPEC "COMMIT_TXN"
    _check_batch(producer, batch_number)
    header = CommitTxnRequest(
        timeout_ms=context.timeout_ms, producer=producer, batch_number=batch_number, give_up=True
    )
    answers = await ask(context, Opcode.COMMIT_TXN, header, CommitTxnResponse)
    last = answers[-1]
    if not last.is_replay:  # a server that does not know `give_up` aborted an empty list
        raise UnsupportedError(
            StatusCode.UNSUPPORTED_OPERATION,
            "the placement driver cannot give up lost parts of a batch: upgrade it",
        )
    parts = tuple(_part(each) for answer in answers for each in answer.parts)
    waits_for = (last.status and last.status.message) or ""
    return TxnLoss(parts, last.is_published, _maybe(last.record_count), waits_for)


async def describe_txns(
    context: Context, producer: str | None = None, *, spared: Collection[str] | None = ()
) -> list[TxnInfo]:
    """Return the states of transactions, of one producer or of all, staged ones included.

    Range servers in `spared` are not asked. With None no range server is asked, and staged
    transactions are left out.
    """
    # SPEC "DESCRIBE_TXNS"
    header = DescribeTxnsRequest(context.timeout_ms, producer)
    answers = await ask(context, Opcode.DESCRIBE_TXNS, header, DescribeTxnsResponse)
    found = _joined([_info(each, None) for answer in answers for each in answer.txns])
    if spared is None:
        return found
    servers = [each for each in (await range_servers(context)) if each not in spared]
    replies = await gather(
        context.open_calls,
        [Call(each, Opcode.DESCRIBE_TXNS, header, context.timeout_ms) for each in servers],
    )
    for server, reply in zip(servers, replies, strict=True):
        try:
            staged = decode_reply(reply, DescribeTxnsResponse)
        except UnsupportedError:
            continue
        except SbpError as error:
            raise with_message(error, f"DESCRIBE_TXNS at {server}: ") from error
        found += [_info(each, server) for answer in staged for each in answer.txns]
    return found


async def range_servers(context: Context) -> list[str]:
    """Return the endpoints of the range servers that have ranges, in no special order."""
    stream_ids = [info.stream_id for info in (await list_streams(context))]
    await revalidate(context, stream_ids)
    await locate(context, stream_ids)
    known = (context.router.maybe_ranges(each) or () for each in stream_ids)
    return list(
        dict.fromkeys(server for ranges in known for piece in ranges for server in piece.servers)
    )


def _check_batch(producer: str, batch_number: int) -> None:
    if not is_producer(producer):
        raise ConfigurationError(
            f"{producer!r} cannot name a producer: use 1 to {limits.PRODUCER_LENGTH_MAX} of"
            " A-Z a-z 0-9 . _ -"
        )
    if not 0 <= batch_number < 2**63:
        raise ConfigurationError(f"batch number {batch_number} is not 0 or more")


def _part_table(part: TxnPart) -> headers.TxnPart:
    return headers.TxnPart(
        part.txn_id, part.stream_id, part.record_count, part.range_index, part.batch_count
    )


def _columns(parts: Sequence[TxnPart]) -> Iterator[headers.StagedParts]:
    """Yield the parts in their order, column by column for each run of the same transaction."""
    for txn_id, run in groupby(parts, lambda part: part.txn_id):
        own = list(run)
        yield headers.StagedParts(
            txn_id,
            tuple(part.stream_id for part in own),
            tuple(part.range_index for part in own),
            tuple(part.record_count for part in own),
            tuple(part.batch_count for part in own),
        )


def _part(part: headers.TxnPart) -> TxnPart:
    if part.txn_id is None:
        raise unanswered("the id of a transaction")
    return TxnPart(
        part.txn_id, part.stream_id, part.range_index, part.record_count, part.batch_count
    )


def _info(found: TxnDescription, server: str | None) -> TxnInfo:
    return TxnInfo(
        state=found.state or "",
        parts=tuple(map(_part, found.parts)),
        producer=found.producer,
        batch_number=_maybe(found.batch_number),
        record_count=_maybe(found.record_count),
        digest=found.digest,
        decided_at_ms=_maybe(found.decided_at_ms),
        staged_at_ms=_maybe(found.staged_at_ms),
        lost=tuple(map(_part, found.lost)),
        server=server,
    )


def _joined(found: Sequence[TxnInfo]) -> list[TxnInfo]:
    """Join the descriptions of decisions with many parts, which come in several pieces."""
    joined: list[TxnInfo] = []
    for each in found:
        last = joined[-1] if joined else None
        if last is not None and last == replace(each, parts=last.parts, lost=last.lost):
            joined[-1] = replace(last, parts=last.parts + each.parts, lost=last.lost + each.lost)
        else:
            joined.append(each)
    return joined


def _maybe(number: int) -> int | None:
    return None if number == _UNKNOWN else number
