"""The sinks of batch queries and of streaming queries."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from sbp_core.client import one_shot_producer
from sbp_core.errors import ConfigurationError
from sbp_core.records import StreamSchema
from sbp_spark.client_pool import Patience, client_for
from sbp_spark.options import BatchKey, Delivery, SinkOptions
from sbp_spark.reading.source_streams import plain_errors
from sbp_spark.spark_internals.task_log import LOG, task_ids
from sbp_spark.writing.committing import (
    IncompleteWriteError,
    abort_staged,
    all_staged,
    check_plain_parts,
    commit_and_trim,
    commit_staged,
    log_lost,
)
from sbp_spark.writing.task import StagedFor, write_rows


class SbpBatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame as a whole, unless the options ask for less.

    With a schema columns are written, without one plain records. Spark pickles it for the tasks and
    for the commit: what is decided here holds for all of them.
    """

    def __init__(self, options: SinkOptions, maybe_schema: StreamSchema | None = None) -> None:
        self._options = options
        self._maybe_schema = maybe_schema
        self._maybe_staged_for: StagedFor | None = None
        if options.delivery.delivery is Delivery.EXACTLY_ONCE:
            key = options.delivery.maybe_key
            self._maybe_staged_for = StagedFor(
                key or BatchKey(one_shot_producer(), 0), key is not None
            )

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task; return when all of them are acknowledged."""
        with plain_errors():
            return write_rows(iterator, self._options, self._maybe_staged_for, self._maybe_schema)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Let the rows be read, and then trim what was there before, if that is to go."""
        if self._maybe_staged_for is not None:
            client = client_for(self._options.servers, Patience.RUNNING)
            delivery = self._options.delivery
            commit = commit_and_trim if delivery.is_truncating else commit_staged
            with plain_errors():
                if self._maybe_schema is None:
                    check_plain_parts(client, messages)
                commit(client, messages, self._maybe_staged_for.key, delivery.on_replay_mismatch)
        log_lost(messages, "the write")

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Give up what was staged, but never what is committed: abort may follow a commit."""
        abort_staged(client_for(self._options.servers, Patience.STARTING), messages)


UNREPORTED_HOLD_S: Final = 150
"""How long a commit without any message is held back: longer than Spark's calls wait by default,
which is spark.network.timeout, 120 s."""


class SbpStreamWriter(DataSourceStreamArrowWriter):
    """Writes micro-batches: exactly once each, unless the options ask for less.

    With a schema columns are written, without one plain records. Spark makes another one for each
    task and each commit: only messages go from one to the other.
    """

    def __init__(self, options: SinkOptions, maybe_schema: StreamSchema | None = None) -> None:
        self._options = options
        self._maybe_schema = maybe_schema

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task; return when all of them are acknowledged."""
        with plain_errors():
            staged_for = None
            if self._is_exactly_once:
                staged_for = StagedFor(running_batch(), is_repeatable=True)
            return write_rows(iterator, self._options, staged_for, self._maybe_schema)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Let the rows be read. May be called again for the same micro-batch.

        Raises IncompleteWriteError unless each task reported what it wrote.
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
        client = client_for(self._options.servers, Patience.RUNNING)
        on_mismatch = self._options.delivery.on_replay_mismatch
        with plain_errors():
            if self._maybe_schema is None:
                check_plain_parts(client, messages)
            commit_staged(client, messages, BatchKey(producer, batchId), on_mismatch)
        log_lost(messages, BatchKey(producer, batchId))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Give up what was staged, but never what is committed: abort may follow a commit."""
        abort_staged(client_for(self._options.servers, Patience.STARTING), messages)

    @property
    def _is_exactly_once(self) -> bool:
        return self._options.delivery.delivery is Delivery.EXACTLY_ONCE


def running_batch() -> BatchKey:
    """Return the query and the micro-batch of the task that runs. Raises ConfigurationError."""
    ids = task_ids()
    if "query_id" not in ids or "batch_id" not in ids:
        raise ConfigurationError(
            "option delivery: exactly-once needs the ids of the query and of the micro-batch, and"
            " Spark has set none for this task; set delivery=at-least-once to write without them"
        )
    return BatchKey(ids["query_id"], int(ids["batch_id"]))


def _check_reported(messages: Sequence[WriterCommitMessage | None], batch_id: int) -> None:
    """Raise IncompleteWriteError if a task did not report what it wrote.

    With a continuous trigger Spark gives no row to a sink in Python, and commits epochs in which no
    task did. It only logs what their commit raises, and would let the query run on. The query fails
    if the commit takes longer than Spark waits for it.
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
