"""Spark's calls to a streaming source. `query_run` does the work.

Spark keeps offsets only as JSON, calls `initialOffset` again after a crash of the first batch, and
reads in other processes from a pickled copy of the reader. Therefore all state that must survive is
in the offsets. Spark ends a query by killing this process, so there is no `stop`. Spark waits
without a timeout for each call, so each request of the client has a timeout of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

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

from sbp_spark.logical_types import is_kept_by_arrow, logical_arrow_schema
from sbp_spark.reading.input_partitions import read_partition
from sbp_spark.reporting import plain_errors
from sbp_spark.spark_internals.rows_with_plan import RowsWithPlan, SmallBatches
from sbp_spark.streaming.query_run import QueryRun


class SbpStreamReader(RowsWithPlan, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads streams in micro-batches. If the servers are down, it waits for them.

    Options and schema are checked at the first use, because Spark hides errors of a constructor.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._given_options = options
        self._given_schema = schema

    @cached_property
    def _run(self) -> QueryRun:
        """The state of this run, which exists in the driver's process only, never in a task."""
        with plain_errors():
            return QueryRun.start(self._given_options, self._given_schema)

    @cached_property
    def _small_batches(self) -> SmallBatches:
        return SmallBatches()

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the constant that stands for the start of a fresh query."""
        return self._run.start_of_fresh_query().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return one of the options' limits. `latestOffset` combines all of them.

        Spark's Python API has no limit of several parts.
        """
        limits = self._run.options.limits
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
            self._run.stop_at_tails()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return where the micro-batch from `start` ends, `start` itself if nothing is new.

        The starting offsets of a fresh query are resolved here and kept in the first end offset.
        Raises SbpError.
        """
        with plain_errors():
            # Trigger.Once asks for everything, whatever the limits are.
            return self._run.decide(start, is_unlimited=isinstance(limit, ReadAllAvailable))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """Return the tails that were last seen, for Spark's progress, and the stalled streams."""
        latest = self._run.latest_seen()
        return None if latest is None else latest.to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the partitions from `start` to `end`: the same records at each call.

        The records of a small micro-batch are read at once. Raises SbpError.
        """
        self._rows = None
        with plain_errors():
            planned = self._run.plan(start, end)
            # For rows that come with the plan Spark uses Arrow's types only.
            if planned and self.own_reader is not None and is_kept_by_arrow(self._given_schema):
                schema = logical_arrow_schema(self._given_schema)
                self._rows = self._small_batches.maybe_read(planned, schema)
                self._rows_are_of = start, end
            return planned

    def commit(self, end: dict[str, Any]) -> None:
        """Accept that Spark has logged the batch after `end`. Spark calls this one batch late."""
        with plain_errors():
            self._run.on_logged(end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition. Runs in a task, on a copy of this reader."""
        with plain_errors():
            yield from read_partition(partition, logical_arrow_schema(self._given_schema))
