"""Transactions: tables `txns`, `txn_parts`, `given_up_parts`, `aborted_txns`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sbp_core import limits
from sbp_core.pd.capacity import Capacity
from sbp_core.pd.metadata.sqlite_file import SqliteFile
from sbp_core.pd.txns.transactions import (
    AbortedTxn,
    Decision,
    Manifest,
    Part,
    TxnRecord,
    Verdict,
    check_leap,
    check_parts,
    is_replay,
    judge,
)
from sbp_core.wire.txn_id import maybe_batch_of, original_of

_TXN: Final = (
    "SELECT txn_number, producer, batch_number, record_count, digest, decided_at_ms FROM txns"
)
_PARTS: Final = (
    "SELECT txn_id, stream_id, range_index, record_count FROM txn_parts"
    " WHERE txn_number = ? ORDER BY position"
)
_GIVEN_UP: Final = (
    "SELECT txn_id, stream_id, range_index, record_count FROM given_up_parts"
    " WHERE txn_number = ? ORDER BY position"
)
_IS_DONE_WITH: Final = (
    "NOT EXISTS (SELECT 1 FROM txn_parts WHERE txn_parts.txn_number = txns.txn_number)"
    " AND NOT EXISTS (SELECT 1 FROM given_up_parts"
    " WHERE given_up_parts.txn_number = txns.txn_number AND given_up_at_ms >= ?)"
)
"""Nothing waits, and what is lost was told for long enough."""
_FORGET: Final = (
    "DELETE FROM txns WHERE producer = ? AND batch_number <"
    " (SELECT min(batch_number) FROM (SELECT batch_number FROM txns WHERE producer = ?"
    " ORDER BY batch_number DESC LIMIT ?)) AND"
)
_FORGET_ONE_SHOT: Final = (
    "DELETE FROM txns INDEXED BY txns_one_shot"
    " WHERE producer GLOB 'once-*' AND decided_at_ms < ? AND"
)


class TransactionTables:
    """The decisions, and the Ledger that they are made by; a deleted stream deletes its parts."""

    def __init__(self, file: SqliteFile, capacity: Capacity) -> None:
        self._capacity = capacity
        self._query = file.query
        self._transaction = file.transaction

    def commit(
        self, manifest: Manifest, decided_at_ms: int, leap_max: int = limits.BATCH_NUMBER_LEAP_MAX
    ) -> Decision:
        """Decide a batch, or return what was decided.

        Raises what `check_leap` and `check_parts` raise.
        """
        if is_replay(self, manifest):
            found = self._maybe_txn(manifest.producer, manifest.batch_number)
            return Decision(is_replay=True, txn=found)
        check_leap(self, manifest, leap_max)
        with self._transaction():
            check_parts(self, manifest.parts)
            ((txn_number,),) = self._query(
                "INSERT INTO txns (producer, batch_number, record_count, digest, decided_at_ms)"
                " VALUES (?, ?, ?, ?, ?) RETURNING txn_number",
                manifest.producer,
                manifest.batch_number,
                manifest.record_count,
                manifest.digest,
                decided_at_ms,
            )
            for position, part in enumerate(manifest.parts):
                self._query(
                    "INSERT INTO txn_parts VALUES (?, ?, ?, ?, ?, ?)",
                    txn_number,
                    position,
                    part.txn_id,
                    part.stream_id,
                    part.range_index,
                    part.record_count,
                )
            self._forget_decisions(manifest.producer, decided_at_ms)
            self._capacity.check("txns")
        decided = self._maybe_txn(manifest.producer, manifest.batch_number)
        return Decision(is_replay=False, txn=decided)

    def abort(self, parts: Sequence[Part], aborted_at_ms: int) -> list[Verdict]:
        """Abort what may be aborted; return what becomes of each part."""
        verdicts = [judge(self, part) for part in parts]
        given_up = {
            original_of(part.txn_id)
            for part, verdict in zip(parts, verdicts, strict=True)
            if verdict is Verdict.GIVEN_UP
        }
        if given_up:
            with self._transaction():
                self._query(
                    "DELETE FROM aborted_txns WHERE aborted_at_ms < ?",
                    aborted_at_ms - limits.ABORTED_TXNS_KEPT_MS,
                )
                for txn_id in given_up:
                    producer, _ = maybe_batch_of(txn_id) or (None, None)
                    self._query(
                        "INSERT INTO aborted_txns VALUES (?, ?, ?)", txn_id, producer, aborted_at_ms
                    )
                self._capacity.check("aborted_txns")
        return verdicts

    def record_published(self, published: Sequence[tuple[int, int]]) -> None:
        """Forget the parts of (decision's number, stream id): they are visible."""
        with self._transaction():
            for key in published:
                self._query("DELETE FROM txn_parts WHERE txn_number = ? AND stream_id = ?", *key)

    def give_up(self, txn_number: int, stream_id: int, given_up_at_ms: int) -> TxnRecord:
        """Note that what a decision has in a stream is lost; return the decision as it is then."""
        with self._transaction():
            self._query(
                "INSERT INTO given_up_parts SELECT txn_parts.*, ? FROM txn_parts"
                " WHERE txn_number = ? AND stream_id = ?",
                given_up_at_ms,
                txn_number,
                stream_id,
            )
            self._query(
                "DELETE FROM txn_parts WHERE txn_number = ? AND stream_id = ?",
                txn_number,
                stream_id,
            )
        (txn,) = self._txns("WHERE txn_number = ?", txn_number)
        return txn

    def maybe_decided(self, producer: str, batch_number: int) -> Decision | None:
        """Return what was decided of a batch; None if nothing was."""
        last = self.maybe_last_batch(producer)
        if last is None or batch_number > last:
            return None
        return Decision(is_replay=True, txn=self._maybe_txn(producer, batch_number))

    def unpublished(self) -> list[TxnRecord]:
        """Return the decisions that are not published, the oldest first."""
        return self._txns(
            "WHERE txn_number IN (SELECT txn_number FROM txn_parts) ORDER BY txn_number"
        )

    def txns_after(
        self, txn_number: int, count_max: int, producer: str | None = None
    ) -> list[TxnRecord]:
        """Return up to `count_max` decisions beyond one, in their order; of a producer, or all."""
        if producer is None:
            return self._txns(
                "WHERE txn_number > ? ORDER BY txn_number LIMIT ?", txn_number, count_max
            )
        return self._txns(
            # With the sign the few rows of the producer are sorted; else all rows would be read.
            "WHERE producer = ? AND +txn_number > ? ORDER BY +txn_number LIMIT ?",
            producer,
            txn_number,
            count_max,
        )

    def aborted_after(
        self, txn_id: str, count_max: int, producer: str | None = None
    ) -> list[AbortedTxn]:
        """Return up to `count_max` aborted ones beyond an id, by id; of a producer, or all."""
        rows = self._query(
            "SELECT txn_id, aborted_at_ms FROM aborted_txns WHERE txn_id > ?"
            " AND (? IS NULL OR producer = ?) ORDER BY txn_id LIMIT ?",
            txn_id,
            producer,
            producer,
            count_max,
        )
        return [AbortedTxn(*row) for row in rows]

    def first_needed_range(self, stream_id: int, range_index: int) -> int:
        """Return the first range up to `range_index` that is needed to publish in a stream."""
        ((first,),) = self._query(
            "SELECT min(range_index) FROM txn_parts WHERE stream_id = ?", stream_id
        )
        return range_index if first is None else min(range_index, int(first))

    # Ledger

    def maybe_last_batch(self, producer: str) -> int | None:
        """Return the number of the last batch that was decided of a producer."""
        ((last,),) = self._query("SELECT max(batch_number) FROM txns WHERE producer = ?", producer)
        return None if last is None else int(last)

    def is_named(self, txn_id: str, stream_id: int | None = None) -> bool:
        """Whether a committed part that is not published yet is of a transaction, in a stream."""
        named = "SELECT 1 FROM txn_parts WHERE txn_id = ?"
        if stream_id is None:
            return bool(self._query(f"{named} LIMIT 1", txn_id))
        return bool(self._query(f"{named} AND stream_id = ? LIMIT 1", txn_id, stream_id))

    def is_aborted(self, txn_id: str) -> bool:
        """Whether a transaction was aborted, or given up after its commit."""
        return bool(
            self._query(
                "SELECT 1 FROM aborted_txns WHERE txn_id = ?"
                " UNION ALL SELECT 1 FROM given_up_parts WHERE txn_id = ? LIMIT 1",
                txn_id,
                txn_id,
            )
        )

    def has_stream(self, stream_id: int) -> bool:
        """Whether there is a stream."""
        return bool(self._query("SELECT 1 FROM streams WHERE stream_id = ?", stream_id))

    def has_range(self, stream_id: int, range_index: int) -> bool:
        """Whether a stream has a range."""
        return bool(
            self._query(
                "SELECT 1 FROM ranges WHERE stream_id = ? AND range_index = ?",
                stream_id,
                range_index,
            )
        )

    # Inside

    def _maybe_txn(self, producer: str, batch_number: int) -> TxnRecord | None:
        found = self._txns("WHERE producer = ? AND batch_number = ?", producer, batch_number)
        return found[0] if found else None

    def _txns(self, which: str, *values: int | str | None) -> list[TxnRecord]:
        rows: list[tuple[int, str, int, int, bytes, int]] = self._query(f"{_TXN} {which}", *values)
        return [
            TxnRecord(*txn, self._parts(_PARTS, txn[0]), self._parts(_GIVEN_UP, txn[0]))
            for txn in rows
        ]

    def _parts(self, which: str, txn_number: int) -> tuple[Part, ...]:
        return tuple(Part(*part) for part in self._query(which, txn_number))

    def _forget_decisions(self, producer: str, now_ms: int) -> None:
        """Keep the last decisions of a producer, and those that are not published.

        For producers that have one batch only, those that are new or not published are kept.
        Decisions that were given up are kept for ABORTED_TXNS_KEPT_MS.
        """
        given_up_since_ms = now_ms - limits.ABORTED_TXNS_KEPT_MS
        kept_count = limits.TXNS_KEPT_PER_PRODUCER
        self._query(f"{_FORGET} {_IS_DONE_WITH}", producer, producer, kept_count, given_up_since_ms)
        self._query(
            f"{_FORGET_ONE_SHOT} {_IS_DONE_WITH}",
            now_ms - limits.ONE_SHOT_KEPT_MS,
            given_up_since_ms,
        )
