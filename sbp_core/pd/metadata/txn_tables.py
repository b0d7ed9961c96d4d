"""Transactions: tables `txns`, `txn_parts`, `given_up_parts`, `aborted_txns`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, astuple, replace
from typing import Any, Final

from sqlalchemy import BigInteger, bindparam, delete, exists, func, insert, literal_column, select

from sbp_core import limits
from sbp_core.access.rights import CLAIM_MS
from sbp_core.pd.capacity import Capacity
from sbp_core.pd.metadata.database import Database
from sbp_core.pd.metadata.tables import (
    COUNT_MAX,
    IS_ONE_SHOT,
    ONE,
    aborted_txns,
    given_up_parts,
    producer_claims,
    ranges,
    streams,
    txn_parts,
    txns,
)
from sbp_core.pd.txns.decisions import (
    AbortedTxn,
    Decided,
    Decision,
    Manifest,
    Part,
    TxnRecord,
    Verdict,
    check_leap,
    check_owner,
    check_parts,
    is_replay,
    judge,
)
from sbp_core.wire.txn_id import maybe_batch_of, original_of, owned_name

_PRODUCER: Final = txns.c.producer == bindparam("producer")
_UNPUBLISHED: Final = (
    select(txns)
    .where(txns.c.txn_number.in_(select(txn_parts.c.txn_number)))
    .order_by(txns.c.txn_number)
)
# With the sum the few rows of the producer are sorted; else all rows would be read.
_SORTED: Final = txns.c.txn_number + literal_column("0")
_TXNS_OF_PRODUCER_AFTER: Final = (
    select(txns).where(_PRODUCER, bindparam("after") < _SORTED).order_by(_SORTED).limit(COUNT_MAX)
)
_LAST_BATCH: Final = select(func.max(txns.c.batch_number)).where(_PRODUCER)
_OWNER: Final = (
    select(txns.c.subject).where(_PRODUCER).order_by(txns.c.batch_number.desc()).limit(ONE)
)
_FORGET_CLAIMS: Final = delete(producer_claims).where(
    producer_claims.c.claimed_at_ms < bindparam("before_ms")
)
_CLAIMS_KEPT_MS: Final = limits.STAGED_TIMEOUT_MS_MAX + 24 * CLAIM_MS
"""Batches that were staged under a claim are given up before that, also if they came late."""
_ADD_TXN: Final = insert(txns).returning(txns.c.txn_number)
_LAST_NUMBER: Final = select(func.coalesce(func.max(txns.c.txn_number), 0))
_GIVE_UP: Final = insert(given_up_parts).from_select(
    [column.name for column in given_up_parts.columns],
    select(*txn_parts.columns, bindparam("given_up_at_ms", type_=BigInteger())).where(
        txn_parts.c.txn_number == bindparam("txn_number"),
        txn_parts.c.stream_id == bindparam("stream_id"),
    ),
)
_FIRST_NEEDED: Final = select(func.min(txn_parts.c.range_index)).where(
    txn_parts.c.stream_id == bindparam("stream_id")
)
_FORGET_ABORTED: Final = delete(aborted_txns).where(
    aborted_txns.c.aborted_at_ms < bindparam("before_ms")
)
_IS_DONE_WITH: Final = (
    ~exists().where(txn_parts.c.txn_number == txns.c.txn_number),
    ~exists().where(
        given_up_parts.c.txn_number == txns.c.txn_number,
        given_up_parts.c.given_up_at_ms >= bindparam("given_up_since_ms"),
    ),
)
"""No part waits to be published, and lost parts were reported for long enough."""
_OF_PRODUCER: Final = txns.alias("of_producer")
_KEPT: Final = (
    select(_OF_PRODUCER.c.batch_number)
    .where(_OF_PRODUCER.c.producer == bindparam("producer"))
    .order_by(_OF_PRODUCER.c.batch_number.desc())
    .limit(bindparam("kept_count", type_=BigInteger()))
    .subquery()
)
_FORGET: Final = delete(txns).where(
    _PRODUCER,
    txns.c.batch_number < select(func.min(_KEPT.c.batch_number)).scalar_subquery(),
    *_IS_DONE_WITH,
)
_FORGET_ONE_SHOT: Final = delete(txns).where(
    IS_ONE_SHOT, txns.c.decided_at_ms < bindparam("before_ms"), *_IS_DONE_WITH
)


class TransactionTables:
    """The decisions, and the Ledger that they are made by; a deleted stream deletes its parts."""

    def __init__(self, database: Database, capacity: Capacity) -> None:
        self._database = database
        self._capacity = capacity
        self._query = database.query
        self._change = database.change
        self._transaction = database.transaction

    def commit(
        self, manifest: Manifest, decided_at_ms: int, leap_max: int = limits.BATCH_NUMBER_LEAP_MAX
    ) -> Decision:
        """Decide a batch, or return the earlier decision.

        Raises what `check_owner`, `check_leap` and `check_parts` raise.
        """
        names = {manifest.producer, *(owned_name(part.txn_id) for part in manifest.parts)}
        for name in sorted(names):
            check_owner(self, name, manifest.subject)
        if is_replay(self, manifest):
            found = self._maybe_txn(manifest.producer, manifest.batch_number)
            return Decision(is_replay=True, txn=found)
        check_leap(self, manifest, leap_max)
        decided = Decided(
            manifest.producer,
            manifest.batch_number,
            manifest.record_count,
            manifest.digest,
            decided_at_ms,
            manifest.subject,
        )
        parts = tuple(replace(part, batch_count=-1) for part in manifest.parts)
        with self._transaction():
            check_parts(self, parts)
            txn_number = self._add_txn(decided)
            self._database.add(
                txn_parts,
                [
                    (
                        txn_number,
                        position,
                        each.txn_id,
                        each.stream_id,
                        each.range_index,
                        each.record_count,
                    )
                    for position, each in enumerate(parts)
                ],
            )
            if manifest.subject is not None:  # from here on the decision has it
                for name in names:
                    self._database.remove(producer_claims, producer=name)
            self._forget_decisions(manifest.producer, decided_at_ms)
            self._capacity.check("txns")
        fields = (txn_number, *astuple(decided)[:-1], parts)
        return Decision(is_replay=False, txn=TxnRecord(*fields))

    def abort(
        self, parts: Sequence[Part], aborted_at_ms: int, subject: str | None = None
    ) -> list[Verdict]:
        """Abort what may be aborted; return what becomes of each part.

        Raises what `check_owner` raises.
        """
        for name in sorted({owned_name(part.txn_id) for part in parts}):
            check_owner(self, name, subject)
        verdicts = [judge(self, part) for part in parts]
        given_up = {
            original_of(part.txn_id)
            for part, verdict in zip(parts, verdicts, strict=True)
            if verdict is Verdict.GIVEN_UP
        }
        if given_up:
            with self._transaction():
                self._change(_FORGET_ABORTED, before_ms=aborted_at_ms - limits.ABORTED_TXNS_KEPT_MS)
                batches = {txn_id: maybe_batch_of(txn_id) or (None, None) for txn_id in given_up}
                aborted = [(each, batches[each][0], aborted_at_ms) for each in batches]
                self._database.add(aborted_txns, aborted)
                self._capacity.check("aborted_txns")
        return verdicts

    def claim(self, txn_ids: Sequence[str], subject: str, now_ms: int) -> list[str]:
        """Note that a subject stages under ids; return the ids that belong to another subject.

        A claim is noted again every CLAIM_MS, so that it outlives the staged records.
        """
        names = {each: owned_name(each) for each in txn_ids}
        with self._transaction():
            self._change(_FORGET_CLAIMS, before_ms=now_ms - _CLAIMS_KEPT_MS)
            foreign = {
                name for name in names.values() if self.maybe_owner(name) not in {None, subject}
            }
            for name in set(names.values()) - foreign:
                self._database.put(producer_claims, name, subject, now_ms)
            self._capacity.check("producer_claims")
        return [txn_id for txn_id, name in names.items() if name in foreign]

    def record_published(self, published: Sequence[tuple[int, int]]) -> None:
        """Forget the parts of (decision's number, stream id): they are visible."""
        with self._transaction():
            for txn_number, stream_id in published:
                self._database.remove(txn_parts, txn_number=txn_number, stream_id=stream_id)

    def give_up(self, txn_number: int, stream_id: int, given_up_at_ms: int) -> TxnRecord:
        """Note that what a decision has in a stream is lost; return the decision as it is then."""
        lost = {"txn_number": txn_number, "stream_id": stream_id}
        with self._transaction():
            self._change(_GIVE_UP, **lost, given_up_at_ms=given_up_at_ms)
            self._database.remove(txn_parts, **lost)
        (row,) = self._database.rows(txns, txn_number=txn_number)
        return self._txn(row)

    def maybe_decided(self, producer: str, batch_number: int) -> Decision | None:
        """Return the decision about a batch; None without a decision."""
        last = self.maybe_last_batch(producer)
        if last is None or batch_number > last:
            return None
        return Decision(is_replay=True, txn=self._maybe_txn(producer, batch_number))

    def unpublished(self) -> list[TxnRecord]:
        """Return the decisions that are not published, the oldest first."""
        return list(map(self._txn, self._query(_UNPUBLISHED)))

    def txns_after(
        self, txn_number: int, count_max: int, producer: str | None = None
    ) -> list[TxnRecord]:
        """Return up to `count_max` decisions beyond one, in their order; of a producer, or all."""
        if producer is None:
            rows = self._database.page(txns, (txn_number,), count_max)
        else:
            rows = self._query(
                _TXNS_OF_PRODUCER_AFTER, producer=producer, after=txn_number, count_max=count_max
            )
        return list(map(self._txn, rows))

    def aborted_after(
        self, txn_id: str, count_max: int, producer: str | None = None
    ) -> list[AbortedTxn]:
        """Return up to `count_max` aborted ones beyond an id, by id; of a producer, or all."""
        chosen = {} if producer is None else {"producer": producer}
        rows = self._database.page(aborted_txns, (txn_id,), count_max, **chosen)
        return [AbortedTxn(row.txn_id, row.aborted_at_ms) for row in rows]

    def decided_after(self, txn_number: int, count_max: int) -> list[tuple[int, Decided]]:
        """Return up to `count_max` decisions beyond one, with their numbers, without parts."""
        rows = self._database.page(txns, (txn_number,), count_max)
        return [(number, Decided(*columns)) for number, *columns in rows]

    def last_number(self) -> int:
        """Return the number of the last decision that is kept, 0 without any."""
        return int(self._query(_LAST_NUMBER)[0][0])

    def restore(self, decisions: Sequence[Decided]) -> None:
        """Add decisions of a backup, which are published; existing decisions stay."""
        with self._transaction():
            for each in decisions:
                if self._maybe_txn(each.producer, each.batch_number) is None:
                    self._add_txn(each)
            self._capacity.check("txns")

    def first_needed_range(self, stream_id: int, range_index: int) -> int:
        """Return the first range up to `range_index` that is needed to publish in a stream."""
        ((first,),) = self._query(_FIRST_NEEDED, stream_id=stream_id)
        return range_index if first is None else min(range_index, int(first))

    # Ledger

    def maybe_last_batch(self, producer: str) -> int | None:
        """Return the number of the last batch that was decided of a producer."""
        ((last,),) = self._query(_LAST_BATCH, producer=producer)
        return None if last is None else int(last)

    def maybe_owner(self, producer: str) -> str | None:
        """Return the owner of a producer, or of a transaction without one; None if not known.

        The last decision names the owner; before the first decision, the claim does.
        """
        for (subject,) in self._query(_OWNER, producer=producer):
            if subject is not None:
                return str(subject)
        claim = self._database.maybe_row(producer_claims, producer=producer)
        return claim and str(claim.subject)

    def is_named(self, txn_id: str, stream_id: int | None = None) -> bool:
        """Whether a committed part that is not published yet is of a transaction, in a stream."""
        chosen = {} if stream_id is None else {"stream_id": stream_id}
        return self._database.has(txn_parts, txn_id=txn_id, **chosen)

    def is_aborted(self, txn_id: str) -> bool:
        """Whether a transaction was aborted, or given up after its commit."""
        return any(
            self._database.has(each, txn_id=txn_id) for each in (aborted_txns, given_up_parts)
        )

    def has_stream(self, stream_id: int) -> bool:
        """Whether there is a stream."""
        return self._database.has(streams, stream_id=stream_id)

    def has_range(self, stream_id: int, range_index: int) -> bool:
        """Whether a stream has a range."""
        return self._database.has(ranges, stream_id=stream_id, range_index=range_index)

    # Inside

    def _add_txn(self, decided: Decided) -> int:
        ((txn_number,),) = self._query(_ADD_TXN, **asdict(decided))
        return int(txn_number)

    def _maybe_txn(self, producer: str, batch_number: int) -> TxnRecord | None:
        row = self._database.maybe_row(txns, producer=producer, batch_number=batch_number)
        return row and self._txn(row)

    def _txn(self, row: Any) -> TxnRecord:
        *columns, _ = row
        parts, given_up = (
            tuple(Part(*part[2:6]) for part in self._database.rows(table, txn_number=row[0]))
            for table in (txn_parts, given_up_parts)
        )
        fields = (*columns, parts, given_up)
        return TxnRecord(*fields)

    def _forget_decisions(self, producer: str, now_ms: int) -> None:
        """Keep the last decisions of a producer, and unpublished decisions.

        The decision of a producer with one batch is kept for ONE_SHOT_KEPT_MS, and until it is
        published. Decisions that were given up are kept for ABORTED_TXNS_KEPT_MS.
        """
        given_up_since_ms = now_ms - limits.ABORTED_TXNS_KEPT_MS
        self._change(
            _FORGET,
            producer=producer,
            kept_count=limits.TXNS_KEPT_PER_PRODUCER,
            given_up_since_ms=given_up_since_ms,
        )
        self._change(
            _FORGET_ONE_SHOT,
            before_ms=now_ms - limits.ONE_SHOT_KEPT_MS,
            given_up_since_ms=given_up_since_ms,
        )
