"""Batch reads: everything from the start to the end, as both are when the query is planned."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from sbp_spark.client_pool import Patience, client_for
from sbp_spark.options import SourceOptions
from sbp_spark.reading.input_partitions import SpanPartition, plan_read, read_partition
from sbp_spark.reading.locating import check_ends
from sbp_spark.reading.offsets import Interval
from sbp_spark.reading.source_columns import find_columns
from sbp_spark.reading.source_streams import (
    ending_offsets,
    plain_errors,
    select_streams,
    starting_offsets,
)
from sbp_spark.row_schema import source_arrow_schema


class SbpBatchReader(DataSourceReader):
    """Reads each stream from its starting offset up to its ending offset; Spark filters the rows.

    It has no `pushFilters`: Spark 4.3 keeps the plan of the last filtered query of a `load()` and
    uses it for all others, with other filters or none, which would lack rows. And Spark refuses a
    reader that has the method while `spark.sql.python.filterPushdown.enabled` is off.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """Return what to read, a list: Spark takes nothing else. Raises SbpError."""
        options = self._options
        with plain_errors():
            streams = select_streams(options)
            client = client_for(options.servers, Patience.RUNNING)
            columns = find_columns(client, options, streams)
            columns.check(self._schema)
            bounds = {bound.stream_id: bound for bound in client.stream_bounds(list(streams))}
            starts = starting_offsets(client, options, bounds, streams)
            ends = ending_offsets(client, options, bounds, streams)
            if options.ending is not None:
                check_ends(options.ending.option, starts, ends, streams)
            intervals = [Interval(each, starts[each], ends[each]) for each in streams]
            renamed = columns.maybe_renamed(self._schema)
            planned = plan_read(
                client, options, intervals, streams, columns.form, maybe_columns=renamed
            )
        # Spark makes a partition of its own where there is none.
        return planned.partitions or [SpanPartition(options.servers, ())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition."""
        return read_partition(partition, source_arrow_schema(self._schema))
