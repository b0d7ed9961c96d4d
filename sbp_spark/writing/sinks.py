"""A write, from Spark's calls to record batches: the sinks, and what each of their tasks does.

Batches of rows go through `payload` (converted), `routing` (to which streams), `bad_records`
(those that cannot be written) and `sending` (batched and appended, or staged). On the driver,
`batch_commit` makes one decision for what all the tasks have staged.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from threading import Thread
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from sbp_core.client import Client, Transaction, one_shot_producer, original_of, txn_id_of
from sbp_core.errors import ConfigurationError, SbpError, UnsupportedError
from sbp_core.failpoints import failpoint
from sbp_core.records import BatchBuilder, StreamSchema
from sbp_spark.client_pool import Patience, client_for
from sbp_spark.options.sink import BatchKey, Delivery, SinkOptions
from sbp_spark.options.sink_targets import OnBadRecord
from sbp_spark.reporting import plain_errors
from sbp_spark.spark_internals.task_log import LOG, run_id, task_ids
from sbp_spark.writing.bad_records import (
    BadRows,
    StreamIds,
    bad_record_error,
    distinct,
    log_bad_rows,
    without,
)
from sbp_spark.writing.batch_commit import (
    IncompleteWriteError,
    StagedMessage,
    WrittenMessage,
    abort_staged,
    all_staged,
    check_plain_parts,
    commit_and_trim,
    commit_staged,
    give_up,
    log_lost,
    no_transactions,
    tails_of,
)
from sbp_spark.writing.digest import join_digests
from sbp_spark.writing.directory import ON_BAD_RECORD, PlannedTargets, StreamDirectory
from sbp_spark.writing.payload import Payload, fill_times, make_payload
from sbp_spark.writing.routing import RowRouter
from sbp_spark.writing.sending import PACE, Builders, PlainAppend, Sender, SendingPace, StagedAppend


@dataclass(frozen=True, slots=True)
class StagedFor:
    """The batch that rows are staged for; `is_repeatable` if a retry may be compared with it.

    `run` begins the ids of all attempts of one run of a query; a batch write has none.
    """

    key: BatchKey
    is_repeatable: bool
    run: str = ""

    def attempt_id(self) -> str:
        """Return a new id for an attempt to stage: no other attempt of any run has it."""
        return f"{self.run}{uuid.uuid4().hex}"

    def is_superseded(self, txn_id: str) -> bool:
        """Whether an attempt was one of another run, which is over since this one began."""
        unique = original_of(txn_id).rpartition(".")[2]
        return bool(self.run) and len(unique) == _UNIQUE_LENGTH and not unique.startswith(self.run)


_RUN_LENGTH: Final = 12
"""Characters of a run's id in the ids of its transactions."""
_UNIQUE_LENGTH: Final = _RUN_LENGTH + 32
"""Characters of an attempt's id, which begins with the run."""
_OVERLAP_MS: Final = 60_000
"""How long an earlier run may still be at work after its query was started again."""


def write_rows(
    batches: Iterable[pa.RecordBatch],
    client: Client,
    options: SinkOptions,
    staged_for: StagedFor | None = None,
    *,
    schema: StreamSchema | None = None,
    partition_id: int = 0,
    pace: SendingPace = PACE,
    impatient: Client | None = None,
    planned: PlannedTargets | None = None,
) -> WrittenMessage:
    """Write all rows of a task, in order within each stream; return when they are acknowledged.

    Without `staged_for` the rows are readable at once. Otherwise they are staged in a transaction
    of their own. If servers end the transaction early, as in a replay, the other rows are only
    counted and digested, and the commit reports the reason. If anything fails, the transaction is
    given up at once, by the `impatient` client if there is one: a failed task is over soon. With a
    schema the rows are columns, without one plain records. `planned` are the streams of the
    options, if the plan has found them. Raises SbpError.
    """
    if staged_for is None:
        with Sender(PlainAppend(client), pace) as sender:
            work = _TaskWrite(
                client, options, sender, partition_id, schema, pace=pace, planned=planned
            )
            work.write(batches)
        failpoint("sink.appended")
        return WrittenMessage(partition_id, *work.counts())
    key, is_repeatable = staged_for.key, staged_for.is_repeatable
    transaction = Transaction(txn_id_of(key.producer, key.batch_number, staged_for.attempt_id()))
    try:
        with Sender(StagedAppend(client, transaction, may_end=is_repeatable), pace) as sender:
            work = _TaskWrite(
                *(client, options, sender, partition_id, schema),
                pace=pace,
                is_digested=is_repeatable,
                planned=planned,
            )
            work.write(batches)
        tails = tails_of(client, work.target_ids()) if options.delivery.is_truncating else ()
    except BaseException as error:
        give_up(impatient or client, transaction.parts())
        if isinstance(error, UnsupportedError):
            raise no_transactions(error) from error
        raise
    failpoint("sink.staged")
    parts = tuple(
        (part.txn_id, part.stream_id, part.range_index, part.record_count, part.batch_count)
        for part in transaction.parts()
    )
    return StagedMessage(
        partition_id, *work.counts(), key.producer, key.batch_number, parts, work.digest, tails
    )


class _TaskWrite:
    """The rows of a task on their way to streams, with their counts."""

    def __init__(
        self,
        client: Client,
        options: SinkOptions,
        sender: Sender,
        partition_id: int,
        schema: StreamSchema | None,
        *,
        pace: SendingPace,
        is_digested: bool = False,
        planned: PlannedTargets | None = None,
    ) -> None:
        self._planned = planned or PlannedTargets({}, {})
        directory = StreamDirectory(
            client,
            options.creation,
            options.targets.where,
            is_for_columns=schema is not None,
            found=options.found if options.targets.refs else {},
            planned=self._planned.ids,
        )
        self.digest = 0
        self._is_digested = is_digested
        self._router = RowRouter(
            options.targets, directory, key_column=options.key_column, partition_id=partition_id
        )
        self._client = client
        self._options = options
        self._schema = schema
        self._policy = options.bad_records
        self._dead_letters = StreamDirectory(
            client, options.creation, ON_BAD_RECORD, found=options.found
        )
        self._builders = Builders(self._make_builder, options.batching.linger_ms, pace)
        self._sender = sender
        self._skipped_count = 0
        self._dead_letter_count = 0
        self._target_ids: set[int] = set()

    def write(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Route and send all rows; return when they are acknowledged."""
        for batch in batches:
            if batch.num_rows:
                self._write_batch(batch)
                late = self._builders.flush_late()
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
        """Return the streams that options name or that rows went to, without dead letters."""
        return sorted(self._target_ids.union(self._router.option_ids().tolist()))

    @cached_property
    def _payload(self) -> Payload:
        """How rows are written; made at the first row: a task without rows makes no request."""
        return make_payload(
            self._client, self._options, self._router, self._schema, self._planned.typed
        )

    def _make_builder(self, stream_id: int) -> BatchBuilder:
        return self._payload.make_builder(stream_id)

    def _write_batch(self, batch: pa.RecordBatch) -> None:
        rows = self._payload.convert(batch)
        routed = self._router.route(batch, rows)
        # All rows count: which of them are bad may differ when the batch is retried.
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


def _now_us() -> int:
    return time.time_ns() // 1_000


class _Sink:
    """The common part of both writers. With a schema columns are written, else plain records.

    Spark pickles a writer for the tasks, and makes another one for each commit of a stream: only
    messages go from one to the other.
    """

    def __init__(
        self,
        options: SinkOptions,
        schema: StreamSchema | None = None,
        planned: PlannedTargets | None = None,
    ) -> None:
        self._options = options
        self._schema = schema
        self._planned = planned

    @property
    def _is_exactly_once(self) -> bool:
        return self._options.delivery.delivery is Delivery.EXACTLY_ONCE

    def _client(self, patience: Patience = Patience.RUNNING) -> Client:
        return client_for(self._options.servers, patience)

    def _write(
        self, rows: Iterable[pa.RecordBatch], staged_for: StagedFor | None
    ) -> WriterCommitMessage:
        partition_id = int(task_ids().get("partition_id", 0))
        schema, client = self._schema, self._client()
        written = write_rows(
            *(rows, client, self._options, staged_for),
            schema=schema,
            partition_id=partition_id,
            impatient=self._client(Patience.STARTING),
            planned=self._planned,
        )
        LOG.debug("wrote %s", written)
        return written

    def _commit(self, messages: Sequence[WriterCommitMessage | None], key: BatchKey) -> None:
        delivery = self._options.delivery
        commit = commit_and_trim if delivery.is_truncating else commit_staged
        with plain_errors():
            client = self._client()
            if self._schema is None:
                check_plain_parts(client, messages)
            commit(client, messages, key, delivery.on_replay_mismatch)


class SbpBatchWriter(_Sink, DataSourceArrowWriter):
    """Writes a DataFrame as a whole, unless the options ask for less.

    The key of the batch is decided here: the same writer is pickled for the tasks and the commit.
    """

    def __init__(
        self,
        options: SinkOptions,
        schema: StreamSchema | None = None,
        planned: PlannedTargets | None = None,
    ) -> None:
        super().__init__(options, schema, planned)
        self._staged_for: StagedFor | None = None
        if self._is_exactly_once:
            key = options.delivery.key
            self._staged_for = StagedFor(key or BatchKey(one_shot_producer(), 0), key is not None)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task; return when all of them are acknowledged."""
        with plain_errors():
            return self._write(iterator, self._staged_for)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Make the rows readable, then trim older records if the options ask for it."""
        if self._staged_for is not None:
            self._commit(messages, self._staged_for.key)
        log_lost(messages, "the write")

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Give up what was staged, but never what is committed: abort may follow a commit."""
        abort_staged(self._client(Patience.STARTING), messages)


UNREPORTED_HOLD_S: Final = 150
"""How long a commit without any message is held back: longer than Spark's calls wait by default,
which is spark.network.timeout, 120 s."""


_SWEPT: Final = set[tuple[str, str]]()
"""The producers and runs whose earlier runs this process has swept."""


class SbpStreamWriter(_Sink, DataSourceStreamArrowWriter):
    """Writes micro-batches: exactly once each, unless the options ask for less."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task; return when all of them are acknowledged."""
        with plain_errors():
            staged_for = None
            if self._is_exactly_once:
                ids = task_ids()
                key = running_batch(ids, self._options.delivery.generation)
                staged_for = StagedFor(key, True, run_id().replace("-", "")[:_RUN_LENGTH])
                if ids.get("partition_id") == "0" and staged_for.run:
                    self._sweep_once(staged_for)
            return self._write(iterator, staged_for)

    def _sweep_once(self, staged_for: StagedFor) -> None:
        run = staged_for.key.producer, staged_for.run
        if run not in _SWEPT:
            _SWEPT.add(run)
            client = self._client(Patience.STARTING)
            Thread(target=give_up_earlier_runs, args=(client, staged_for), daemon=True).start()

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Make the rows readable. May be called again for the same micro-batch.

        Raises IncompleteWriteError unless each task reported its writes.
        """
        _check_reported(messages, batchId)
        if not self._is_exactly_once:
            log_lost(messages, f"batch {batchId}")
            return
        with plain_errors():
            producers = {message.producer for message in all_staged(messages)}
        if not producers:  # Spark has a task for every micro-batch: there is nothing to decide
            LOG.debug("batch %d has no tasks", batchId)
            return
        (producer,) = producers
        key = BatchKey(producer, batchId)
        self._commit(messages, key)
        log_lost(messages, key)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Give up what was staged, but never what is committed: abort may follow a commit."""
        abort_staged(self._client(Patience.STARTING), messages)


def give_up_earlier_runs(client: Client, now: StagedFor, *, overlap_ms: int = _OVERLAP_MS) -> None:
    """Give up what earlier runs of a query staged and never committed; failures are only logged.

    Their tasks were killed, or their commits never came: servers would keep the rows for a day.
    Younger stagings than `overlap_ms` are left alone: a run that is just being stopped
    must not give up stagings of the next run.
    """
    try:
        known = client.describe_txns(now.key.producer)
    except SbpError as error:
        LOG.debug("stagings of earlier runs are not looked for error=%s", error)
        _SWEPT.discard((now.key.producer, now.run))
        return
    until_ms = _now_us() // 1_000 - overlap_ms
    staged = [each for each in known if each.server and (each.staged_at_ms or 0) <= until_ms]
    parts = [part for each in staged for part in each.parts if now.is_superseded(part.txn_id)]
    give_up(client, parts)


def running_batch(ids: Mapping[str, str], generation: int = 0) -> BatchKey:
    """Return the query and the micro-batch of a task by its ids. Raises ConfigurationError.

    The query is another producer in each generation.
    """
    if "query_id" not in ids or "batch_id" not in ids:
        raise ConfigurationError(
            "option delivery: exactly-once needs the ids of the query and of the micro-batch, and"
            " Spark has set none for this task; set delivery=at-least-once to write without them"
        )
    producer = f"{ids['query_id']}.{generation}" if generation else ids["query_id"]
    return BatchKey(producer, int(ids["batch_id"]))


def _check_reported(messages: Sequence[WriterCommitMessage | None], batch_id: int) -> None:
    """Raise IncompleteWriteError if a task did not report its writes.

    With a continuous trigger Spark gives no row to a sink in Python, and commits epochs in which no
    task did. Spark only logs what their commit raises, and would let the query run on. The query
    fails if the commit takes longer than Spark waits for it.
    """
    missing_count = messages.count(None)
    if not missing_count:
        return
    error = IncompleteWriteError(
        f"batch {batch_id}: {missing_count} of {len(messages)} tasks did not report what they"
        " wrote, so nothing is committed; write again. With a continuous trigger Spark gives no"
        " rows to sinks in Python: use trigger(processingTime=...) or trigger(availableNow=True)"
    )
    if missing_count == len(messages):
        LOG.error("%s", error)
        time.sleep(UNREPORTED_HOLD_S)
    raise error
