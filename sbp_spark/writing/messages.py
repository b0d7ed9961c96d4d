"""What a task tells the commit: plain values, for they are pickled."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql.datasource import WriterCommitMessage

from sbp_core.client import TxnPart
from sbp_spark.options import BatchKey


@dataclass(frozen=True)
class WrittenMessage(WriterCommitMessage):
    """What one task has written, all of it acknowledged; `size_bytes` of encoded batches.

    `record_count` includes dead letters.
    """

    partition_id: int
    record_count: int
    batch_count: int
    size_bytes: int
    stream_count: int
    skipped_count: int
    dead_letter_count: int


@dataclass(frozen=True)
class StagedMessage(WrittenMessage):
    """What a task has staged: (transaction id, stream id, range index, records, batches) by range.

    `tails`, where what was there before is to go: (stream id, its end before the commit).
    """

    producer: str
    batch_number: int
    parts: tuple[tuple[str, int, int, int, int], ...]
    digest: int
    tails: tuple[tuple[int, int], ...] = ()

    @property
    def key(self) -> BatchKey:
        """What it was staged for."""
        return BatchKey(self.producer, self.batch_number)

    def txn_parts(self) -> list[TxnPart]:
        """Return what is staged."""
        return [TxnPart(*part) for part in self.parts]
