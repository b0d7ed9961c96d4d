"""The decisions: which batches of producers are committed, and which transactions are aborted.

A producer numbers its batches. The first manifest that is committed for a batch number is final: it
says which transactions the batch consists of, in which ranges, in which order. This module does no
I/O and has no clock: a `Ledger` has the facts that a decision depends on.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Final, Protocol

from sbp_core import limits
from sbp_core.errors import PermissionDeniedError, TxnAbortedError, invalid
from sbp_core.pd.model import no_stream
from sbp_core.server.request_checks import check_number
from sbp_core.wire.status import shown
from sbp_core.wire.txn_id import copy_of, is_producer, is_txn_id, maybe_batch_of, original_of

_RANGE_INDEX_MAX: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Part:
    """The batches that a transaction has staged in one range.

    `batch_count` is -1 where the producer left it out; it is not stored with the commit.
    """

    txn_id: str
    stream_id: int
    range_index: int
    record_count: int
    batch_count: int = -1


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of a batch by its producer. `record_count` and `digest` are not interpreted.

    `subject` owns the batch, None where the server asks for no identities.
    """

    producer: str
    batch_number: int
    parts: tuple[Part, ...]
    record_count: int
    digest: bytes
    subject: str | None = None


@dataclass(frozen=True, slots=True)
class TxnRecord:
    """A batch that was decided. `parts` are not published yet.

    `given_up` are the parts that were lost before they could be published. `txn_number` grows from
    decision to decision.
    """

    txn_number: int
    producer: str
    batch_number: int
    record_count: int
    digest: bytes
    decided_at_ms: int
    parts: tuple[Part, ...]
    given_up: tuple[Part, ...] = ()


@dataclass(frozen=True, slots=True)
class Decided:
    """The record of a batch that is published; `subject` owns it, None if that is not known."""

    producer: str
    batch_number: int
    record_count: int
    digest: bytes
    decided_at_ms: int
    subject: str | None


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision that counts for a batch; None if it is published, and no longer kept."""

    is_replay: bool
    txn: TxnRecord | None


@dataclass(frozen=True, slots=True)
class AbortedTxn:
    """A transaction that was aborted."""

    txn_id: str
    aborted_at_ms: int


class Verdict(enum.Enum):
    """The answer to a request to abort staged batches."""

    KEPT = "it is committed, or not to be aborted yet"
    DEAD = "it can never be committed, by an earlier decision"
    GIVEN_UP = "this request aborts its transaction"


class Ledger(Protocol):
    """The earlier decisions, and the streams and ranges, on which a decision depends."""

    def maybe_last_batch(self, producer: str) -> int | None:
        """Return the number of the last batch that was decided of a producer."""

    def maybe_owner(self, producer: str) -> str | None:
        """Return the owner of a producer, or of a transaction without one; None if not known."""

    def is_named(self, txn_id: str, stream_id: int | None = None) -> bool:
        """Whether a committed part that is not published yet is of a transaction, in a stream."""

    def is_aborted(self, txn_id: str) -> bool:
        """Whether a transaction was aborted, or given up after its commit."""

    def has_stream(self, stream_id: int) -> bool:
        """Whether there is a stream."""

    def has_range(self, stream_id: int, range_index: int) -> bool:
        """Whether a stream has a range."""


def check_manifest(manifest: Manifest) -> None:
    """Raise InvalidRequestError for a manifest that can never be committed."""
    if not is_producer(manifest.producer):
        raise invalid(
            f"{shown(manifest.producer)} cannot name a producer: use 1 to"
            f" {limits.PRODUCER_LENGTH_MAX} of A-Z a-z 0-9 . _ -"
        )
    check_number("batch_number", manifest.batch_number, 0)
    sizes = limits.TXN_DIGEST_BYTES_MIN, limits.TXN_DIGEST_BYTES_MAX
    check_number("the bytes of digest", len(manifest.digest), *sizes)
    places = [(part.txn_id, part.stream_id, part.range_index) for part in manifest.parts]
    if len(set(places)) < len(places):
        raise invalid("a transaction is named twice for the same range of a stream")
    for part in manifest.parts:
        check_number("record_count", part.record_count, 0)
        _check_id(part.txn_id)
        batch = maybe_batch_of(part.txn_id)
        if batch not in {None, (manifest.producer, manifest.batch_number)}:
            raise invalid(
                f"{part.txn_id} is of another batch than {manifest.batch_number} of"
                f" {manifest.producer}"
            )
    _check_size(manifest.parts)


def _check_size(parts: Iterable[Part]) -> None:
    """Raise InvalidRequestError for more than a range can publish at once (SPEC "END_TXN")."""
    sizes: dict[int, tuple[int, int]] = {}
    for part in parts:
        record_count, batch_count = sizes.get(part.stream_id, (0, 0))
        sizes[part.stream_id] = (
            record_count + part.record_count,
            batch_count + max(part.batch_count, 0),
        )
    for stream_id, (record_count, batch_count) in sizes.items():
        if record_count > limits.TXN_RECORDS_MAX or batch_count > limits.TXN_BATCHES_MAX:
            raise invalid(
                f"{record_count} records in {batch_count} batches are staged for stream"
                f" {stream_id}; at most {limits.TXN_RECORDS_MAX} in {limits.TXN_BATCHES_MAX} can be"
                " published at once. Stage larger batches, or commit them as several batches"
            )


def _check_id(txn_id: str) -> None:
    """Raise InvalidRequestError unless a client may have chosen the id."""
    is_original = is_txn_id(txn_id) and original_of(txn_id) == txn_id
    if not is_original or not is_txn_id(copy_of(txn_id, _RANGE_INDEX_MAX)):
        raise invalid(
            f"{shown(txn_id)} cannot be the id of a transaction: use A-Z a-z 0-9 . _ -, and leave"
            f" room for the mark of a copy, {limits.TXN_ID_LENGTH_MAX} in all"
        )


def is_replay(ledger: Ledger, manifest: Manifest) -> bool:
    """Whether the batch was decided before, so that this manifest has no effect."""
    last = ledger.maybe_last_batch(manifest.producer)
    return last is not None and manifest.batch_number <= last


def check_owner(ledger: Ledger, producer: str, subject: str | None) -> None:
    """Raise PermissionDeniedError for the producer of another subject; None is not checked.

    A producer belongs to the subject that first staged as it, or committed a batch of it, and so do
    its transactions. The id of a transaction that names no producer stands for one.
    """
    owner = None if subject is None else ledger.maybe_owner(producer)
    if owner is not None and owner != subject:
        raise PermissionDeniedError.of(
            f"producer {producer} belongs to another identity than {shown(subject or '')}: use"
            " another producer, such as a query with a checkpoint of its own"
        )


def check_leap(ledger: Ledger, manifest: Manifest, leap_max: int) -> None:
    """Raise InvalidRequestError for a batch number far above the last one of its producer.

    Once it is decided, no number below it can be committed. The first number is free: a query may
    start to write here after many batches.
    """
    last = ledger.maybe_last_batch(manifest.producer)
    if last is not None and manifest.batch_number - last > leap_max:
        raise invalid(
            f"batch {manifest.batch_number} of {manifest.producer} was not committed: the last"
            f" batch is {last}, and the next one may be {leap_max} above it at most, as no batch"
            " between the two could be committed afterwards. If the number is intended, raise"
            " batch_number_leap_max of the placement driver, or write as a new producer: with a new"
            " checkpoint, or another txnAppId"
        )


def check_parts(ledger: Ledger, parts: Iterable[Part]) -> None:
    """Raise what keeps these parts from being committed.

    NotFoundError: a stream was deleted. TxnAbortedError: a transaction was aborted, or its range
    was trimmed. InvalidRequestError: another manifest names it.
    """
    has_stream, has_range = cache(ledger.has_stream), cache(ledger.has_range)
    checked: set[str] = set()
    for part in parts:
        if not has_stream(part.stream_id):
            raise no_stream(part.stream_id)
        if not has_range(part.stream_id, part.range_index):
            raise TxnAbortedError.of(
                f"range {part.range_index} of stream {part.stream_id} was trimmed, with what"
                f" transaction {part.txn_id} staged there; stage the batch again"
            )
        if part.txn_id in checked:
            continue
        checked.add(part.txn_id)
        if ledger.is_aborted(part.txn_id):
            raise TxnAbortedError.of(
                f"transaction {part.txn_id} was aborted; stage the batch again under another id"
            )
        if ledger.is_named(part.txn_id):
            raise invalid(
                f"transaction {part.txn_id} is committed with another batch; stage this one under"
                " another id"
            )


def judge(ledger: Ledger, part: Part) -> Verdict:
    """Return what becomes of something staged that a client or a server wants to abort.

    A negative `record_count` only asks whether it is known to be dead: nothing is aborted then. The
    parts of a batch are kept until they are published in that stream; everything else that is
    staged for a decided batch is dead.
    """
    txn_id = original_of(part.txn_id)
    if ledger.is_named(txn_id, part.stream_id):
        return Verdict.KEPT
    if ledger.is_named(txn_id) or ledger.is_aborted(txn_id):
        return Verdict.DEAD
    batch = maybe_batch_of(txn_id)
    if batch is not None:
        last = ledger.maybe_last_batch(batch[0])
        if last is not None and batch[1] <= last:
            return Verdict.DEAD
    return Verdict.KEPT if part.record_count < 0 else Verdict.GIVEN_UP
