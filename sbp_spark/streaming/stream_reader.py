"""The driver side of a streaming read. One instance lives as long as the query runs.

Spark keeps offsets only as JSON, calls `initialOffset` again after a crash of the first batch, and
reads in other processes from a pickled copy: state that must survive is in the offsets. It ends a
query by killing this process, so there is no `stop`. It waits for a call without a timeout, so each
request of the client has its own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from sbp_spark.filtering.resolving import RowFilter
from sbp_spark.logical_types import is_kept_by_arrow, logical_arrow_schema
from sbp_spark.options.source import SourceOptions, parse_source_options
from sbp_spark.reading.input_partitions import plan_read, read_partition
from sbp_spark.reading.layout import Form
from sbp_spark.reading.offsets import INITIAL, SourceOffset, advance, intervals
from sbp_spark.reading.planning import RecordSizeEstimates
from sbp_spark.reading.source_streams import find_columns
from sbp_spark.reporting import plain_errors
from sbp_spark.spark_internals.rows_with_plan import RowsWithPlan, SmallBatches
from sbp_spark.streaming.commits import Commits
from sbp_spark.streaming.loss_policy import LossPolicy
from sbp_spark.streaming.micro_batch import (
    NOTHING_AHEAD,
    Quiet,
    Way,
    added_streams,
    is_quiet,
    way_ahead,
)
from sbp_spark.streaming.stream_watch import Snapshot, StreamWatch, is_plausible
from sbp_spark.streaming.trigger import Trigger

AT_ONCE_S: Final = 0.05
"""Spark asks again so soon with its default trigger, which has no interval."""


class SbpStreamReader(RowsWithPlan, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads streams in micro-batches. If the servers are down it waits, up to a minute.

    Options and schema are checked at the first use: Spark hides the error of a constructor.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._given_options = options
        self._given_schema = schema
        self._checked_options: SourceOptions | None = None
        self._form = Form.ROWS
        self._renamed: pa.Schema | None = None
        self._row_filter: RowFilter | None = None
        self._watch: StreamWatch | None = None
        self._snapshot = Snapshot()
        self._is_available_now = False
        self._targets: dict[int, int] | None = None
        self._added: frozenset[int] | None = None
        self._quiet: Quiet | None = None
        self._idle_since_s = -AT_ONCE_S
        """When Spark was told last that there is nothing new, if it was."""
        self._small_batches = SmallBatches()

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the constant that stands for the start of a fresh query."""
        self._options()
        return INITIAL.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return one of the options' limits; `latestOffset` combines all of them.

        Spark's Python API has no limit of several parts.
        """
        limits = self._options().limits
        if limits.records_max is not None:
            return ReadMaxRows(limits.records_max)
        if limits.bytes_max is not None:
            return ReadMaxBytes(limits.bytes_max)
        if limits.records_min is not None or limits.target_ms is not None:
            return ReadMinRows(limits.records_min or 1)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Read up to the tails as they are now, and no further."""
        with plain_errors():
            self._snapshot = self._streams().look()
        self._is_available_now = True

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return how far the micro-batch from `start` goes, `start` itself if nothing is new.

        A fresh query's starting offsets are resolved here, and kept in the first end offset.
        Raises SbpError.
        """
        with plain_errors():
            self._trigger.on_asked()
            if time.monotonic() - self._idle_since_s < AT_ONCE_S:
                self._streams().wait_for_news(self._snapshot)
            quiet, self._quiet = self._quiet, None
            if quiet is not None and start != quiet.answer:
                quiet = None
            given = SourceOffset.from_json(start) if quiet is None else quiet.offset
            self._look(given, quiet)
            commit = self._losses.settle_put_back(given)
            if quiet is not None and self._snapshot is quiet.snapshot:
                self._quiet = quiet
                answer = self._go_nowhere(quiet, limit)
                self._idle_since_s = time.monotonic()
                return answer
            begin, gone = self._losses.settle_gone(given, self._snapshot)
            self._commits.on_processed(begin)
            if self._added is None:
                # Beside streams that were deleted, a new one may be the same, created again.
                new = () if gone else added_streams(self._options(), begin, self._snapshot)
                self._added = frozenset(new)
            client, added = self._streams().client, self._added
            way = way_ahead(client, self._options(), begin, self._snapshot, added)
            self._losses.settle_trimmed(way.losses)
            if self._is_available_now:
                if self._targets is None:
                    self._targets = dict(way.tails)
                way = way.until(self._targets)
            # Trigger.Once asks for everything, whatever the limits are.
            is_unlimited = isinstance(limit, ReadAllAvailable)
            ends = way.farthest() if is_unlimited else self._admitted(way)
            lost = self._losses.to_report([*gone, *way.losses])
            end = advance(begin, way.positions(ends), lost, way.stalled, commit=commit)
            answer = end.to_json()
            self._idle_since_s = -AT_ONCE_S
            if end is given and not self._is_available_now and is_quiet(way):
                self._idle_since_s = time.monotonic()
                self._quiet = Quiet(end, answer, self._snapshot)
            return answer

    def _go_nowhere(self, quiet: Quiet, limit: ReadLimit) -> dict[str, Any]:
        """Return the answer of a look that shows what the last one did: nothing new.

        Commits, pace and minimum of records depend on the time, and go on.
        """
        self._commits.on_processed(quiet.offset)
        if not isinstance(limit, ReadAllAvailable):
            self._admitted(NOTHING_AHEAD)
        return quiet.answer

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """Return the tails as they were last seen, for Spark's progress, and which are stalled."""
        snapshot = self._snapshot
        if not snapshot.streams:
            return None
        return SourceOffset(snapshot.positions(), stalled=snapshot.stalled).to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return what to read from `start` to `end`: the same records whenever it is asked.

        Small micro-batches are read at once. Raises SbpError.
        """
        with plain_errors():
            self._quiet = self._rows = None
            begin, finish = SourceOffset.from_json(start), SourceOffset.from_json(end)
            wanted = [
                each for each in intervals(begin, finish) if each.start_offset < each.end_offset
            ]
            if not wanted:
                return []
            # A batch that is planned again after a restart was logged for the streams of then.
            streams = self._streams().streams()
            self._losses.settle_put_back(finish)
            there = self._losses.settle_unreadable(finish, wanted, streams)
            if left := {each.stream_id for each in there} - streams.keys():
                found = self._streams().client.find_streams(sorted(left))
                streams = {**streams, **{info.stream_id: info for info in found}}
            as_of = self._streams().revision
            planned = plan_read(
                self._streams().client,
                self._options(),
                there,
                streams,
                self._form,
                columns=self._renamed,
                row_filter=self._row_filter,
                as_of=as_of,
                sizes=self._sizes,
                is_repeatable=True,
            )
            self._losses.note(planned.losses)
            schema = logical_arrow_schema(self._given_schema)
            # For rows that come with the plan Spark uses Arrow's types only.
            if self.own_reader is not None and is_kept_by_arrow(self._given_schema):
                self._rows = self._small_batches.maybe_read(planned.partitions, schema)
                self._rows_are_of = start, end
            return planned.partitions

    def commit(self, end: dict[str, Any]) -> None:
        """Accept that Spark has logged the batch after `end`; Spark calls it one batch late."""
        with plain_errors():
            self._commits.on_commit(SourceOffset.from_json(end), self._snapshot)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition; runs in a task, on a copy of this reader."""
        with plain_errors():
            yield from read_partition(partition, logical_arrow_schema(self._given_schema))

    def _options(self) -> SourceOptions:
        """Return the options, checked, as are the columns. Raises SbpError.

        In which form the query reads records is decided here, once.
        """
        if self._checked_options is None:
            with plain_errors():
                options = parse_source_options(self._given_options, streaming=True)
                watch = StreamWatch(options)
                streams = watch.streams()
                columns = find_columns(watch.client, options, streams)
                columns.check(self._given_schema)
                self._row_filter = columns.maybe_filter(self._given_schema)
            self._checked_options = options.knowing(streams.values())
            self._form = columns.form
            self._renamed = columns.maybe_renamed(self._given_schema)
            self._watch = watch
        return self._checked_options

    def _look(self, begin: SourceOffset, quiet: Quiet | None) -> None:
        """Look at the streams; only once with Trigger.AvailableNow, unless that look is doubtful.

        Raises SbpError.
        """
        known = begin.next_offsets() if quiet is None else quiet.known
        is_frozen = self._is_available_now and (
            self._targets is not None or is_plausible(self._snapshot, known)
        )
        if not is_frozen:
            believed = None if quiet is None else quiet.snapshot
            self._snapshot = self._streams().look(known, believed=believed)

    @cached_property
    def _commits(self) -> Commits:
        return Commits(self._streams().looking, self._options().commits)

    @cached_property
    def _losses(self) -> LossPolicy:
        return LossPolicy(self._options().on_data_loss, self._streams().client)

    def _streams(self) -> StreamWatch:
        """Return what looks at the streams; made at the first use, never sent to tasks."""
        self._options()
        assert self._watch is not None
        return self._watch

    @cached_property
    def _trigger(self) -> Trigger:
        return Trigger(self._options().limits, self._sizes)

    @cached_property
    def _sizes(self) -> RecordSizeEstimates:
        return RecordSizeEstimates(self._streams().looking)

    def _admitted(self, way: Way) -> dict[int, int]:
        """Return how far the limits let a micro-batch go."""
        return self._trigger.ends(way, is_waiting_allowed=not self._is_available_now)
