"""What a task does to write its rows: convert, route, batch, append or stage."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, partial

import pyarrow as pa

from sbp_core.client import Client, Transaction, txn_id_of
from sbp_core.errors import UnsupportedError
from sbp_core.failpoints import failpoint
from sbp_core.records import BatchBuilder, StreamSchema
from sbp_spark.client_pool import Patience, client_for
from sbp_spark.options import BatchKey, OnBadRecord, SinkOptions, Targets
from sbp_spark.spark_internals.task_log import LOG, task_ids
from sbp_spark.writing.bad_records import (
    BadRows,
    bad_record_error,
    distinct,
    log_bad_rows,
    without,
)
from sbp_spark.writing.committing import StagedMessage, WrittenMessage, no_transactions, tails_of
from sbp_spark.writing.digest import join_digests
from sbp_spark.writing.directory import StreamDirectory
from sbp_spark.writing.payload import Payload, fill_times, make_payload
from sbp_spark.writing.routing import Router, StreamIds
from sbp_spark.writing.sending import Builders, PlainAppend, Sender, StagedAppend
from sbp_spark.writing.typed_streams import ON_BAD_RECORD


@dataclass(frozen=True, slots=True)
class StagedFor:
    """What rows are staged for; `is_repeatable` if the same may be written again, to compare."""

    key: BatchKey
    is_repeatable: bool


def write_rows(
    batches: Iterable[pa.RecordBatch],
    options: SinkOptions,
    staged_for: StagedFor | None,
    maybe_schema: StreamSchema | None = None,
) -> WrittenMessage:
    """Write all rows of a task; return when all of them are acknowledged. Raises SbpError.

    Without `staged_for` they are readable at once. With a schema they are columns of it, without
    one plain records.
    """
    client = client_for(options.servers, Patience.RUNNING)
    partition_id = int(task_ids().get("partition_id", 0))
    if staged_for is None:
        written = append_rows(
            batches, client, options, maybe_schema=maybe_schema, partition_id=partition_id
        )
    else:
        written = stage_rows(
            batches,
            client,
            options,
            staged_for,
            maybe_schema=maybe_schema,
            partition_id=partition_id,
        )
    LOG.debug("wrote %s", written)
    return written


def append_rows(
    batches: Iterable[pa.RecordBatch],
    client: Client,
    options: SinkOptions,
    *,
    maybe_schema: StreamSchema | None = None,
    partition_id: int = 0,
) -> WrittenMessage:
    """Append rows of a checked schema, those of one stream in their order."""
    with Sender(PlainAppend(client)) as sender:
        work = _Work(client, options, sender, partition_id, maybe_schema)
        work.write(batches)
    failpoint("sink.appended")
    return WrittenMessage(partition_id, *work.counts())


def stage_rows(
    batches: Iterable[pa.RecordBatch],
    client: Client,
    options: SinkOptions,
    staged_for: StagedFor,
    *,
    maybe_schema: StreamSchema | None = None,
    partition_id: int = 0,
) -> StagedMessage:
    """Stage rows of a checked schema in a transaction of their own.

    If servers drop it meanwhile, as they may in a replay, the rest is only counted and digested.
    The message names the transaction all the same: the commit tells why it was dropped.
    """
    key = staged_for.key
    transaction = Transaction(txn_id_of(key.producer, key.batch_number, uuid.uuid4().hex))
    staging = StagedAppend(client, transaction, may_end=staged_for.is_repeatable)
    with Sender(staging) as sender:
        work = _Work(
            client,
            options,
            sender,
            partition_id,
            maybe_schema,
            is_digested=staged_for.is_repeatable,
        )
        try:
            work.write(batches)
        except UnsupportedError as error:
            raise no_transactions(error) from error
    failpoint("sink.staged")
    parts = tuple(
        (part.txn_id, part.stream_id, part.range_index, part.record_count, part.batch_count)
        for part in transaction.parts()
    )
    tails = tails_of(client, work.target_ids()) if options.delivery.is_truncating else ()
    return StagedMessage(
        partition_id, *work.counts(), key.producer, key.batch_number, parts, work.digest, tails
    )


class _Work:
    """The rows of a task on their way, with the counts of what became of them."""

    def __init__(
        self,
        client: Client,
        options: SinkOptions,
        sender: Sender,
        partition_id: int,
        maybe_schema: StreamSchema | None,
        *,
        is_digested: bool = False,
    ) -> None:
        directory = StreamDirectory(
            client,
            options.maybe_creation,
            _where(options.targets),
            is_for_columns=maybe_schema is not None,
            found=options.found if options.targets.refs else {},
        )
        self.digest = 0
        self._is_digested = is_digested
        self._router = Router(
            options.targets, directory, key_column=options.key_column, partition_id=partition_id
        )
        self._make_payload = partial(make_payload, client, options, self._router, maybe_schema)
        self._policy = options.bad_records
        self._dead_letters = StreamDirectory(
            client, options.maybe_creation, ON_BAD_RECORD, found=options.found
        )
        self._builders = Builders(self._make_builder, options.batching.linger_ms)
        self._sender = sender
        self._skipped_count = 0
        self._dead_letter_count = 0
        self._target_ids: set[int] = set()

    def write(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Route and send all rows; return when they are acknowledged."""
        for batch in batches:
            if batch.num_rows:
                self._write_batch(batch)
                late = self._builders.flush_late(_now_ms())
                if late:
                    self._sender.send(late)
                    self._sender.flush()
        self._sender.send(self._builders.flush())
        self._sender.finish()

    def counts(self) -> tuple[int, int, int, int, int, int]:
        """Return records, batches, bytes, streams, rows left out, and dead letters."""
        return (
            self._builders.record_count,
            self._sender.batch_count,
            self._sender.size_bytes,
            self._builders.stream_count,
            self._skipped_count,
            self._dead_letter_count,
        )

    def target_ids(self) -> list[int]:
        """Return the streams that options name or rows were for, not that of dead letters."""
        return sorted(self._target_ids.union(self._router.option_ids().tolist()))

    @cached_property
    def _payload(self) -> Payload:
        """How rows are written; a task without any asks nobody."""
        return self._make_payload()

    def _make_builder(self, stream_id: int) -> BatchBuilder:
        return self._payload.make_builder(stream_id)

    def _write_batch(self, batch: pa.RecordBatch) -> None:
        rows = self._payload.convert(batch)
        routed = self._router.route(batch, rows)
        # All rows count: which of them are bad may change until the batch comes again.
        self._digest(rows, self._router.maybe_set_id() or routed.stream_ids)
        bad = distinct([*routed.bad, *self._payload.find_bad(rows, routed.stream_ids)])
        rows, stream_ids = self._without_bad(rows, routed.stream_ids, bad)
        now_us = _now_us()
        for stream_id, part in self._payload.split(rows, stream_ids, now_us):
            self._send(stream_id, part, now_us)
            self._target_ids.add(stream_id)

    def _without_bad(
        self, rows: pa.RecordBatch, stream_ids: StreamIds, bad: list[BadRows]
    ) -> tuple[pa.RecordBatch, StreamIds]:
        """Return the rows that can be written, and do with the others as the options say."""
        if not bad:
            return rows, stream_ids
        if self._policy.action is OnBadRecord.FAIL:
            raise bad_record_error(bad, rows.num_rows)
        bad_count = sum(len(each.indexes) for each in bad)
        good, is_good = without(rows, bad)
        if self._policy.dead_letters is not None:
            log_bad_rows(bad, f"put into {self._policy.dead_letters}")
            self._dead_letter_count += bad_count
            (stream_id,) = self._dead_letters.ids_of([self._policy.dead_letters.text])
            now_us = _now_us()
            letters = self._payload.to_dead_letters(rows, bad)
            self._send(stream_id, fill_times(letters, now_us), now_us)
        else:
            log_bad_rows(bad, "left out")
            self._skipped_count += bad_count
        return good, stream_ids if isinstance(stream_ids, int) else stream_ids[is_good]

    def _digest(self, rows: pa.RecordBatch, stream_ids: StreamIds) -> None:
        if self._is_digested:
            self.digest = join_digests(self.digest, self._payload.digest(rows, stream_ids))

    def _send(self, stream_id: int, rows: pa.RecordBatch, now_us: int) -> None:
        self._sender.send(self._builders.add(stream_id, rows, timestamp_ms=now_us // 1_000))


def _where(targets: Targets) -> str:
    if not targets.refs:
        return "column stream"
    return "option stream" if len(targets.refs) == 1 else "option streams"


def _now_us() -> int:
    return time.time_ns() // 1_000


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
