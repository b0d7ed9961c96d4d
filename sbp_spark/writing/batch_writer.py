"""The sink of a batch query."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from sbp_spark.client_pool import Patience, client_for
from sbp_spark.options import BatchKey, Delivery, SinkOptions
from sbp_spark.source_streams import plain_errors
from sbp_spark.writing.committing import (
    abort_staged,
    commit_staged,
    log_lost,
    staged_messages,
    tails_of,
)
from sbp_spark.writing.directory import StreamDirectory
from sbp_spark.writing.task import StagedFor, write_rows


class SbpBatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame as a whole, unless the options ask for less.

    Spark pickles it for the tasks and for the commit: what is decided here holds for all of them.
    """

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._maybe_staged_for: StagedFor | None = None
        if options.delivery.delivery is Delivery.EXACTLY_ONCE:
            key = options.delivery.maybe_key
            self._maybe_staged_for = StagedFor(
                key or BatchKey(uuid.uuid4().hex, 0), key is not None
            )

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task; return when all of them are acknowledged."""
        with plain_errors():
            return write_rows(iterator, self._options, self._maybe_staged_for)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Let the rows be read, and then trim what was there before, if that is to go."""
        if self._maybe_staged_for is None:
            log_lost(messages, "the write")
            return
        client = client_for(self._options.servers, Patience.RUNNING)
        delivery = self._options.delivery
        with plain_errors():
            emptied = self._streams_to_empty(messages) if delivery.is_truncating else []
            tails = tails_of(client, emptied) if emptied else {}
            commit_staged(client, messages, self._maybe_staged_for.key, delivery.on_replay_mismatch)
            if tails:
                client.trim_streams(tails)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Give up what was staged, but never what is committed: abort may follow a commit."""
        abort_staged(client_for(self._options.servers, Patience.STARTING), messages)

    def _streams_to_empty(self, messages: list[WriterCommitMessage | None]) -> list[int]:
        """Return the ids of the streams that the options name, and that rows are staged for."""
        client = client_for(self._options.servers, Patience.RUNNING)
        directory = StreamDirectory(client, None, "option stream")
        named = directory.ids_of([ref.text for ref in self._options.targets.refs])
        staged = [
            part.stream_id for message in staged_messages(messages) for part in message.txn_parts()
        ]
        return list(dict.fromkeys([*named, *staged]))
