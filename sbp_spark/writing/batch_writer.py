"""The sink of a batch query."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from sbp_core.client import one_shot_producer
from sbp_core.records import StreamSchema
from sbp_spark.client_pool import Patience, client_for
from sbp_spark.options import BatchKey, Delivery, SinkOptions
from sbp_spark.reading.source_streams import plain_errors
from sbp_spark.writing.committing import (
    abort_staged,
    check_plain_parts,
    commit_staged,
    log_lost,
)
from sbp_spark.writing.overwriting import commit_and_trim
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
